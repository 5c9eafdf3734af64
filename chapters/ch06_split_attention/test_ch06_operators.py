"""Split attention and the merge on every backend: any cut and group, one workspace for many calls, determinism, NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads, paged_case
from chapters.ch06_split_attention.launch_checks import LAUNCH_CHECKS
from chapters.ch06_split_attention.split_checks import SPLIT_CHECKS, partials, split
from qwen_cuda.attention_workspace import PARTITION_GRAIN, partition_tokens
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import examples, seeds
from qwen_cuda.testing.ulp import assert_same_bits


@pytest.mark.parametrize("check", [*LAUNCH_CHECKS, *SPLIT_CHECKS], ids=lambda check: check.__name__)
def test_split_attention(backend: Backend, check: Callable[[Backend], None]) -> None:
    backend.require("paged_attention_split")
    check(backend)


@examples(60)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=3),
    st.builds(
        Heads,
        kv_heads=st.integers(1, 2),
        group=st.sampled_from(GROUPS),
        head_dim=st.sampled_from([64, 128]),
        block_size=st.sampled_from(BLOCK_SIZES),
        dtype=st.sampled_from([BF16, FP16]),
    ),
    st.tuples(st.integers(1, 8).map(lambda n: 16 * n), st.integers(1, 14)),
    seeds(),
    st.sampled_from([0.3, 1.0, 8.0]),
)
def test_any_cut_of_any_batch(
    backend: Backend, lens: Sequence[int], heads: Heads, cut: tuple[int, int], seed: int, spread: float
) -> None:
    some = paged_case(lens, heads, seed=seed, spread=spread)
    assert_same_bits(split(backend, some, cut), partials(backend, some, cut))


@examples(300)
@given(st.integers(0, 2**30), st.integers(1, 2**16).map(lambda n: n * PARTITION_GRAIN), st.integers(1, 1000))
def test_partitions_hold_the_context_and_are_no_larger_than_they_must_be(
    context: int, partition_size: int, partitions: int
) -> None:
    size = partition_tokens(context, partition_size, partitions)
    assert size * partitions >= context
    assert size % PARTITION_GRAIN == 0
    assert size == partition_size or (size - PARTITION_GRAIN) * partitions < context
    assert size >= partition_size
