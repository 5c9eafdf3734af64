"""The operators as plain PyTorch: the backend `reference`, and in float64 the truth that every backend is held against.

Each function has the arguments and results of the operator of its name. It computes in float32 (float64 for float64)
and rounds once. A chapter that adds an operator adds its function here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qwen3_ref import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Tensor:
    """`x: [..., d]`, `weight: [d]` → `[..., d]`."""
    return F.rms_norm(x, weight, eps, "hf" if hf_rounding else "fused")


def rms_norm_(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """As `rms_norm`; the result replaces `x`."""
    x.copy_(rms_norm(x, weight, eps, hf_rounding=hf_rounding))


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False
) -> tuple[Tensor, Tensor]:
    """`x, residual: [..., d]`, `weight: [d]` → the norm of the unrounded sum, and the sum. Both `[..., d]`.

    With `hf_rounding` the sum is rounded before it is normed.
    """
    if hf_rounding:
        total = x + residual
        return F.rms_norm(total, weight, eps, "hf"), total
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide) + residual.to(wide)
    return F.rms_norm(total, weight.to(wide), eps, "fused").to(x.dtype), total.to(x.dtype)


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """As `add_rms_norm`; the normed rows replace `x`, the sum replaces `residual`."""
    normed, total = add_rms_norm(x, residual, weight, eps, hf_rounding=hf_rounding)
    x.copy_(normed)
    residual.copy_(total)


def silu_mul(gate_up: Tensor, *, hf_rounding: bool = False) -> Tensor:
    """`gate_up: [..., 2m]`, gate first → `[..., m]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.swiglu(gate, up, "hf" if hf_rounding else "fused")


REFERENCES: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (rms_norm, rms_norm_, add_rms_norm, add_rms_norm_, silu_mul)
}


def oracle(name: str, *arguments: Any, **options: Any) -> Any:
    """What operator `name` gives in exact arithmetic, as far as float64 is that: floating tensors are widened first.

    → a float64 tensor, or a tuple of them, on the CPU. The arguments stay as they are. In-place forms have no result,
    so ask for the other form.
    """
    return REFERENCES[name](*(_widened(argument) for argument in arguments), **options)


def _widened(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    argument = argument.detach().cpu()
    return argument.double() if argument.is_floating_point() else argument
