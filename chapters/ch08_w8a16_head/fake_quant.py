"""Symmetric group quantisation, simulated: a weight goes in, and what its integers stand for comes out, in fp32.

Nothing is packed and no kernel runs: so a quality gate can try widths and groups that no kernel has.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 8192  # quantised at a time: a head of 151,936 rows needs no second copy of itself for each intermediate
SCALE_BYTES = 4  # fp32


def fake_quantize(weight: Tensor, group: int | None = 128, bits: int = 8) -> Tensor:
    """`weight: [n, k]` as its integers give it back, fp32 of the same shape.

    Each `group` columns of a row share a scale, `max |w| / (2^(bits-1) - 1)`; a weight becomes the nearest multiple of
    it, of two equally near ones the even one. A group of zeros has scale 0 and stays zero.

    Args:
        group: columns that share a scale; None is the whole row, one scale per output channel.
        bits: of an integer, 2 to 8. Its most negative value is not used: the range is symmetric.
    Raises:
        ValueError: the weight is no matrix, `group` does not divide its columns, or a value is NaN or infinite.
    """
    size = group_size(weight, group)
    if not 2 <= bits <= 8:
        raise ValueError(f"bits is {bits}; it must be from 2 to 8.")
    if not torch.isfinite(weight).all():
        raise ValueError("the weight holds NaN or infinity, which no scale can represent; mend the checkpoint.")
    largest = 2 ** (bits - 1) - 1
    out = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    for rows, target in zip(weight.split(ROWS), out.split(ROWS), strict=True):
        values = rows.float().view(len(rows), -1, size)
        scale = values.abs().amax(-1, keepdim=True) / largest
        # A scale of 0 would give 0/0; one that is subnormal is so coarse that the quotient may leave the range.
        integers = torch.round(values / torch.where(scale > 0, scale, 1.0)).clamp(-largest, largest)
        target.copy_((integers * scale).view(len(rows), -1))
    return out


def group_size(weight: Tensor, group: int | None) -> int:
    """`group`, or the number of columns for None.

    Raises:
        ValueError: the weight is no matrix, or `group` does not divide its columns.
    """
    if weight.dim() != 2:
        raise ValueError(f"the weight has shape {list(weight.shape)}; it must be a matrix [n, k].")
    columns = weight.shape[1]
    size = columns if group is None else group
    if size < 1 or columns % size:
        raise ValueError(f"group is {size}; it must divide the {columns} columns of the weight.")
    return size


def stored_bytes(weight: Tensor, group: int | None = 128, bits: int = 8) -> int:
    """What `weight: [n, k]` takes when it is stored: packed integers, and an fp32 scale for each group."""
    return weight.numel() * bits // 8 + SCALE_BYTES * weight.numel() // group_size(weight, group)
