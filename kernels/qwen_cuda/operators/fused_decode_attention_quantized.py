"""From packed QKV of one new token a sequence to the output of its attention over FP8 or FP4 codes, in one launch.

Sources: those of `norm_rope_hadamard_quant_store` and of `paged_attention_quantized`, which it joins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators.kv_arguments import HadamardArgs
from qwen_cuda.operators.paged_attention_quantized import check_format
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM
from qwen_cuda.operators.registration import register


def fused_decode_attention_quantized(
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
    format: KVCacheFormat,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    hadamard: HadamardArgs | None = None,
    merge: str = "auto",
    prefetch: bool = False,
) -> Tensor:
    """`norm_rope_hadamard_quant_store` and then `paged_attention_quantized`, to the same bits.

    What goes ahead is the call with `NormArgs`, `RopeArgs`, `hadamard`, the format's cast, and `KVCacheOut` with
    `QueriesOut`. The last token of each context is the new one: `slot_mapping[s]` is the slot that `block_table[s]` has
    for token `context_lens[s] − 1`, and `positions[s]` is its position. Its codes are used as they come and stored
    there.

    Args:
        qkv, q_weight, k_weight, cos_sin, positions, slot_mapping: as for `fused_decode_attention`.
        k_cache, v_cache: uint8 `[num_blocks, block_bytes]` of `format`; blocks of both lie equally far apart.
        block_table, context_lens: the new token counted. A context of 0 gives zeros.
        format: as for `paged_attention_quantized`.
        partition_size, partitions, workspace: as for `paged_attention_split`.
        hadamard: the transform of keys before they are quantised, and of queries. V has none.
        merge, prefetch: as for `fused_decode_attention`.
    Returns:
        `[b, num_heads, 128]`, contiguous.
    Raises:
        ValueError: format does not meet this, or a cache is not of it.
        RuntimeError: another argument does not meet this, or requires a gradient; the sentence says which.
    """
    check_format(format, k_cache, v_cache)
    cast = format.cast
    return torch.ops.qwen_cuda.fused_decode_attention_quantized(
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
        format.heads,
        cast.values,
        cast.group,
        cast.scales,
        list(format.strides),
        partition_size,
        partitions,
        workspace,
        hadamard_scale=hadamard.scale if hadamard else 0.0,
        merge=merge,
        prefetch=prefetch,
    )


def _fake(qkv: Tensor, *others: object, **options: object) -> Tensor:
    num_heads = others[11]
    assert isinstance(num_heads, int | torch.SymInt)
    return qkv.new_empty((qkv.shape[0], num_heads, HEAD_DIM))


register("fused_decode_attention_quantized", fake=_fake)
