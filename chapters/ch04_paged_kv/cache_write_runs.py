"""One run of qk_norm_rope_cache_write among guards, and what must be true of it whatever the arguments are."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3_ref.functional import rms_norm
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM, cos_sin_table
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import POISON, Guarded
from qwen_cuda.testing.numbers import Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits, ulp

NAME = "qk_norm_rope_cache_write"
EPS = 1e-6
THETA = 1e6  # of Qwen3
DENSE = Layout()


@dataclass(frozen=True)
class Setting:
    """The sizes and the memory of a run.

    `layout` is that of qkv. `offset` says how far the others lie behind a 16-byte border: all, or the one that
    `displaced` names. `table_padding` elements lie between the rows of cos_sin.
    """

    num_heads: int = 3
    num_kv_heads: int = 2
    block_size: int = 16
    num_blocks: int = 5
    dtype: torch.dtype = torch.bfloat16
    max_positions: int = 300
    eps: float = EPS
    kind: Kind = "plain"
    seed: int = 1
    layout: Layout = DENSE
    offset: int = 0
    displaced: str = ""
    table_padding: int = 0
    positions_dtype: torch.dtype = torch.int64
    slots_dtype: torch.dtype = torch.int32
    return_k: bool = True

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    def qkv(self, tokens: int) -> Tensor:
        """`[tokens, (Hq + 2 Hkv) · 128]` on the CPU. Each head of a token has numbers of its own `kind`."""
        heads = self.num_heads + 2 * self.num_kv_heads
        values = rows_of_numbers((tokens, heads, HEAD_DIM), self.dtype, seed=self.seed, kind=self.kind)
        return values.flatten(1)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Of Q and of K, far from one and from each other."""
        return norm_weight(HEAD_DIM, self.dtype, seed=11), norm_weight(HEAD_DIM, self.dtype, seed=12)


@dataclass(frozen=True)
class Written:
    """What a run left behind, on the backend's device. The caches are `[num_slots, Hkv, 128]`."""

    q: Tensor
    k: Tensor
    k_cache: Tensor
    v_cache: Tensor


@functools.cache
def table(max_positions: int) -> Tensor:
    """`cos_sin` for Qwen3's θ; made once, it is only read."""
    return cos_sin_table(max_positions, THETA)


def scattered(tokens: int, setting: Setting) -> tuple[Tensor, Tensor]:
    """Random positions, and slots of which no two are one: pages in any order."""
    generator = torch.Generator().manual_seed(setting.seed)
    positions = torch.randint(setting.max_positions, (tokens,), generator=generator)
    return positions, torch.randperm(setting.num_slots, generator=generator)[:tokens]


def write(backend: Backend, setting: Setting, qkv: Tensor, positions: Tensor, slots: Tensor) -> Written:
    """Runs the operator on guarded copies, checks all that it gives and all that it must leave alone.

    The caches hold a NaN pattern before: a slot that no token has must hold its every byte afterwards.
    """

    def place(name: str, values: Tensor, row_padding: int = 0) -> Guarded:
        here = setting.displaced in ("", name)
        return backend.place(values, row_padding=row_padding, offset=setting.offset if here else 0)

    shape = (setting.num_blocks, setting.block_size, setting.num_kv_heads, HEAD_DIM)
    x = backend.place(qkv, row_padding=setting.layout.row_padding, offset=setting.layout.offset)
    read = {
        name: place(name, values, setting.table_padding if name == "cos_sin" else 0)
        for name, values in (
            ("q_weight", setting.weights()[0]),
            ("k_weight", setting.weights()[1]),
            ("cos_sin", table(setting.max_positions)),
            ("positions", positions.to(setting.positions_dtype)),
            ("slot_mapping", slots.to(setting.slots_dtype)),
        )
    }
    caches = [place(name, poison(shape, setting.dtype)) for name in ("k_cache", "v_cache")]
    with case(NAME, tokens=len(qkv), positions=_some(positions), slots=_some(slots), **_told(setting)):
        q, k = backend.op(NAME)(
            x.tensor,
            *(buffer.tensor for buffer in read.values()),
            *(cache.tensor for cache in caches),
            setting.eps,
            setting.num_heads,
            return_k=setting.return_k,
        )
        for name, buffer in {"qkv": x, **read}.items():
            buffer.check_untouched(name)
        for name, cache in zip(("k_cache", "v_cache"), caches, strict=True):
            cache.check_guards(name)
        written = Written(q, k, *(cache.tensor.view(-1, setting.num_kv_heads, HEAD_DIM) for cache in caches))
        check_written(written, setting, qkv, positions, slots)
    return written


def check_written(written: Written, setting: Setting, qkv: Tensor, positions: Tensor, slots: Tensor) -> None:
    """Holds a run against float64: q, k and the slots of both caches, the unwritten ones too.

    Raises:
        AssertionError: with the first thing that is wrong.
    """
    tokens, heads = len(qkv), (setting.num_heads, setting.num_kv_heads)
    kept_k = tokens if setting.return_k else 0
    assert (written.q.shape, written.q.dtype) == ((tokens, heads[0], HEAD_DIM), setting.dtype)
    assert (written.k.shape, written.k.dtype) == ((kept_k, heads[1], HEAD_DIM), setting.dtype)
    assert written.q.is_contiguous()
    assert written.k.is_contiguous()
    truth_q, truth_k = truth(setting, qkv, positions)
    sizes_q, sizes_k = sizes(setting, qkv, positions)
    assert_rounded_once(written.q, truth_q, sizes_q)
    if setting.return_k:
        assert_rounded_once(written.k, truth_k, sizes_k)
    known = (positions >= 0) & (positions < setting.max_positions)
    kept = known & (slots >= 0) & (slots < setting.num_slots)
    k_cache, v_cache = written.k_cache.cpu(), written.v_cache.cpu()
    assert_rounded_once(k_cache[slots[kept]], truth_k[kept], sizes_k[kept])
    assert_same_bits(v_cache[slots[kept]], qkv.unflatten(1, (-1, HEAD_DIM))[kept, sum(heads) :])
    if setting.return_k:
        assert_same_bits(k_cache[slots[kept]], written.k.cpu()[kept])
    others = torch.ones(setting.num_slots, dtype=torch.bool)
    others[slots[kept]] = False
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        left = cache[others].contiguous().view(torch.int16)
        touched = (left != poison((1,), setting.dtype).view(torch.int16)).flatten(1).any(-1)
        slot = int(others.nonzero().flatten()[touched.int().argmax()]) if touched.any() else None
        assert slot is None, f"slot {slot} of {name} was written, and no token has it"


def truth(setting: Setting, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """q and k in float64."""
    nothing = torch.zeros(0, setting.block_size, setting.num_kv_heads, HEAD_DIM, dtype=torch.float64)
    weights = (weight.double() for weight in setting.weights())
    slots = torch.full_like(positions, -1)
    arguments = (qkv.double(), *weights, table(setting.max_positions), positions, slots, nothing, nothing.clone())
    q, k = REFERENCES[NAME](*arguments, setting.eps, setting.num_heads, return_k=True)
    return q, k


def sizes(setting: Setting, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """|u cos| + |v sin| for each element of q and of k, in float64: what cancels where a rotated element is small."""
    known = (positions >= 0) & (positions < setting.max_positions)
    row = table(setting.max_positions)[torch.where(known, positions, 0)][:, None].double().abs()
    cos, sin = row.chunk(2, dim=-1)
    found = []
    all_heads = qkv.double().unflatten(1, (-1, HEAD_DIM))
    ends = (0, setting.num_heads, setting.num_heads + setting.num_kv_heads)
    for weight, first, last in zip(setting.weights(), ends[:-1], ends[1:], strict=True):
        u, v = rms_norm(all_heads[:, first:last], weight.double(), setting.eps, "fused").abs().chunk(2, dim=-1)
        found.append(torch.cat((u * cos + v * sin, v * cos + u * sin), dim=-1))
    return found[0], found[1]


def assert_rounded_once(actual: Tensor, truth: Tensor, sizes: Tensor) -> None:
    """Fails unless each element is the truth but for float32 work and one rounding. NaN is right where the truth is.

    With u = 2^-24 the work errs by less than (10 + 2√128) u of the size. The sum of squares is a chain of at most 128
    additions of positive numbers, which errs by 4√128 u (chapter 2's `rms_norm_checks.ulps`), and the root halves that;
    mean, eps, root and division take 6 u, two products with scale and weight 2 u, the rotation 2 u. The rounding adds
    half an ulp, 2^15 u (bfloat16) or 2^12 u (float16) of the smallest number in its binade: a second one shows.

    Raises:
        AssertionError: with the worst element.
    """
    assert actual.shape == truth.shape, f"the result has shape {list(actual.shape)}, the truth {list(truth.shape)}"
    got = actual.detach().cpu().double()
    allowed = 0.5 * ulp(truth.nan_to_num(), actual.dtype) + (10 + 2 * HEAD_DIM**0.5) * 2.0**-24 * sizes
    right = ((got - truth).abs() <= allowed) | (got.isnan() & truth.isnan())  # a NaN compares as wrong
    if not right.all():
        excess = ((got - truth).abs() / allowed).nan_to_num(nan=torch.inf).where(~right, torch.zeros(()).double())
        worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{int((~right).sum())} of {right.numel()} elements are not the truth rounded once. Worst at {worst}: "
            f"{float(got[worst])!r} instead of {float(truth[worst])!r}, {float(excess[worst]):.4g} times "
            "what is allowed."
        )


def poison(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The guards' pattern in every element of a 16-bit tensor."""
    flat = torch.tensor(POISON, dtype=torch.uint8).view(torch.int16).view(dtype)
    return flat.expand(shape).clone()


def _told(setting: Setting) -> dict[str, object]:
    return {name: getattr(setting, name) for name in setting.__dataclass_fields__}


def _some(values: Tensor) -> str:
    return str(values.tolist()) if len(values) <= 8 else f"{values[:8].tolist()} …"
