"""Fused decode attention over codes on test cases: a batch with its new tokens, a run among guards, and its equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_runs import EPS
from chapters.ch05_grouped_attention.paged_cases import Heads, assert_within
from chapters.ch06_split_attention import fused_cases as plain
from chapters.ch06_split_attention.fused_cases import FusedCase, Result, fused_case
from chapters.ch06_split_attention.split_cases import Cut, layout_of
from chapters.ch10_quantized_kv.attention_cases import QuantizedCase, in_codes
from chapters.ch10_quantized_kv.fused_candidates import write_token
from qwen_cuda import loading
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat, Layout
from qwen_cuda.testing.backends import Backend, poisoned_memory
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.references import REFERENCES

NAME = "fused_decode_attention_quantized"
ONE_HEAD = Heads(kv_heads=1, group=2)
ORTHOGONAL = 128**-0.5


@dataclass(frozen=True)
class NewTokens:
    """A batch whose last tokens are new: their K and V are in `fused.qkv`, and read as NaN in the caches of `codes`.

    `codes.plain` is `fused.stored`.
    """

    fused: FusedCase
    codes: QuantizedCase

    @property
    def form(self) -> KVCacheFormat:
        return self.codes.form

    @property
    def heads(self) -> Heads:
        return self.fused.heads

    def with_(self, **changes: Any) -> NewTokens:
        """Other qkv, positions, slots, weights."""
        return replace(self, fused=self.fused.with_(**changes))

    def over(self, **changes: Any) -> NewTokens:
        """Other tables, contexts, caches of codes."""
        caches = {name: changes.pop(name) for name in ("k_cache", "v_cache") if name in changes}
        stored = self.fused.stored.with_(**changes)
        return NewTokens(self.fused.with_(stored=stored), replace(self.codes, plain=stored, **caches))


def new_tokens(
    lens: Sequence[int],
    cast: CastArgs,
    heads: Heads = ONE_HEAD,
    layout: Layout = "token_interleaved",
    *,
    hadamard_scale: float = ORTHOGONAL,
    block_padding: int = 0,
    seed: int = 0,
    wide: bool = False,
) -> NewTokens:
    """Random numbers; `wide`: positions and slots in int64."""
    fused = fused_case(lens, heads, seed=seed, wide=wide)
    codes = in_codes(fused.stored, cast, layout, hadamard_scale=hadamard_scale, block_padding=block_padding)
    return NewTokens(fused.with_(stored=codes.plain), codes)


def operands(backend: Backend, some: NewTokens) -> dict[str, Guarded]:
    """Chapter 6's, with caches of codes."""
    codes = some.codes
    stored = some.fused.stored.with_(k_cache=codes.k_cache, v_cache=codes.v_cache)
    return plain.operands(backend, some.fused.with_(stored=stored), cache_padding=codes.block_padding)


def run(
    backend: Backend,
    some: NewTokens,
    cut: Cut,
    *,
    merge: str = "auto",
    prefetch: bool = False,
    workspace: Guarded | None = None,
) -> Result:
    """Runs the operator among guards."""
    stored, form = some.fused.stored, some.form
    with case(NAME, **{**stored.facts, "cut": cut, "merge": merge, "prefetch": prefetch}):
        kind = (form.heads, form.cast.values, form.cast.group, form.cast.scales, list(form.strides))
        sizes = (EPS, stored.scale, some.heads.query_heads, *kind, *cut)
        call = partial(backend.op(NAME), hadamard_scale=some.codes.hadamard_scale, merge=merge, prefetch=prefetch)
        return plain.among_guards(backend, some.fused, cut, operands(backend, some), sizes, call, workspace)


def in_turn(backend: Backend, some: NewTokens, cut: Cut, *, numbers: bool = True) -> Result:
    """The product's two operators on the same backend, whatever kernel of this one is under test.

    `numbers`: what comes is held against float64, too.
    """
    tensors = {name: buffer.tensor for name, buffer in operands(backend, some).items()}
    stored, form, transform = some.fused.stored, some.form, some.codes.hadamard_scale
    workspace = layout_of(stored, cut[1]).new(backend.device)
    caches = tensors["k_cache"], tensors["v_cache"]
    where = tensors["block_table"], tensors["context_lens"]
    cast, strides = form.cast, list(form.strides)
    with poisoned_memory():
        if backend.name in ("sim", "cuda"):
            loading.backend(backend.name)
        write, attend = (
            REFERENCES[name] if backend.name == "reference" else getattr(backend.namespace, name)
            for name in ("norm_rope_hadamard_quant_store", "paged_attention_quantized")
        )
        of = tensors | {"k_cache": caches[0], "v_cache": caches[1]}
        q = write_token(write, of, form, transform, some.heads.query_heads)
        kind = (form.heads, cast.values, cast.group, cast.scales, strides)
        out = attend(q, *caches, *where, stored.scale, *kind, *cut, workspace, hadamard_scale=transform)
    if numbers:
        exact = replace(some.codes, plain=stored.with_(q=q.cpu()), k_cache=caches[0].cpu(), v_cache=caches[1].cpu())
        assert_within(out, *exact.truth_and_bound())
    return Result(out, *caches)


def check_same(backend: Backend, some: NewTokens, cut: Cut, **options: Any) -> None:
    """One launch gives what two give."""
    run(backend, some, cut, **options).assert_same(in_turn(backend, some, cut))


def rows_of(cache: Tensor, form: KVCacheFormat) -> tuple[Tensor, ...]:
    """Codes and scales by slot: `[slots, heads, …]` each, on the CPU."""
    return tuple(part.flatten(0, 1) for part in form.views(cache.cpu().contiguous()))


def free_slot(some: NewTokens, sequence: int, tokens: int) -> int:
    """A slot of a page that the first `tokens` of a sequence do not lie in."""
    size = some.heads.block_size
    used = set(some.fused.stored.block_table[sequence, : -(-tokens // size)].tolist())
    return size * min(page for page in range(len(some.codes.k_cache)) if page not in used) + 5


def first_token(length: int, some: NewTokens) -> Tensor:
    """The slot of token `length − 1` of the only sequence. `[1]`"""
    size = some.heads.block_size
    page = int(some.fused.stored.block_table[0, (length - 1) // size])
    return torch.tensor([page * size + (length - 1) % size], dtype=torch.int32)
