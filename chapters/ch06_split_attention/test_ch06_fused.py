"""Fused decode attention on every backend: right in any cut, batch, page and lane, whoever merges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.fused_cases import HEAD_DIM, NAME, fused_case
from chapters.ch06_split_attention.fused_checks import FUSED_CHECKS, check_cuts
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
)
def test_any_fused_batch(backend: Backend, lens: Sequence[int], heads: Heads, cut: tuple[int, int], seed: int) -> None:
    backend.require(NAME)
    check_cuts(backend, fused_case(lens, heads, seed=seed), cut)
