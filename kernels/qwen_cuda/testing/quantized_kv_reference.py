"""The operators of a quantised KV cache as plain PyTorch: the writer's pipeline stage by stage, and the reader."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from qwen3_ref import paged
from qwen3_ref.functional import Pairing
from qwen3_ref.kv_quantization import (
    Scales,
    Values,
    dequantize_groups,
    hadamard_transform,
    norm_head,
    quantize_groups,
    rotate_tail,
)


def norm_rope_hadamard_quant_store(
    x: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
    interleaved: bool = False,
    conjugate: bool = False,
    hadamard_scale: float = 0.0,
    values: Literal["", "e4m3", "e2m1"] = "",
    group: int = 0,
    scale_format: Scales = "ue8m0",
    out: Tensor | None = None,
    stage: str = "",
    data: Tensor | None = None,
    scales: Tensor | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    slot_mapping: Tensor | None = None,
    cache_layout: tuple[int, ...] | list[int] = (),
    query_weight: Tensor | None = None,
    query_out: Tensor | None = None,
) -> None:
    """`x: [t, heads, D]`; writes `out`, as x, `data` and `scales`, bytes, and the caches `[num_blocks, bytes]`.

    With `query_out: [t, Hq, D]` the first Hq heads of x are queries, and go there.
    """
    if query_out is not None:
        queries, x = x.split((query_out.shape[1], x.shape[1] - query_out.shape[1]), dim=1)
        norm_rope_hadamard_quant_store(
            queries, norm_weight=query_weight, eps=eps, cos_sin=cos_sin, positions=positions, interleaved=interleaved,
            conjugate=conjugate, out=query_out, stage="transform",
        )  # fmt: skip
    keys = x.shape[1] // (1 if v_cache is None else 2)
    k, v = x.float().split((keys, x.shape[1] - keys), dim=1)
    known = torch.ones(len(x), dtype=torch.bool, device=x.device)

    def give(name: str, heads: Tensor) -> None:
        if out is not None and stage == name:
            out.copy_(heads)

    if norm_weight is not None:
        k = norm_head(k, norm_weight, eps)
    give("norm", torch.cat((k, v), dim=1))
    if cos_sin is not None and positions is not None:
        known = (positions >= 0) & (positions < cos_sin.shape[0])
        cos, sin = cos_sin[torch.where(known, positions, 0).long()][:, None].chunk(2, dim=-1)
        pairing: Pairing = "interleaved" if interleaved else "half"
        k = torch.where(known[:, None, None], rotate_tail(k, cos, sin, pairing, conjugate), torch.nan)
    if hadamard_scale:
        k = hadamard_transform(k, hadamard_scale)
    give("transform", torch.cat((k, v), dim=1))
    if values == "":
        return
    rounded = torch.cat((k, v), dim=1).to(x.dtype).float()
    codes, units = quantize_groups(rounded, values, group, scale_format)
    give("cast_back", dequantize_groups(codes, units, values, scale_format))
    if data is not None and scales is not None:
        data.copy_(codes)
        scales.copy_(units)
    if k_cache is None or slot_mapping is None:
        return
    block_size = cache_layout[0]
    kept = known & (slot_mapping >= 0) & (slot_mapping < k_cache.shape[0] * block_size)
    slots = slot_mapping[kept].long()
    for cache, heads in ((k_cache, slice(0, keys)), (v_cache, slice(keys, None))):
        if cache is None or cache.numel() == 0:
            continue
        rows = _rows(cache, cache_layout, keys, codes.shape[-1], units.shape[-1])
        for place, bytes_ in zip(rows, (codes, units), strict=True):
            place[slots // block_size, slots % block_size] = bytes_[kept, heads]


def paged_attention_quantized(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    kv_heads: int,
    values: Values,
    group: int,
    scale_format: Scales,
    cache_layout: tuple[int, ...] | list[int],
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    hadamard_scale: float = 0.0,
    merge: str = "auto",
) -> Tensor:
    """Both caches dequantised, then attention over each context as a whole: `q: [b, Hq, 128]` → `[b, Hq, 128]`."""
    dim = q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    data_bytes = dim if values == "e4m3" else dim // 2
    scale_bytes = dim // group * (4 if scale_format == "float32" else 1)
    k, v = (
        dequantize_groups(*_rows(cache, cache_layout, kv_heads, data_bytes, scale_bytes), values, scale_format).to(wide)
        for cache in (k_cache, v_cache)
    )
    queries = hadamard_transform(q.to(wide), hadamard_scale) if hadamard_scale else q.to(wide)
    return paged.paged_attention(queries, k, v, block_table, context_lens, scale).to(q.dtype)


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
    kv_heads: int,
    values: Values,
    group: int,
    scale_format: Scales,
    cache_layout: tuple[int, ...] | list[int],
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    hadamard_scale: float = 0.0,
    merge: str = "auto",
    prefetch: bool = False,
) -> Tensor:
    """The store, then attention over what was stored. → `[b, Hq, 128]`."""
    x = qkv.unflatten(1, (num_heads + 2 * kv_heads, -1))
    q = torch.empty_like(x[:, :num_heads], memory_format=torch.contiguous_format)
    kind = (values, group, scale_format)
    norm_rope_hadamard_quant_store(
        x, norm_weight=k_weight, eps=eps, cos_sin=cos_sin, positions=positions, hadamard_scale=hadamard_scale,
        values=values, group=group, scale_format=scale_format, k_cache=k_cache, v_cache=v_cache,
        slot_mapping=slot_mapping, cache_layout=cache_layout, query_weight=q_weight, query_out=q,
    )  # fmt: skip
    where = (k_cache, v_cache, block_table, context_lens, scale, kv_heads, *kind, cache_layout)
    return paged_attention_quantized(q, *where, partition_size, partitions, workspace, hadamard_scale=hadamard_scale)


def _rows(
    cache: Tensor, cache_layout: tuple[int, ...] | list[int], heads: int, data_bytes: int, scale_bytes: int
) -> tuple[Tensor, Tensor]:
    """Codes and scales where they lie: `[num_blocks, block_size, heads, data_bytes]` and `[…, scale_bytes]`."""
    block_size, data_stride, scale_stride, offset = cache_layout

    def rows(size: int, stride: int, start: int) -> Tensor:
        shape = (len(cache), block_size, heads, size)
        return cache.as_strided(shape, (cache.stride(0), heads * stride, stride, 1), cache.storage_offset() + start)

    return rows(data_bytes, data_stride, 0), rows(scale_bytes, scale_stride, offset)
