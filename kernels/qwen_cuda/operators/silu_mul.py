"""SiLU·mul, the middle of the SwiGLU MLP, on packed gate and up (chapter 3).

Source: Shazeer, GLU Variants Improve Transformer, 2020, eq. 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.functional import swiglu
from qwen_cuda.operators.registration import register


def silu_mul(gate_up: Tensor, *, hf_rounding: bool = False) -> Tensor:
    """`silu(gate) · up` in fp32, rounded once, where `gate_up` holds gate in its first columns and up in its last.

    Args:
        gate_up: `[..., 2m]` in float32, float16 or bfloat16, on a CPU or a CUDA device. The elements of a row lie side
            by side, the rows at one distance: a slice of columns will do.
        hf_rounding: `silu(gate)` is rounded before the product, as in transformers.
    Returns:
        `[..., m]`, contiguous.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    Where gate is −inf the result is NaN, as the formula `z / (1 + exp(−z))` gives. Differentiable: when an argument
    requires a gradient, `qwen3_ref.functional.swiglu` runs instead.
    """
    return torch.ops.qwen_cuda.silu_mul(gate_up, hf_rounding=hf_rounding)


def _reference_silu_mul(gate_up: Tensor, *, hf_rounding: bool = False) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return swiglu(gate, up, "hf" if hf_rounding else "fused")


def _fake_silu_mul(gate_up: Tensor, *, hf_rounding: bool = False) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


register("silu_mul", fake=_fake_silu_mul, reference=_reference_silu_mul)
