"""One run of norm_rope_hadamard_quant_store among guards, held byte for byte against the unfused pipeline."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.combinations import Combination, Target
from qwen3_ref.functional import rope_cos_sin
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import POISON, Guarded
from qwen_cuda.testing.numbers import Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import INTEGERS

NAME = "norm_rope_hadamard_quant_store"
THETA = 1e6  # of Qwen3
HADAMARD_SCALE = 128**-0.5


@dataclass(frozen=True)
class Setting:
    """A combination, and the numbers and the memory of a run.

    `x_padding` elements lie between the heads of one token and those of the next, `table_padding` between the rows of
    cos_sin, `block_padding` bytes between blocks of a cache.
    """

    how: Combination
    dtype: torch.dtype = torch.bfloat16
    kind: Kind = "plain"
    seed: int = 1
    eps: float = 1e-6
    num_blocks: int = 3
    max_positions: int = 300
    x_padding: int = 0
    table_padding: int = 0
    block_padding: int = 0
    positions_dtype: torch.dtype = torch.int64
    slots_dtype: torch.dtype = torch.int32

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.how.block_size

    def x(self, tokens: int) -> Tensor:
        """`[tokens, heads, head_dim]` on the CPU."""
        shape = (tokens, self.how.x_heads, self.how.head_dim)
        return rows_of_numbers(shape, self.dtype, seed=self.seed, kind=self.kind)

    def indices(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Random positions, and slots of which no two are one: pages in any order."""
        generator = torch.Generator().manual_seed(self.seed)
        positions = torch.randint(self.max_positions, (tokens,), generator=generator)
        return positions, torch.randperm(max(self.num_slots, tokens), generator=generator)[:tokens]


@functools.cache
def table(max_positions: int, rotary_dim: int) -> Tensor:
    """`cos_sin`, float32 `[max_positions, rotary_dim]`; made once, it is only read."""
    return torch.cat(rope_cos_sin(torch.arange(max_positions), rotary_dim, THETA, torch.float32), dim=-1)


def weight_of(setting: Setting) -> Tensor:
    return norm_weight(setting.how.head_dim, setting.dtype, seed=11)


def run(
    backend: Backend,
    setting: Setting,
    x: Tensor | None = None,
    positions: Tensor | None = None,
    slots: Tensor | None = None,
    tokens: int = 5,
) -> dict[str, Tensor]:
    """Runs the operator on guarded copies, and the reference on others; every byte that either may write is compared.

    Outputs hold the guards' pattern before, so what nobody writes, a slot or the padding of a record, must still hold
    it. Returns what was written, by name, on the backend's device.

    Raises:
        AssertionError: a byte differs, beside an output too.
    """
    x = setting.x(tokens) if x is None else x
    some = setting.indices(len(x))
    positions, slots = (some[0] if positions is None else positions), (some[1] if slots is None else slots)
    read = _inputs(backend, setting, x, positions, slots)
    written = _outputs(backend, setting, len(x))
    expected = {name: buffer.tensor.cpu().clone() for name, buffer in written.items()}
    heads, dim = setting.how.x_heads, setting.how.head_dim
    with case(NAME, tokens=len(x), slots=slots.tolist()[:8], setting=setting):
        flat = _flat(setting, {name: buffer.tensor for name, buffer in (read | written).items()})
        backend.op(NAME)(read["x"].tensor[:, : heads * dim].unflatten(1, (heads, dim)), **flat)
        on_cpu = {name: buffer.tensor.cpu() for name, buffer in read.items()} | expected
        REFERENCES[NAME](x, **_flat(setting, on_cpu))
        for name, buffer in read.items():
            buffer.check_untouched(name)
        for name, buffer in written.items():
            buffer.check_guards(name)
            assert_same(name, buffer.tensor, expected[name])
    return {name: buffer.tensor for name, buffer in written.items()}


def assert_same(name: str, actual: Tensor, expected: Tensor) -> None:
    """Fails unless every bit is the same, where a NaN is like any other.

    Raises:
        AssertionError: with the first place that differs.
    """
    actual, expected = actual.detach().cpu().contiguous(), expected.detach().cpu().contiguous()
    bits = INTEGERS[actual.element_size()]
    different = actual.view(bits) != expected.view(bits)
    if actual.dtype.is_floating_point and bits != torch.int8:
        different &= ~(actual.isnan() & expected.isnan())
    first = (
        tuple(int(i) for i in torch.unravel_index(different.flatten().int().argmax(), different.shape))
        if (different.any())
        else ()
    )
    assert not different.any(), (
        f"{int(different.sum())} of {different.numel()} elements of {name} differ, the first at {first}: "
        f"{actual[first]} and not {expected[first]}"
    )


def _inputs(backend: Backend, setting: Setting, x: Tensor, positions: Tensor, slots: Tensor) -> dict[str, Guarded]:
    how = setting.how
    read = {"x": backend.place(x.flatten(1), row_padding=setting.x_padding)}
    if how.norm:
        read["weight"] = backend.place(weight_of(setting))
    if how.rope:
        angles = table(setting.max_positions, how.rotary_dim)
        read["cos_sin"] = backend.place(angles, row_padding=setting.table_padding)
        read["positions"] = backend.place(positions.to(setting.positions_dtype))
    if how.target in ("cache", "k and v"):
        read["slot_mapping"] = backend.place(slots.to(setting.slots_dtype))
    return read


def _outputs(backend: Backend, setting: Setting, tokens: int) -> dict[str, Guarded]:
    """Guarded, and filled with the guards' pattern."""
    how = setting.how
    shape = (tokens, how.x_heads, how.head_dim)
    written = {}
    if how.target in ("cache", "k and v"):
        for name in ("k_cache", "v_cache")[: 1 if how.target == "cache" else 2]:
            blocks = how.format.shape(setting.num_blocks)
            written[name] = Guarded(blocks, torch.uint8, backend.device, row_padding=setting.block_padding)
        if how.stage is None:
            return written
    elif how.cast is not None and not how.cast.cast_back:
        sizes = {"data": how.cast.data_bytes(how.head_dim), "scales": how.cast.scale_bytes(how.head_dim)}
        for name, size in sizes.items():
            written[name] = Guarded((*shape[:2], size), torch.uint8, backend.device)
        return written
    written["out"] = Guarded(shape, setting.dtype, backend.device)
    return written


def _flat(setting: Setting, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The operator's arguments behind x. A new output is one of ours here, so that it has guards."""
    ours: Target = "rows" if "data" in tensors else "tensor"
    how = replace(setting.how, target=ours if setting.how.target == "new" else setting.how.target)
    pipeline = how.pipeline(tensors, setting.eps, HADAMARD_SCALE)
    if how.target in ("cache", "k and v"):
        return pipeline.flat((tensors.get("out"), None, None))
    return pipeline.flat((tensors.get("out"), tensors.get("data"), tensors.get("scales")))


def poisoned(shape: tuple[int, ...]) -> Tensor:
    """Bytes of the guards' pattern: what an output holds before a run."""
    size = int(torch.Size(shape).numel())
    return torch.tensor(POISON, dtype=torch.uint8).repeat(size // 2 + 1)[:size].view(shape)
