"""RMSNorm, alone and with the residual add before it (chapter 2).

Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, eq. 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref import functional
from qwen_cuda.operators.registration import register


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Tensor:
    """`weight · x / sqrt(mean(x²) + eps)` over the last dimension, in fp32 and rounded once.

    Args:
        x: `[..., d]` in float32, float16 or bfloat16, on a CPU or a CUDA device. The elements of a row lie side by
            side, the rows at one distance: a slice of columns will do.
        weight: `[d]`, of the dtype and device of `x`.
        eps: 0 or more.
        hf_rounding: the scaled row is rounded before the weight is applied, as in transformers.
    Returns:
        `[..., d]`, contiguous.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    Differentiable: when an argument requires a gradient, `qwen3_ref.functional.rms_norm` runs instead.
    """
    return torch.ops.qwen_cuda.rms_norm(x, weight, eps, hf_rounding=hf_rounding)


def rms_norm_(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """`rms_norm` that overwrites `x`. Arguments and errors as there; refuses tensors that require a gradient."""
    torch.ops.qwen_cuda.rms_norm_(x, weight, eps, hf_rounding=hf_rounding)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False
) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual`, and that sum.

    The sum is normed in fp32, before it is rounded for the second output. Arguments as for `rms_norm`; `residual` has
    the shape, dtype and device of `x`. With `hf_rounding` the sum is rounded first, as by two operations.

    Returns:
        The normed rows and the new residual, both `[..., d]` and contiguous.
    """
    return torch.ops.qwen_cuda.add_rms_norm(x, residual, weight, eps, hf_rounding=hf_rounding)


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """`add_rms_norm` in place: `x` becomes the normed rows, `residual` the sum. They must not share memory."""
    torch.ops.qwen_cuda.add_rms_norm_(x, residual, weight, eps, hf_rounding=hf_rounding)


Pair = tuple[Tensor, Tensor]


def _reference_rms_norm(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Tensor:
    return functional.rms_norm(x, weight, eps, "hf" if hf_rounding else "fused")


def _reference_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False
) -> Pair:
    return functional.add_rms_norm(x, residual, weight, eps, "hf" if hf_rounding else "fused")


# --8<-- [start:fake]
def _fake_rms_norm(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Tensor:
    return x.new_empty(x.shape)


# --8<-- [end:fake]
def _fake_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Pair:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _fake_in_place(*arguments: Tensor | float, hf_rounding: bool = False) -> None:
    """Nothing is returned, so nothing has a shape."""


# --8<-- [start:register]
register("rms_norm", fake=_fake_rms_norm, reference=_reference_rms_norm)
register("add_rms_norm", fake=_fake_add_rms_norm, reference=_reference_add_rms_norm)
register("rms_norm_", fake=_fake_in_place)
register("add_rms_norm_", fake=_fake_in_place)
# --8<-- [end:register]
