"""The linear layers of a decode step, with the norm before them and the sum or SiLU·mul after them (chapter 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.functional import fused_linear
from qwen_cuda.operators.registration import register


def decode_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    """`x Wᵀ` for the few rows of a decode step: accumulated in fp32, rounded once.

    Args:
        x: `[b, k]`, b from 1 to 8, in the dtype of `weight` or in float32. The elements of a row lie side by side, the
            rows at one distance.
        weight: `[n, k]` in float16 or bfloat16, contiguous, on a CPU or a CUDA device.
        norm_weight: `[k]`, of the dtype of `weight`: `x` is RMS-normed first, with `eps`, and not rounded in between.
        residual: `[b, n]`, in the dtype of the result: added in fp32, before the rounding.
        silu_mul: `weight` holds the rows of gate, then those of up; the result is `silu(gate) · up`, `[b, n/2]`. Not
            together with `residual`.
        out_dtype: of the result: that of `weight` (the default), or float32.
        prefetch: `weight` and `norm_weight` may be read before the kernels ahead in the stream have ended. For weights
            that no kernel in flight writes. The result is the same.
    Returns:
        `[b, n]`, or `[b, n/2]` with `silu_mul`; contiguous.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    A row gives the same bits alone and in a batch. It is fast where k is a multiple of 8 and rows begin at multiples of
    16 bytes. Differentiable: when an argument requires a gradient, `qwen3_ref.functional.fused_linear` runs instead.
    """
    return torch.ops.qwen_cuda.decode_linear(
        x,
        weight,
        norm_weight=norm_weight,
        eps=eps,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=out_dtype,
        prefetch=prefetch,
    )


def _reference_decode_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    return fused_linear(
        x,
        weight,
        norm_weight=norm_weight,
        eps=eps,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=out_dtype,
    )


def _fake_decode_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    columns = weight.shape[0] // 2 if silu_mul else weight.shape[0]
    return x.new_empty((x.shape[0], columns), dtype=out_dtype or weight.dtype)


register("decode_linear", fake=_fake_decode_linear, reference=_reference_decode_linear)
