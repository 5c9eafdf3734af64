"""paged_attention_quantized on every backend: formats, codes, scales, groups, cuts, tables, determinism, NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch10_quantized_kv.attention_cases import NAME, attend, quantized_case
from chapters.ch10_quantized_kv.attention_checks import ATTENTION_CHECKS, ORTHOGONAL
from chapters.ch10_quantized_kv.combinations import casts
from qwen_cuda.kv_cache_format import CastArgs, Layout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import examples, seeds


@pytest.mark.parametrize("check", ATTENTION_CHECKS, ids=lambda check: check.__name__)
def test_quantized_attention(backend: Backend, check: Callable[[Backend], None]) -> None:
    backend.require(NAME)
    check(backend)


@examples(30)
@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=3),
    st.sampled_from(casts()),
    st.builds(
        Heads,
        kv_heads=st.integers(1, 2),
        group=st.integers(1, 8),
        block_size=st.sampled_from([8, 16, 128]),
        dtype=st.sampled_from([BF16, FP16]),
    ),
    st.sampled_from(["token_interleaved", "block_wide"]),
    st.tuples(st.integers(1, 6).map(lambda n: 16 * n), st.integers(1, 9)),
    st.sampled_from([0.0, ORTHOGONAL]),
    seeds(),
)
def test_attention_over_any_quantized_batch(
    backend: Backend,
    lens: Sequence[int],
    cast: CastArgs,
    heads: Heads,
    layout: Layout,
    cut: tuple[int, int],
    transform: float,
    seed: int,
) -> None:
    backend.require(NAME)
    attend(backend, quantized_case(lens, cast, heads, layout, hadamard_scale=transform, seed=seed), cut)
