"""Checks of grouped-query attention, its mask and its partitions against plain loops in float64.

Like `formula_checks`: the tests want them to pass, the mutants must make them fail.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from qwen3_ref import functional as F


def assert_close64(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    """Equal up to float64's rounding: sums of at most 40 products of numbers of order one, and one exponential each."""
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def random_qkv(
    heads: int, kv_heads: int, queries: int, keys: int, seed: int, spread: float = 1.0, batch: int = 2, dim: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """`q: [b, Hq, t, D]`, `k, v: [b, Hkv, s, D]` float64; `spread` widens the scores."""
    generator = torch.Generator().manual_seed(seed)
    q = spread * torch.randn(batch, heads, queries, dim, generator=generator, dtype=torch.float64)
    k = torch.randn(batch, kv_heads, keys, dim, generator=generator, dtype=torch.float64)
    v = torch.randn(batch, kv_heads, keys, dim, generator=generator, dtype=torch.float64)
    return q, k, v


def attention_truth(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention of every head and query by the definition, in NumPy. A query that may read nothing gives zeros."""
    queries, keys, values = q.double().numpy(), k.double().numpy(), v.double().numpy()
    batch, heads, t, _ = queries.shape
    group_size = heads // keys.shape[1]
    out = np.zeros_like(queries)
    for b in range(batch):
        for h in range(heads):
            for row in range(t):
                visible = [s for s in range(keys.shape[2]) if mask is None or bool(mask[row, s])]
                if not visible:
                    continue
                scores = [scale * math.fsum(queries[b, h, row] * keys[b, h // group_size, s]) for s in visible]
                weights = [math.exp(score - max(scores)) for score in scores]
                for weight, s in zip(weights, visible, strict=True):
                    out[b, h, row] += weight / math.fsum(weights) * values[b, h // group_size, s]
    return torch.from_numpy(out)


def merged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cuts: Sequence[int],
    mask: Tensor | None = None,
    seed: int | None = None,
) -> Tensor:
    """Attention by partitions between `cuts` (equal cuts give an empty one), merged in an order shuffled by `seed`."""
    edges = [0, *sorted(cuts), k.shape[2]]
    partials = [
        F.attention_partition(q, k[:, :, a:b], v[:, :, a:b], scale, None if mask is None else mask[:, a:b])
        for a, b in pairwise(edges)
    ]
    if seed is not None:
        random.Random(seed).shuffle(partials)
    return F.merge_partitions(partials)


def check_causal_mask() -> None:
    """Query i of t stands at position s − t + i and sees exactly the keys up to itself."""
    for t, s in ((1, 1), (1, 7), (4, 4), (3, 10), (10, 10), (2, 33)):
        want = [[key <= s - t + row for key in range(s)] for row in range(t)]
        assert F.causal_mask(t, s).tolist() == want, (t, s)


def check_query_head_reads_its_groups_kv_head() -> None:
    """Query head h reads KV head h // g. With 2 KV heads and 4 queries each, h % Hkv and others give another answer."""
    for kv_heads, group_size in ((1, 1), (4, 1), (2, 4), (3, 2), (2, 7), (2, 8)):
        x = torch.arange(kv_heads, dtype=torch.float64).view(1, kv_heads, 1, 1).expand(2, kv_heads, 3, 4)
        want = torch.tensor([h // group_size for h in range(kv_heads * group_size)], dtype=torch.float64)
        got = F.repeat_kv(x, group_size)
        assert got.shape == (2, kv_heads * group_size, 3, 4)
        assert torch.equal(got, want.view(1, -1, 1, 1).expand_as(got))
        q = torch.randn(2, kv_heads * group_size, 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for attention in (F.attention_naive, F.attention_online):
            out = attention(q, x, x, 0.5)  # every value of a head is the head's number, and so is their mean
            assert_close64(out, want.view(1, -1, 1, 1).expand_as(out))


def check_attention_equals_the_definition() -> None:
    """Naive, online and partitioned attention in float64, for groups of 1 to 8, with and without a mask."""
    for seed, group_size in enumerate((1, 2, 4, 7, 8)):
        for t, s in ((1, 9), (5, 5), (3, 12)):
            q, k, v = random_qkv(2 * group_size, 2, t, s, seed, spread=3)
            for mask in (None, F.causal_mask(t, s)):
                truth = attention_truth(q, k, v, 0.3, mask)
                assert_close64(F.attention_naive(q, k, v, 0.3, mask), truth)
                for block in (1, 4, 64):
                    assert_close64(F.attention_online(q, k, v, 0.3, mask, block), truth)
                assert_close64(merged(q, k, v, 0.3, (2, 3), mask), truth)


def check_merge_for_partitions_of_every_kind() -> None:
    """Empty, single-key, all and fully masked partitions, maxima in any of them, merged in any order."""
    # Scores up to ±2000: their exponentials overflow unless shifted, and a missing rescale is gross. Each score is
    # right to 2000 · 8 · 2^-53 = 2e-12, and so is each weight.
    q, k, v = random_qkv(4, 2, 4, 12, seed=5, spread=200)
    mask = F.causal_mask(4, 12)
    mask[:, 3:6] = False  # a partition that nobody may read
    mask[1] = False  # and a query that may read nothing
    truth = attention_truth(q, k, v, 1.0, mask)
    for cuts in ((), (0,), (12,), (3, 6), (3, 3, 6), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (0, 6, 6, 12)):
        for seed in range(4):
            assert_close64(merged(q, k, v, 1.0, cuts, mask, seed), truth, 1e-11)
    assert_close64(F.attention_online(q, k, v, 1.0, mask, 3), truth, 1e-11)


def check_softmax() -> None:
    """Equals the definition for small, huge and −inf scores; −inf alone gives zeros; 16 bits do not overflow."""
    rows = [
        [0.0, 1.0, 2.0],
        [1e4, 1e4 - 1, -1e4],
        [-math.inf, 3.0, -math.inf],
        [-1e300, 0.0, 1.0],
        [700.0, 710.0, 720.0],
    ]
    for row in rows:
        weights = [math.exp(score - max(row)) for score in row]
        want = torch.tensor([weight / math.fsum(weights) for weight in weights], dtype=torch.float64)
        got = F.softmax(torch.tensor(row, dtype=torch.float64))
        torch.testing.assert_close(got, want, rtol=1e-14, atol=0)
    assert F.softmax(torch.full((2, 3), -math.inf)).tolist() == [[0.0] * 3] * 2
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        got = F.softmax(torch.full((1000,), 6e4).to(dtype))  # e^60000 overflows, and so does a float16 sum of 1000
        torch.testing.assert_close(got.double(), torch.full((1000,), 1e-3, dtype=torch.float64), rtol=4e-3, atol=0)


ATTENTION_CHECKS = (
    check_causal_mask,
    check_query_head_reads_its_groups_kv_head,
    check_attention_equals_the_definition,
    check_merge_for_partitions_of_every_kind,
    check_softmax,
)
