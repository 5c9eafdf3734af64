"""Attention of one new token a sequence over its paged KV cache, by whole contexts (chapter 5) or parts (chapter 6).

Sources: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Kwon et al., Efficient Memory
Management for Large Language Model Serving with PagedAttention, 2023; Dao et al., Flash-Decoding for long-context
inference, 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.paged import paged_attention as reference_paged_attention
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.operators.registration import register


def paged_attention_grouped(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """`softmax(scale · q Kᵀ) V` over each sequence's context, in fp32 and rounded once. A block reads one KV head.

    Args:
        q: `[b, Hq, D]` bfloat16 or float16, D 64 or 128. The heads of a sequence lie side by side and begin at a
            multiple of 16 bytes: the query part of packed QKV will do.
        k_cache, v_cache: `[num_blocks, block_size, Hkv, D]`, dense; block_size is a power of two from 8 to 256, and
            each KV head serves `Hq / Hkv` = 1 to 8 query heads.
        block_table: `[b, max_blocks]` int32. An entry outside `[0, num_blocks)` is skipped with all its tokens: nothing
            is read out of bounds. `check_block_table` reports such entries.
        context_lens: `[b]` int32, tokens to attend to. 0 or less gives zeros; what the table cannot hold is left out.
    Returns:
        `[b, Hq, D]`, contiguous. The bits depend on the sequence alone, not on the batch around it.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    Differentiable: when an argument requires a gradient, `qwen3_ref.paged.paged_attention` runs instead.
    """
    return torch.ops.qwen_cuda.paged_attention_grouped(q, k_cache, v_cache, block_table, context_lens, scale)


def paged_attention_split(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    merge: str = "auto",
) -> Tensor:
    """As `paged_attention_grouped`, each context cut into partitions that blocks of their own read, in one launch.

    Args:
        partition_size: tokens of a partition, a multiple of 16. A context of more than `partitions · partition_size`
            tokens is cut into larger ones, so a graph that was captured once serves contexts of any length.
        partitions: blocks for each KV head, 1 to 65535. Those that have no tokens leave at once.
        workspace: float32, of `attention_workspace`. Its contents are overwritten; two calls that run at the same time
            must not share one. After a launch that failed, zero it.
        merge: who merges the partitions: `"cluster"`, the blocks of a thread block cluster (2, 4, 8 or 16 partitions,
            compute capability 9.0); `"last_block"`, the one that ends last; `"auto"`, a cluster of up to 8 where it can
            be. The bits are the same.
    Returns:
        `[b, Hq, D]`. The merge runs in the order of partitions, so the same arguments give the same bits.
    """
    return torch.ops.qwen_cuda.paged_attention_split(
        q, k_cache, v_cache, block_table, context_lens, scale, partition_size, partitions, workspace, merge=merge
    )


def paged_attention_partials(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
) -> None:
    """The first half of `paged_attention_split`: leaves each partition's `(m, l, o)` in `workspace`.

    `WorkspaceLayout.parts` gives them. A partition without tokens has m = −inf, l = 0 and an undefined o.
    """
    torch.ops.qwen_cuda.paged_attention_partials(
        q, k_cache, v_cache, block_table, context_lens, scale, partition_size, partitions, workspace
    )


def merge_partitions(workspace: Tensor, out: Tensor, partitions: int) -> None:
    """The second half: merges the partials of a workspace into `out: [b, Hq, D]`, to the bits of the whole."""
    torch.ops.qwen_cuda.merge_partitions(workspace, out, partitions)


def attention_workspace(q: Tensor, kv_heads: int, partitions: int) -> Tensor:
    """A workspace for `q: [b, Hq, D]` on its device, zeroed."""
    return WorkspaceLayout(q.shape[0], q.shape[1], kv_heads, q.shape[2], partitions).new(q.device)


def check_block_table(block_table: Tensor, context_lens: Tensor, num_blocks: int, block_size: int) -> None:
    """For debugging: reports what the kernels skip or leave out. Waits for the device.

    Raises:
        ValueError: a context is negative or longer than its row of the table, or an entry that it needs is no block.
    """
    table, lens = block_table.cpu().long(), context_lens.cpu().long()
    for s, context in enumerate(lens.tolist()):
        most = table.shape[1] * block_size
        if not 0 <= context <= most:
            raise ValueError(
                f"context_lens[{s}] is {context}; it must be 0 to {most}, what its row of the table holds."
            )
        for i, block in enumerate(table[s, : -(-context // block_size)].tolist()):
            if not 0 <= block < num_blocks:
                raise ValueError(
                    f"block_table[{s}, {i}] is {block}; the cache has blocks 0 to {num_blocks - 1}, and a context of "
                    f"{context} tokens needs this one."
                )


def _fake_attention(q: Tensor, *others: object, **options: object) -> Tensor:
    return q.new_empty(q.shape)


def _fake_in_place(*arguments: object) -> None:
    """Nothing is returned, so nothing has a shape."""


register("paged_attention_grouped", fake=_fake_attention, reference=reference_paged_attention)
register("paged_attention_split", fake=_fake_attention)
register("paged_attention_partials", fake=_fake_in_place)
register("merge_partitions", fake=_fake_in_place)
