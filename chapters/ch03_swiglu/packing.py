"""What packing is worth: the products of gate and up, or of q, k and v, one by one and as one, on Qwen3-0.6B's shapes.

The arithmetic and the weights are the same. A product less is a launch less, and a larger one fills a GPU better.
A set of operands holds `x: [rows, k]` and `weight: [n, k]`, whose rows are the parts' weights one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from qwen_cuda.benchmarking import Operands, Variant, Work

HIDDEN = 1024
PARTS = {"gate_up_linear": (3072, 3072), "qkv_linear": (2048, 1024, 1024)}  # rows of each weight
ROWS = (1, 8, 128)
# One rounding after a float32 sum of 1,024 products of positive numbers: 0.52 ulp. cuBLAS may split the sum and round
# the parts to bfloat16 as well, which PyTorch allows by default.
ULPS = 2.0


def work(op: str, rows: int) -> Work:
    """x and the weights are read, the products written."""
    n = sum(PARTS[op])
    nbytes = 2 * (n * HIDDEN + rows * (HIDDEN + n))
    return Work(op, {"rows": rows, "k": HIDDEN, "n": n}, "bfloat16", nbytes, flops=2 * rows * n * HIDDEN)


def operands(op: str, rows: int, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n. All numbers are positive: where nothing cancels, an error is a few ulp of the sum."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def positive(*shape: int) -> Tensor:
            return torch.empty(shape, device=device).uniform_(0.5, 1.5, generator=generator).bfloat16()

        return {"x": positive(rows, HIDDEN), "weight": positive(sum(PARTS[op]), HIDDEN)}

    return make


def truth(op: str, of: Operands) -> Sequence[Tensor]:
    """Each part's product in float64, on the operands' device."""
    return linear(of["x"].double(), of["weight"].double()).split(PARTS[op], dim=-1)


def variants(op: str) -> list[Variant]:
    """cuBLAS, as PyTorch calls it. The packed product is one tensor, and its parts are views of its columns."""

    def packed(of: Operands) -> Sequence[Tensor]:
        return linear(of["x"], of["weight"]).split(PARTS[op], dim=-1)

    def apart(of: Operands) -> Sequence[Tensor]:
        return [linear(of["x"], weight) for weight in of["weight"].split(PARTS[op])]

    return [Variant("cublas_packed", packed, ulps=ULPS), Variant("cublas_apart", apart, ulps=ULPS)]
