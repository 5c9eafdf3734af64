"""Weights as int8 numbers with a scale for each group of columns: what they stand for, and a head made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.functional import rms_norm


# --8<-- [start:dequantize]
def dequantize_w8(qweight: Tensor, scales: Tensor) -> Tensor:
    """`w[r, c] = q[r, c] · s[r, c // group]`.

    `qweight: [n, k]` int8, `scales: [n, k/group]` → `[n, k]`, of the scales' dtype. An integer of 8
    bits times a float32 scale is rounded once here; in float64 the product is exact.
    """
    grouped = qweight.to(scales.dtype).unflatten(1, (scales.shape[1], -1))
    return (grouped * scales[:, :, None]).flatten(1)


# --8<-- [end:dequantize]


def head_logits(x: Tensor, weight: Tensor, norm_weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """`x Wᵀ`, or RMSNorm(`x`) Wᵀ, with nothing rounded in between. `x: [b, k]`, `weight: [n, k]` → `[b, n]`.

    In float32; in float64 when `x` is float64.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(dtype)
    if norm_weight is not None:
        wide = rms_norm(wide, norm_weight.to(dtype), eps, "fused")
    return torch.nn.functional.linear(wide, weight.to(dtype))
