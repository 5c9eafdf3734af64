"""Attention over a paged KV cache: tokens lie in blocks, and a table says in which. Sequence by sequence, in PyTorch.

The token at position t of sequence s lies in slot `t % block_size` of block `block_table[s, t // block_size]` of
`k_cache, v_cache: [num_blocks, block_size, Hkv, D]`. An entry that is no block of the cache is skipped with its tokens.
"""

from __future__ import annotations

from torch import Tensor, arange, stack

from qwen3_ref.functional import Partial, attention_partition, merge_partitions


# --8<-- [start:gather]
def gather(cache: Tensor, blocks: Tensor, begin: int, end: int) -> Tensor:
    """The keys or values of positions `[begin, end)`. `blocks: [max_blocks]`, a row of the table → `[1, Hkv, t, D]`."""
    block_size = cache.shape[1]
    positions = arange(begin, end, device=cache.device)
    entries = blocks.long()[positions // block_size]
    there = (entries >= 0) & (entries < cache.shape[0])
    return cache[entries[there], positions[there] % block_size].transpose(0, 1)[None]


# --8<-- [end:gather]


def context_of(context_lens: Tensor, sequence: int, block_table: Tensor, block_size: int) -> int:
    """The tokens of a sequence: no less than none, and no more than the table can hold."""
    return min(max(int(context_lens[sequence]), 0), block_table.shape[1] * block_size)


def paged_partition(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, scale: float, begin: int, end: int
) -> Partial:
    """What the tokens `[begin, end)` of one sequence give its query. `q: [Hq, D]` → m, l `[Hq, 1]`, o `[Hq, D]`."""
    k, v = (gather(cache, blocks, begin, end) for cache in (k_cache, v_cache))
    m, l, o = attention_partition(q[None, :, None], k, v, scale)  # noqa: E741 - the letter of the literature
    return Partial(m[0, :, 0], l[0, :, 0], o[0, :, 0])


# --8<-- [start:paged_attention]
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """One query a sequence over its whole context. `q: [b, Hq, D]` → `[b, Hq, D]`, rounded once to `q.dtype`.

    `block_table: [b, max_blocks]`, `context_lens: [b]`, integers. A context of 0 gives zeros.
    """
    rows = []
    for s in range(q.shape[0]):
        end = context_of(context_lens, s, block_table, k_cache.shape[1])
        partial = paged_partition(q[s], k_cache, v_cache, block_table[s], scale, 0, end)
        rows.append(merge_partitions([partial]).to(q.dtype))
    return stack(rows) if rows else q.clone()


# --8<-- [end:paged_attention]
