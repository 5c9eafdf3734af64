"""Paged attention on test cases: what the kernels get, the truth in float64, and how far a result may lie from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from qwen3_ref import paged
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.ulp import ulp

BF16, FP16 = torch.bfloat16, torch.float16
_UNIT = 2.0**-24  # the relative error of one float32 rounding


@dataclass(frozen=True)
class Heads:
    """The shape of a model's attention. `str` is what a failed case says of it."""

    kv_heads: int = 2
    group: int = 2
    head_dim: int = 128
    block_size: int = 16
    dtype: torch.dtype = BF16

    @property
    def query_heads(self) -> int:
        return self.kv_heads * self.group

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        heads = f"{self.query_heads} query and {self.kv_heads} KV heads of {self.head_dim}"
        return f"{heads}, pages of {self.block_size}, {kind}"


@dataclass(frozen=True)
class PagedCase:
    """Arguments of paged attention, on the CPU. Slots that no context reaches hold NaN, as fresh memory may."""

    heads: Heads
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    scale: float
    q_padding: int = 0  # elements between the queries of two sequences: those of K and V in packed QKV
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        return self.q, self.k_cache, self.v_cache, self.block_table, self.context_lens, self.scale

    def with_(self, **changes: object) -> PagedCase:
        return replace(self, **changes)  # type: ignore[arg-type]


def paged_case(
    lens: Sequence[int],
    heads: Heads = Heads(),
    *,
    seed: int = 0,
    spread: float = 1.0,
    scale: float | None = None,
    spare: int = 2,
    shuffle: int | None = None,
) -> PagedCase:
    """Random numbers, by sequence and position: where a page lies changes nothing of what a token holds.

    Args:
        lens: the contexts.
        spread: widens the scores.
        spare: entries of a row of the table beyond those that it needs. They hold numbers that are no blocks, and
            numbers of blocks that belong to nobody.
        shuffle: another seed for the places of the pages alone.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    size, kv, dim = heads.block_size, heads.kv_heads, heads.head_dim
    needed = [-(-length // size) for length in lens]
    width, count = max([1, *needed]) + spare, sum(needed) + 3
    places = torch.randperm(count, generator=torch.Generator().manual_seed(seed if shuffle is None else shuffle))
    k_cache, v_cache = (torch.full((count, size, kv, dim), torch.nan, dtype=heads.dtype) for _ in range(2))
    free = iter(places.tolist())
    outside = [-1, count, 2**31 - 1, -(2**31), int(places[-1])]
    table = torch.tensor([[outside[(s + i) % 5] for i in range(width)] for s in range(len(lens))], dtype=torch.int32)
    q = (spread * normal(len(lens), heads.query_heads, dim)).to(heads.dtype)
    for s, length in enumerate(lens):
        # 0.7 away from zero: a mean that cancels would leave nothing to compare.
        k, v = normal(length, kv, dim), normal(length, kv, dim) + 0.7
        for i in range(needed[s]):
            table[s, i] = block = next(free)
            tokens = slice(i * size, min((i + 1) * size, length))
            k_cache[block, : tokens.stop - tokens.start] = k[tokens].to(heads.dtype)
            v_cache[block, : tokens.stop - tokens.start] = v[tokens].to(heads.dtype)
    context_lens = torch.tensor(list(lens), dtype=torch.int32)
    facts: dict[str, object] = {"contexts": tuple(lens), "heads": heads}
    return PagedCase(
        heads, q, k_cache, v_cache, table, context_lens, dim**-0.5 if scale is None else scale, facts=facts
    )


def relative_errors(some: PagedCase) -> Tensor:
    """How far Σ 2^(score − m) · v, or Σ 2^(score − m), may err, relative to its size Σ 2^(score − m) · |v|. `[b, Hq]`.

    Let u = 2^-24. A score is a sum of D products: with S = scale · Σ|q_i k_i| it errs by about u √D S (Higham and Mary,
    A New Approach to Probabilistic Rounding Error Analysis, 2019), with q · scale · log2 e rounded before, and the
    subtraction of the maximum after it, by u (√D + 3) S. The weights' relative error is that of the score, and 4 u for
    2^x; numerator and denominator have it both. Sums over t tokens add √t u each, the merges 8 u.
    """
    q, table, size = some.q.double(), some.block_table, some.k_cache.shape[1]
    errors = torch.zeros(q.shape[:2], dtype=torch.float64)
    for s in range(q.shape[0]):
        k = paged.gather(some.k_cache.double(), table[s], 0, paged.context_of(some.context_lens, s, table, size))[0]
        if k.shape[1]:
            k = k.repeat_interleave(some.heads.group, 0)
            largest = abs(some.scale) * (k.abs() @ q[s].abs()[:, :, None]).amax((1, 2))  # S of each head
            errors[s] = (2 * (math.sqrt(q.shape[2]) + 3) * largest + 16 + 2 * math.sqrt(k.shape[1])) * _UNIT
    return errors


def widened(some: PagedCase) -> PagedCase:
    """The same in float64."""
    return some.with_(q=some.q.double(), k_cache=some.k_cache.double(), v_cache=some.v_cache.double())


def truth_and_bound(some: PagedCase, errors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The result in float64, and how far a kernel's may lie from it. `[b, Hq, D]` each.

    Of `errors`, by default `relative_errors`, all counts relative to Σ p|v|. Then the result is rounded once: half an
    ulp.
    """
    exact, errors = widened(some), relative_errors(some) if errors is None else errors
    truth = paged.paged_attention(*exact.arguments)
    slack = paged.paged_attention(*exact.with_(v_cache=exact.v_cache.abs()).arguments) * errors[..., None]
    rounding = 0.5 * ulp(truth.abs() + slack, some.heads.dtype)
    # Without tokens there is nothing to round.
    return truth, torch.where(errors[..., None] > 0, slack + rounding, 0.0)


def assert_within(actual: Tensor, truth: Tensor, bound: Tensor) -> None:
    """Fails unless each element lies within its bound; NaN fails, and so does anything else where the bound is 0."""
    assert actual.shape == truth.shape, f"the result has shape {list(actual.shape)}, the truth {list(truth.shape)}"
    error = (actual.detach().cpu().double() - truth).abs()
    wrong = ~(error <= bound)
    if wrong.any():
        share = (error / bound).nan_to_num(nan=torch.inf, posinf=torch.finfo(torch.float64).max)
        worst = tuple(int(i) for i in torch.unravel_index(share.argmax(), share.shape))
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are too far from the truth. Worst at {worst}: "
            f"{float(actual[worst])!r} instead of {float(truth[worst])!r}, {float(error[worst]):.3g} off where "
            f"{float(bound[worst]):.3g} is allowed."
        )


@dataclass(frozen=True)
class Placed:
    """A case on a backend's device, among guards."""

    buffers: dict[str, Guarded]
    some: PagedCase

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        tensors = {name: buffer.tensor for name, buffer in self.buffers.items()}
        q = tensors["q"].unflatten(1, self.some.q.shape[1:])
        return (
            q,
            tensors["k_cache"],
            tensors["v_cache"],
            tensors["block_table"],
            tensors["context_lens"],
            self.some.scale,
        )

    def check_untouched(self) -> None:
        for name, buffer in self.buffers.items():
            buffer.check_untouched(name)


def place(backend: Backend, some: PagedCase) -> Placed:
    values = {
        "q": some.q.flatten(1),
        "k_cache": some.k_cache,
        "v_cache": some.v_cache,
        "block_table": some.block_table,
        "context_lens": some.context_lens,
    }
    paddings = {"q": some.q_padding, "block_table": 1}  # a row of the table needs no alignment
    return Placed(
        {name: backend.place(tensor, row_padding=paddings.get(name, 0)) for name, tensor in values.items()}, some
    )


def grouped(backend: Backend, some: PagedCase) -> Tensor:
    """Runs `paged_attention_grouped` on guarded copies and holds the result against the truth. → `[b, Hq, D]`."""
    with case("paged_attention_grouped", **some.facts):
        placed = place(backend, some)
        out: Tensor = backend.op("paged_attention_grouped")(*placed.arguments)
        assert (out.dtype, out.is_contiguous()) == (some.heads.dtype, True)
        assert_within(out, *truth_and_bound(some))
        placed.check_untouched()
    return out
