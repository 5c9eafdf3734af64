"""Fused decode attention on every backend: the bits of its two parts, in any cut, batch, page and lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.fused_cases import HEAD_DIM, NAME, fused, fused_case, one_after_the_other
from chapters.ch06_split_attention.fused_checks import FUSED_CHECKS
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import examples, seeds


@pytest.mark.parametrize("check", FUSED_CHECKS, ids=lambda check: check.__name__)
def test_fused_attention(backend: Backend, check: Callable[[Backend], None]) -> None:
    backend.require(NAME)
    check(backend)


@examples(20)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=3),
    st.builds(
        Heads,
        kv_heads=st.integers(1, 2),
        group=st.sampled_from(GROUPS),
        head_dim=st.just(HEAD_DIM),
        block_size=st.sampled_from(BLOCK_SIZES),
        dtype=st.sampled_from([BF16, FP16]),
    ),
    st.tuples(st.integers(1, 8).map(lambda n: 16 * n), st.integers(1, 16)),
    seeds(),
    st.booleans(),
)
def test_any_fused_batch(
    backend: Backend, lens: Sequence[int], heads: Heads, cut: tuple[int, int], seed: int, prefetch: bool
) -> None:
    backend.require(NAME)
    some = fused_case(lens, heads, seed=seed)
    fused(backend, some, cut, prefetch=prefetch).assert_same(one_after_the_other(backend, some, cut))
