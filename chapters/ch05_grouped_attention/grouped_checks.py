"""What chapter 5 promises of paged attention, each promise a function of the backend that must keep it.

They raise AssertionError. The tests run them on every backend, the tests of the ladder on each step, and each mutant
must fail one of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from chapters.ch05_grouped_attention.paged_cases import (
    BF16,
    FP16,
    Heads,
    PagedCase,
    grouped,
    paged_case,
    place,
    truth_and_bound,
)
from qwen3_ref.functional import attention_naive
from qwen3_ref.paged import gather
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

GROUPS = (1, 2, 3, 4, 5, 7, 8)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
QWEN3 = Heads(kv_heads=2, group=2)  # the shape of Qwen3-0.6B, with fewer heads
RAGGED = (0, 1, 5, 37, 130)


def check_single_heads(backend: Backend) -> None:
    """One query head a KV head, contexts of at most two pages: online softmax alone, with maxima that rise and fall."""
    for dtype in (BF16, FP16):
        for head_dim in (64, 128):
            heads = Heads(kv_heads=2, group=1, head_dim=head_dim, dtype=dtype)
            for spread in (0.3, 1.0, 30.0):
                grouped(backend, paged_case((0, 1, 5, 16, 31), heads, seed=head_dim, spread=spread))


def check_one_token(backend: Backend) -> None:
    """A context of one token gives that token's value, bit for bit, whatever the score: also where 2^score is 0."""
    for dtype in (BF16, FP16):
        some = paged_case((1,) * 6, Heads(kv_heads=2, group=2, dtype=dtype), seed=3, spread=300.0)
        out = grouped(backend, some)
        for s in range(6):
            value = gather(some.v_cache, some.block_table[s], 0, 1)[0, :, 0]
            assert_same_bits(out[s].cpu(), value.repeat_interleave(2, 0))


def check_groups_and_head_dims(backend: Backend) -> None:
    """Query head h reads KV head h // group, for each size of group and of head, in a ragged batch."""
    for head_dim in (64, 128):
        for group in GROUPS:
            for dtype in (BF16, FP16):
                heads = Heads(kv_heads=2 if group < 5 else 1, group=group, head_dim=head_dim, dtype=dtype)
                grouped(backend, paged_case((37, 0, 3), heads, seed=group))


def check_contexts_at_borders(backend: Backend) -> None:
    """One token fewer and more than a page, a turn of a warp and a turn of the block, of either mapping."""
    for heads in (Heads(kv_heads=1), Heads(kv_heads=1, group=8), Heads(kv_heads=1, head_dim=64)):
        borders = (4, 8, 16, 32, 64, 128, 256)
        grouped(backend, paged_case([n + d for n in borders for d in (-1, 0, 1)], heads, seed=heads.group))


def check_block_sizes(backend: Backend) -> None:
    """Pages of 8 to 256 tokens, in any order."""
    for block_size in BLOCK_SIZES:
        heads = Heads(kv_heads=2, group=2, block_size=block_size)
        grouped(backend, paged_case((block_size - 1, block_size, block_size + 1, 300), heads, seed=block_size))


def check_context_of_nothing(backend: Backend) -> None:
    """A context of 0, or of less, gives zeros and no NaN, beside others that give numbers."""
    for heads in (QWEN3, Heads(kv_heads=1, group=7, head_dim=64)):
        some = paged_case(RAGGED, heads, seed=1)
        lens = some.context_lens.clone()
        lens[3] = -7
        out = grouped(backend, some.with_(context_lens=lens))
        assert not out[0].any()
        assert not out[3].any()
        grouped(backend, paged_case((0, 0), heads))


def check_context_beyond_the_table(backend: Backend) -> None:
    """A context that is longer than its row of the table ends where the row ends."""
    some = paged_case((48, 32), Heads(kv_heads=2, group=2), spare=0)
    lens = torch.tensor([49, 2**31 - 1], dtype=torch.int32)
    table = some.block_table.clone()
    table[1, 2] = table[1, 1]
    grouped(backend, some.with_(context_lens=lens, block_table=table))


def check_blocks_that_are_none(backend: Backend) -> None:
    """An entry outside the cache is skipped with its tokens, first, last or all of them; nothing is read there."""
    some = paged_case((70, 70, 40, 20), QWEN3, seed=5)
    table = some.block_table.clone()
    count = some.k_cache.shape[0]
    table[0, 0], table[0, 3], table[1, 4], table[1, 1] = -1, count, 2**31 - 1, -(2**31)
    table[2] = count + 5
    out = grouped(backend, some.with_(block_table=table))
    assert not out[2].any()


def check_large_scores(backend: Backend) -> None:
    """Scores of ±1000, whose exponentials overflow: alone the difference from the maximum counts."""
    for dtype in (BF16, FP16):
        for spread in (30.0, 100.0):
            grouped(backend, paged_case((5, 150), Heads(kv_heads=2, group=2, dtype=dtype), spread=spread, seed=2))


def check_maximum_may_come_at_any_time(backend: Backend) -> None:
    """Scores that rise with each token, fall, or have their peak in the middle: old sums are rescaled each time."""
    for heads in (Heads(kv_heads=1, group=1), Heads(kv_heads=1, group=8)):
        some = paged_case((200, 200, 200), heads, seed=9)
        positions = torch.arange(200)
        peaks = (positions / 4.0, (200 - positions) / 4.0, -(positions - 100).abs() / 2.0)
        k_cache, q = some.k_cache.clone(), torch.ones_like(some.q)
        for s, wanted in enumerate(peaks):
            for t in range(200):
                block = some.block_table[s, t // 16]
                k_cache[block, t % 16] = wanted[t].to(k_cache.dtype) / heads.head_dim
        grouped(backend, some.with_(k_cache=k_cache, q=q, scale=1.0))


def check_scale(backend: Backend) -> None:
    """Any finite scale: 0 gives the mean of the values, a negative one turns the order round."""
    for scale in (0.0, -0.3, 1.0, 0.088388):
        grouped(backend, paged_case((33, 200), QWEN3, scale=scale, seed=4))


def check_packed_queries(backend: Backend) -> None:
    """q as a part of packed QKV: sequences lie (Hq + 2 Hkv) · D apart."""
    for padding in (8, 2 * QWEN3.kv_heads * QWEN3.head_dim):
        grouped(backend, paged_case((20, 40, 1), QWEN3, seed=7).with_(q_padding=padding))


def check_same_bits_alone_and_anywhere(backend: Backend) -> None:
    """Twice the same; alone and in a batch the same; wherever the pages lie and whatever else is in the table."""
    lens = (90, 7, 300)
    for heads in (QWEN3, Heads(kv_heads=1, group=4, head_dim=64, dtype=FP16)):
        some = paged_case(lens, heads, seed=11)
        batch = grouped(backend, some)
        assert_same_bits(grouped(backend, some), batch)
        assert_same_bits(grouped(backend, paged_case(lens, heads, seed=11, shuffle=12, spare=5)), batch)
        for s in range(len(lens)):
            row = slice(s, s + 1)
            alone = some.with_(q=some.q[row], block_table=some.block_table[row], context_lens=some.context_lens[row])
            assert_same_bits(grouped(backend, alone), batch[row])


def check_nan_stays_with_its_head(backend: Backend) -> None:
    """A NaN in one key spoils the heads that read it, in one value one dimension of them; nobody else changes."""
    some = paged_case((40, 150), QWEN3, seed=13)
    clean = grouped(backend, some)
    for name, spoilt in (("k_cache", 128), ("v_cache", 1)):
        cache = getattr(some, name).clone()
        cache[some.block_table[1, 5], 3, 1, 70] = torch.nan
        out = backend.op("paged_attention_grouped")(*place(backend, some.with_(**{name: cache})).arguments)
        assert int(out[1, 2:].isnan().sum()) == 2 * spoilt
        assert int(out.isnan().sum()) == 2 * spoilt
        whole = ~out.isnan()
        whole[1, 2:] = False
        assert_same_bits(out[whole], clean[whole])


def check_infinity_is_not_hidden(backend: Backend) -> None:
    """An infinite value that is read gives no finite result; one beyond the context is not read."""
    some = paged_case((40,), QWEN3, seed=14)
    v_cache = some.v_cache.clone()
    v_cache[some.block_table[0, 2], 7, 0, 5] = torch.inf  # position 39, the last
    v_cache[some.block_table[0, 2], 8:] = torch.inf
    out = backend.op("paged_attention_grouped")(*place(backend, some.with_(v_cache=v_cache)).arguments)
    assert not out[0, :2, 5].isfinite().any()
    assert int((~out.isfinite()).sum()) == 2


def check_no_worse_than_hugging_faces_order(backend: Backend) -> None:
    """The largest error is no more than that of scores and weights rounded on the way, as eager attention does."""
    for dtype in (BF16, FP16):
        some = paged_case((150, 64), Heads(kv_heads=2, group=2, dtype=dtype), seed=15)
        truth, _ = truth_and_bound(some)
        ours = (grouped(backend, some).cpu().double() - truth).abs().max()
        eager = torch.stack([_eager(some, s) for s in range(2)])
        assert float(ours) <= float((eager.double() - truth).abs().max())


def _eager(some: PagedCase, s: int) -> torch.Tensor:
    end = int(some.context_lens[s])
    k, v = (gather(cache, some.block_table[s], 0, end) for cache in (some.k_cache, some.v_cache))
    return attention_naive(some.q[s][None, :, None], k, v, some.scale)[0, :, 0]


def check_long_context(backend: Backend) -> None:
    """Thousands of tokens in one sequence."""
    grouped(backend, paged_case((2100,), Heads(kv_heads=1, group=2), seed=16))
    grouped(backend, paged_case((1025,), Heads(kv_heads=1, group=8, head_dim=64, block_size=256), seed=17))


GROUPED_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_single_heads,
    check_one_token,
    check_packed_queries,
    check_context_of_nothing,
    check_scale,
    check_groups_and_head_dims,
    check_contexts_at_borders,
    check_maximum_may_come_at_any_time,
    check_large_scores,
    check_blocks_that_are_none,
    check_context_beyond_the_table,
    check_nan_stays_with_its_head,
    check_infinity_is_not_hidden,
    check_same_bits_alone_and_anywhere,
    check_no_worse_than_hugging_faces_order,
    check_block_sizes,
    check_long_context,
)
# Long contexts cost more than all others together.
LARGE = frozenset((check_long_context, check_block_sizes))
