"""norm_rope_hadamard_quant_store as plain PyTorch: the unfused pipeline, stage after stage."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from qwen3_ref.functional import Pairing
from qwen3_ref.kv_quantization import (
    Scales,
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
) -> None:
    """`x: [t, heads, D]`; writes `out`, as x, `data` and `scales`, bytes, and the caches `[num_blocks, bytes]`."""
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
    block_size, data_stride, scale_stride, offset = cache_layout
    kept = known & (slot_mapping >= 0) & (slot_mapping < k_cache.shape[0] * block_size)
    slots = slot_mapping[kept].long()
    for cache, heads in ((k_cache, slice(0, keys)), (v_cache, slice(keys, None))):
        for bytes_, stride, start in ((codes, data_stride, 0), (units, scale_stride, offset)):
            if cache is None or cache.numel() == 0:
                continue
            shape = (len(cache), block_size, keys, bytes_.shape[-1])
            strides = (cache.stride(0), keys * stride, stride, 1)
            rows = cache.as_strided(shape, strides, cache.storage_offset() + start)
            rows[slots // block_size, slots % block_size] = bytes_[kept, heads]
