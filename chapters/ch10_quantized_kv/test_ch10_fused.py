"""Fused decode attention over codes on every backend: the bits of its two parts, in any cut, batch, page and format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch10_quantized_kv.combinations import casts
from chapters.ch10_quantized_kv.fused_cases import NAME, ORTHOGONAL, check_same, new_tokens
from chapters.ch10_quantized_kv.fused_checks import FUSED_CHECKS
from qwen_cuda.kv_cache_format import CastArgs, Layout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import examples, seeds


@pytest.mark.parametrize("check", FUSED_CHECKS, ids=lambda check: check.__name__)
def test_fused_attention_over_codes(backend: Backend, check: Callable[[Backend], None]) -> None:
    backend.require(NAME)
    check(backend)


@examples(20)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=3),
    st.sampled_from(casts()),
    st.builds(
        Heads,
        kv_heads=st.integers(1, 2),
        group=st.integers(1, 8),
        block_size=st.sampled_from(BLOCK_SIZES),
        dtype=st.sampled_from([BF16, FP16]),
    ),
    st.sampled_from(["token_interleaved", "block_wide"]),
    st.tuples(st.integers(1, 8).map(lambda n: 16 * n), st.integers(1, 16)),
    st.sampled_from([0.0, ORTHOGONAL]),
    seeds(),
    st.booleans(),
)
def test_any_batch_fused_over_codes(
    backend: Backend,
    lens: Sequence[int],
    cast: CastArgs,
    heads: Heads,
    layout: Layout,
    cut: tuple[int, int],
    transform: float,
    seed: int,
    prefetch: bool,
) -> None:
    backend.require(NAME)
    some = new_tokens(lens, cast, heads, layout, hadamard_scale=transform, seed=seed)
    check_same(backend, some, cut, prefetch=prefetch)
