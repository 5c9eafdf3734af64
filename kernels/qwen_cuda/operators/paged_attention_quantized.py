"""Attention of one new token a sequence over a paged cache of FP8 or FP4 codes: `paged_attention_split`, dequantising.

Sources: Dao et al., Flash-Decoding for long-context inference, 2023; Ashkboos et al., QuaRot, 2024 (the Hadamard
transform of keys and queries); Rouhani et al., OCP Microscaling Formats (MX) Specification, 2023.
"""

from __future__ import annotations

from torch import Tensor, ops

from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators.kv_arguments import HADAMARD_DIM, HadamardArgs
from qwen_cuda.operators.registration import register


def paged_attention_quantized(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    format: KVCacheFormat,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    hadamard: HadamardArgs | None = None,
    merge: str = "auto",
) -> Tensor:
    """`softmax(scale · q Kᵀ) V` over what the codes of two caches stand for, in fp32 and rounded once, in one launch.

    Codes become fp32 numbers in registers; the result errs no more than that of `paged_attention_split` over the
    dequantised caches.

    Args:
        q: `[b, Hq, 128]` bfloat16 or float16, as for `paged_attention_split`.
        k_cache, v_cache: uint8 `[num_blocks, block_bytes]`, as `norm_rope_hadamard_quant_store` fills them; blocks of
            both lie equally far apart.
        block_table, context_lens, scale, partition_size, partitions, workspace, merge: as for `paged_attention_split`.
        format: of both caches: any with heads of 128 and an alignment of 16 or more. Each of its heads serves
            `Hq / format.heads` = 1 to 8 query heads.
        hadamard: the transform that the keys went through before they were quantised; the queries go through it in
            registers. V has none.
    Returns:
        `[b, Hq, 128]`, contiguous. The bits depend on the sequence, the partitions and their size, not on the batch.
    Raises:
        ValueError: format does not meet this, or a cache is not of it.
        RuntimeError: another argument does not meet this, or requires a gradient; the sentence says which.
    """
    check_format(format, k_cache, v_cache)
    cast = format.cast
    return ops.qwen_cuda.paged_attention_quantized(
        q,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        scale,
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
    )


def check_format(format: KVCacheFormat, k_cache: Tensor, v_cache: Tensor) -> None:
    """Raises ValueError: attention takes no such format, or a cache is not of it."""
    if format.head_dim != HADAMARD_DIM:
        raise ValueError(f"format.head_dim is {format.head_dim}; it must be 128.")
    if format.alignment < 16:
        raise ValueError(f"format.alignment is {format.alignment}; it must be 16 or more, for loads of 16 bytes.")
    format.check(k_cache, "k_cache")
    format.check(v_cache, "v_cache")


def _fake(q: Tensor, *others: object, **options: object) -> Tensor:
    return q.new_empty(q.shape)


register("paged_attention_quantized", fake=_fake)
