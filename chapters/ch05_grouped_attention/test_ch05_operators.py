"""paged_attention_grouped on every backend: accuracy, ragged batches, tables, determinism, NaN.

`make exercise 5` runs these tests on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPED_CHECKS, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads, grouped, paged_case
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import examples, seeds


@pytest.mark.parametrize("check", GROUPED_CHECKS, ids=lambda check: check.__name__)
def test_paged_attention_grouped(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@examples(60)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
    st.builds(
        Heads,
        kv_heads=st.integers(1, 3),
        group=st.sampled_from(GROUPS),
        head_dim=st.sampled_from([64, 128]),
        block_size=st.sampled_from(BLOCK_SIZES),
        dtype=st.sampled_from([BF16, FP16]),
    ),
    seeds(),
    st.sampled_from([0.3, 1.0, 8.0]),
)
def test_any_batch(backend: Backend, lens: Sequence[int], heads: Heads, seed: int, spread: float) -> None:
    grouped(backend, paged_case(lens, heads, seed=seed, spread=spread))
