"""Fused decode attention on test cases: a batch with its new tokens, a run among guards, and what it must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_runs import EPS, table
from chapters.ch05_grouped_attention.paged_cases import Heads, PagedCase, assert_within, paged_case, truth_and_bound
from chapters.ch06_split_attention.split_cases import Cut, layout_of, used_workspace
from qwen_cuda import loading
from qwen_cuda.testing.backends import Backend, poisoned_memory
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES
from qwen_cuda.testing.ulp import assert_same_bits

NAME = "fused_decode_attention"
HEAD_DIM = 128
QWEN3 = Heads(kv_heads=2, group=2)
MAX_POSITIONS = 600  # rows of cos_sin; they are those of positions from FAR on
FAR = 100_000
TOKEN = ("qkv", "q_weight", "k_weight", "cos_sin", "positions", "slot_mapping")


@dataclass(frozen=True)
class FusedCase:
    """A batch whose last tokens are new: their K and V are in `qkv`, and NaN in the caches of `stored`."""

    stored: PagedCase
    qkv: Tensor
    positions: Tensor
    slot_mapping: Tensor
    weights: tuple[Tensor, Tensor]
    qkv_padding: int = 0

    def with_(self, **changes: Any) -> FusedCase:
        return replace(self, **changes)

    @property
    def heads(self) -> Heads:
        return self.stored.heads


@dataclass(frozen=True)
class Result:
    """On the backend's device."""

    out: Tensor
    k_cache: Tensor
    v_cache: Tensor

    def assert_same(self, other: Result) -> None:
        for name in ("out", "k_cache", "v_cache"):
            assert_same_bits(getattr(self, name), getattr(other, name))


def fused_case(lens: Sequence[int], heads: Heads = QWEN3, *, seed: int = 0, wide: bool = False) -> FusedCase:
    """Random numbers; `wide`: positions and slots in int64."""
    some = paged_case(lens, heads, seed=seed)
    slots = torch.full((len(lens),), -1, dtype=torch.int64 if wide else torch.int32)
    for s, length in enumerate(lens):
        if length > 0:
            block, place = divmod(length - 1, heads.block_size)
            page = int(some.block_table[s, block])
            slots[s] = page * heads.block_size + place
            some.k_cache[page, place] = some.v_cache[page, place] = torch.nan
    positions = torch.tensor([max(length - 1, 0) % MAX_POSITIONS for length in lens], dtype=slots.dtype)
    count = heads.query_heads + 2 * heads.kv_heads
    qkv = rows_of_numbers((len(lens), count, HEAD_DIM), heads.dtype, seed=seed + 1).flatten(1)
    weights = tuple(norm_weight(HEAD_DIM, heads.dtype, seed=seed + 2 + i) for i in range(2))
    return FusedCase(some, qkv, positions, slots, (weights[0], weights[1]))


def operands(backend: Backend, some: FusedCase, *, cache_padding: int = 0) -> dict[str, Guarded]:
    stored = some.stored
    values = {
        "qkv": some.qkv,
        "q_weight": some.weights[0],
        "k_weight": some.weights[1],
        "cos_sin": table(FAR + MAX_POSITIONS)[FAR:],
        "positions": some.positions,
        "slot_mapping": some.slot_mapping,
        "k_cache": stored.k_cache,
        "v_cache": stored.v_cache,
        "block_table": stored.block_table,
        "context_lens": stored.context_lens,
    }
    paddings = {"qkv": some.qkv_padding, "block_table": 1, "k_cache": cache_padding, "v_cache": cache_padding}
    return {name: backend.place(tensor, row_padding=paddings.get(name, 0)) for name, tensor in values.items()}


def fused(
    backend: Backend,
    some: FusedCase,
    cut: Cut,
    *,
    merge: str = "auto",
    prefetch: bool = False,
    workspace: Guarded | None = None,
) -> Result:
    """Runs the operator among guards."""
    facts = {**some.stored.facts, "cut": cut, "merge": merge, "prefetch": prefetch}
    with case(NAME, **facts):
        sizes = (EPS, some.stored.scale, some.heads.query_heads, *cut)
        call = partial(backend.op(NAME), merge=merge, prefetch=prefetch)
        return among_guards(backend, some, cut, operands(backend, some), sizes, call, workspace)


def among_guards(
    backend: Backend,
    some: FusedCase,
    cut: Cut,
    placed: dict[str, Guarded],
    sizes: tuple[Any, ...],
    call: Callable[..., Tensor],
    workspace: Guarded | None,
) -> Result:
    """`call` on what is placed, `sizes` and a workspace: only the caches and the workspace are written."""
    layout = layout_of(some.stored, cut[1])
    workspace = workspace or backend.place(used_workspace(layout))
    tensors = {name: buffer.tensor for name, buffer in placed.items()}
    out = call(*tensors.values(), *sizes, workspace.tensor)
    assert (out.dtype, out.is_contiguous()) == (some.heads.dtype, True)
    for name, buffer in placed.items():
        (buffer.check_guards if name in ("k_cache", "v_cache") else buffer.check_untouched)(name)
    workspace.check_guards("workspace")
    assert not layout.parts(workspace.tensor).arrived.any(), "the counters are not 0 again"
    return Result(out, tensors["k_cache"], tensors["v_cache"])


@dataclass(frozen=True)
class Expected:
    """What any cut must give: the bits of both caches, and the result in float64, with its bound."""

    written: PagedCase  # q, and the caches with the new tokens
    truth: Tensor
    bound: Tensor

    def assert_met(self, got: Result) -> None:
        assert_same_bits(got.k_cache.cpu(), self.written.k_cache)
        assert_same_bits(got.v_cache.cpu(), self.written.v_cache)
        assert_within(got.out, self.truth, self.bound)


def expected_of(backend: Backend, some: FusedCase) -> Expected:
    """By the product's `qk_norm_rope_cache_write` on the same backend, and the bound of split attention."""
    tensors = {name: buffer.tensor for name, buffer in operands(backend, some).items()}
    caches = tensors["k_cache"], tensors["v_cache"]
    q = write(backend, tuple(tensors[name] for name in TOKEN), caches, some.heads.query_heads)
    written = some.stored.with_(q=q.cpu(), k_cache=caches[0].cpu(), v_cache=caches[1].cpu())
    return Expected(written, *truth_and_bound(written))


def write(backend: Backend, token: Sequence[Tensor], caches: tuple[Tensor, Tensor], query_heads: int) -> Tensor:
    """Runs `qk_norm_rope_cache_write`, whatever kernel is under test; `token` as in TOKEN. → q."""
    with poisoned_memory():
        if backend.name in ("sim", "cuda"):
            loading.backend(backend.name)
        name = "qk_norm_rope_cache_write"
        run = REFERENCES[name] if backend.name == "reference" else getattr(backend.namespace, name)
        q: Tensor = run(*token, *caches, EPS, query_heads)[0]
    return q
