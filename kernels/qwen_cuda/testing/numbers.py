"""Inputs for tests: random numbers by a fixed seed, of the sizes and kinds on which kernels go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["plain", "wide", "spike", "tiny", "huge", "zeros"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Around what a lane, a 16-byte load, a warp and a block hold, and the hidden sizes of Qwen3 and Qwen2.5.
SIZES = (1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 127, 128, 255, 256, 257, 511, 512, 896, 1023, 1024, 1025, 2048, 2560, 4096)


def rows_of_numbers(shape: Sequence[int], dtype: torch.dtype, *, seed: int, kind: Kind = "plain") -> Tensor:
    """Random numbers whose mean is far from zero. `shape: [..., d]` → the same, on the CPU.

    `plain` has size one; `wide` gives each row its own size, from 0.001 to 100; `spike` is small but for one element a
    row; `tiny` is 1e-20, which 16-bit floats round to zero; `huge` reaches 1e4, whose square float16 does not have.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) + 0.7
    if kind == "wide":
        values *= 10 ** (5 * torch.rand((*values.shape[:-1], 1), generator=generator, dtype=torch.float64) - 3)
    elif kind == "spike":
        place = torch.randint(max(shape[-1], 1), (*values.shape[:-1], 1), generator=generator)
        values = (values * 1e-3).scatter(-1, place, 300.0) if values.numel() else values
    else:
        values *= {"plain": 1.0, "tiny": 1e-20, "huge": 2500.0, "zeros": 0.0}[kind]
    return values.clamp(-1e4, 1e4).to(dtype)


def norm_weight(size: int, dtype: torch.dtype, *, seed: int) -> Tensor:
    """A norm weight far from one, with both signs. → `[size]`, on the CPU."""
    generator = torch.Generator().manual_seed(seed ^ 0x5EED)
    return (1 + 0.5 * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)
