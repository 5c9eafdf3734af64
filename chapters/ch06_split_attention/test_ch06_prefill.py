"""Attention of a prompt's chunks: each token's is that of the whole prompt, wherever the chunks and pages end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chapters.ch05_grouped_attention.paged_cases import assert_within
from chapters.ch06_split_attention.prefill_attention import first_chunk_attention, later_chunk_attention
from qwen3_ref.functional import attention_naive, causal_mask, repeat_kv
from qwen_cuda.testing.strategies import examples, seeds

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 2.0**-24  # a rounding of float32, relative
D, SCALE = 128, 128**-0.5


def heads_first(x: Tensor) -> Tensor:
    """`[t, H, D]` → `[1, H, t, D]` float64."""
    return x.double().transpose(0, 1)[None]


def truth_and_bound(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Float64's `[t, Hq, D]`, and how far float32 may be from it.

    A score sums D products: off by D · EPS of their sizes' sum, and its weight by as much, relatively, as is the sum of
    weights; a weighted sum of t values adds t roundings, the exponential, the quotient and the scale a few.
    """
    q, k, v = (heads_first(x) for x in (q, k, v))
    tokens = q.shape[2]
    mask = causal_mask(tokens, tokens)
    truth = attention_naive(q, k, v, SCALE, mask)
    size = attention_naive(q, k, v.abs(), SCALE, mask)
    sizes = SCALE * torch.matmul(q.abs(), repeat_kv(k.abs(), q.shape[1] // k.shape[1]).transpose(2, 3))
    score_error = D * EPS * sizes.masked_fill(~mask, 0).amax(-1, keepdim=True)
    bound = size * (2 * score_error + (tokens + 16) * EPS)
    return truth[0].transpose(0, 1), bound[0].transpose(0, 1)


@examples(40)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (2, 4), (2, 14)]),
    st.sampled_from([8, 16, 32]),
    seeds(),
)
def test_any_chunks_give_the_attention_of_the_whole_prompt(
    chunks: list[int], heads: tuple[int, int], block_size: int, seed: int
) -> None:
    """Pages lie in any order, and what is in none of the prompt's is NaN."""
    generator = torch.Generator().manual_seed(seed)
    kv_heads, query_heads = heads
    tokens = sum(chunks)
    q = torch.randn(tokens, query_heads, D, generator=generator)
    k, v = (torch.randn(tokens, kv_heads, D, generator=generator) for _ in range(2))
    needed = -(-tokens // block_size)
    blocks = torch.randperm(needed + 3, generator=generator)[: needed + 1].int()
    caches = torch.full((2, needed + 3, block_size, kv_heads, D), torch.nan)
    for i in range(tokens):
        caches[:, blocks[i // block_size], i % block_size] = torch.stack((k[i], v[i]))

    parts, end = [], 0
    for count in chunks:
        start, end = end, end + count
        part = q[start:end].to(DEVICE)
        if start == 0:
            parts.append(first_chunk_attention(part, k[:end].to(DEVICE), v[:end].to(DEVICE), SCALE))
        k_cache, v_cache = caches.to(DEVICE)
        later = later_chunk_attention(part, k_cache, v_cache, blocks.to(DEVICE), end, SCALE)
        if start == 0:
            assert_within(later, *(x[:end] for x in truth_and_bound(q, k, v)))
        else:
            parts.append(later)
    assert_within(torch.cat(parts), *truth_and_bound(q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_chunk_is_of_its_querys_dtype(dtype: torch.dtype) -> None:
    """Keys and values of another: a model in float32 over a cache of 16 bits, and the other way."""
    cache = torch.ones(2, 16, 1, D, dtype=dtype, device=DEVICE)
    blocks = torch.tensor([1, 0], device=DEVICE, dtype=torch.int32)
    for wanted in (torch.float32, dtype):
        q = torch.ones(3, 2, D, dtype=wanted, device=DEVICE)
        out = later_chunk_attention(q, cache, cache, blocks, 20, SCALE)
        assert (out.dtype, out.shape) == (wanted, q.shape)
        assert out.eq(1).all()
