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


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x: [..., d]`, `weight: [d]` → `[..., d]`."""
    return F.rms_norm(x, weight, eps, "fused")


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> None:
    """As `rms_norm`; the result replaces `x`."""
    x.copy_(rms_norm(x, weight, eps))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x, residual: [..., d]`, `weight: [d]` → the norm of the unrounded sum, and the sum. Both `[..., d]`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide) + residual.to(wide)
    return F.rms_norm(total, weight.to(wide), eps, "fused").to(x.dtype), total.to(x.dtype)


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """As `add_rms_norm`; the normed rows replace `x`, the sum replaces `residual`."""
    normed, total = add_rms_norm(x, residual, weight, eps)
    x.copy_(normed)
    residual.copy_(total)


REFERENCES: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (rms_norm, rms_norm_, add_rms_norm, add_rms_norm_)
}


def oracle(name: str, *arguments: Any) -> Any:
    """What operator `name` gives in exact arithmetic, as far as float64 is that: floating tensors are widened first.

    → a float64 tensor, or a tuple of them, on the CPU. The arguments stay as they are. In-place forms have no result,
    so ask for the other form.
    """
    return REFERENCES[name](*(_widened(argument) for argument in arguments))


def _widened(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    argument = argument.detach().cpu()
    return argument.double() if argument.is_floating_point() else argument
