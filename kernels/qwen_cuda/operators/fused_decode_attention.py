"""From packed QKV of one new token a sequence to the output of its attention, in one launch (chapter 6).

Sources: those of `qk_norm_rope_cache_write` and of `paged_attention_split`, which it joins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM
from qwen_cuda.operators.registration import register


def fused_decode_attention(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    eps: float,
    scale: float,
    num_heads: int,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    merge: str = "auto",
    prefetch: bool = False,
) -> Tensor:
    """`qk_norm_rope_cache_write` and then `paged_attention_split`.

    Both caches get the bits of the first. The result lies within the bound of the second, but its sums run in another
    order: bits may differ. They are the same each time, alone and in a batch, by either merge, with or without
    `prefetch`.

    The last token of each context is the new one: `slot_mapping[s]` is the slot that `block_table[s]` has for token
    `context_lens[s] − 1`, and `positions[s]` is its position. Its K and V are used as they come and stored there.

    Args:
        qkv: `[b, (Hq + 2 Hkv) · 128]` in bfloat16 or float16. Its rows, the weights `[128]` and the rows of `cos_sin`
            begin at multiples of 16 bytes.
        positions, slot_mapping: `[b]`, int64 or int32. A slot that the cache does not have, such as −1, stores nothing:
            only a context of 0 has a result then. A position that `cos_sin` does not have gives NaN and stores nothing.
        context_lens: `[b]` int32, the new token counted. 0 gives zeros.
        partition_size, partitions, workspace: as for `paged_attention_split`. A single partition of at most 192 or 256
            tokens is read in one turn by two blocks a KV head, each with half of the values' dimensions, if no more
            than two query heads share it.
        merge: who merges the partitions: `"cluster"`, the blocks of a thread block cluster (2, 4, 8 or 16 partitions,
            compute capability 9.0); `"last_block"`, the one that ends last; `"auto"`, a cluster of up to 8 where it can
            be.
        prefetch: read all but `qkv` while the kernels ahead in the stream still run. Then none of them, back to the
            last one that was waited for, may write anything else that is read here. A decode step in a CUDA graph, in
            which only this call writes this cache, meets that.
    Returns:
        `[b, Hq, 128]`, contiguous.
    Raises:
        RuntimeError: an argument does not meet this, or requires a gradient; the sentence says which.
    """
    return torch.ops.qwen_cuda.fused_decode_attention(
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        eps,
        scale,
        num_heads,
        partition_size,
        partitions,
        workspace,
        merge=merge,
        prefetch=prefetch,
    )


def _fake(qkv: Tensor, *others: object, **options: object) -> Tensor:
    num_heads = others[11]
    assert isinstance(num_heads, int | torch.SymInt)
    return qkv.new_empty((qkv.shape[0], num_heads, HEAD_DIM))


register("fused_decode_attention", fake=_fake)
