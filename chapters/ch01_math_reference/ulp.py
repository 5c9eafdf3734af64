"""Error in units of the last place: how many steps of the output's own number format a value lies from the truth."""

from __future__ import annotations

import torch
from torch import Tensor


def ulp(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of `dtype`'s numbers at each value of `truth` (float64) → float64, never zero.

    For `2^e ≤ |x| < 2^(e+1)` it is `2^e · eps`; below the smallest normal number the spacing stays what it is there.
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp(min=info.tiny))  # |x| = m · 2^exponent, 0.5 ≤ m < 1
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)


def largest_ulp_error(got: Tensor, truth: Tensor) -> float:
    """The largest error of `got` against `truth` (float64), in last places of `got.dtype`; NaN stays NaN."""
    return float(((got.double() - truth).abs() / ulp(truth, got.dtype)).max())
