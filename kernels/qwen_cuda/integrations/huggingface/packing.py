"""The weights of gate and up as one tensor, so that one matrix product gives both."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def pack(gate: nn.Linear, up: nn.Linear) -> Tensor:
    """Makes the weights of both the halves of one tensor.

    `gate.weight` and `up.weight`, both `[m, d]`, stay the same parameters with the same values; their memory becomes
    that of the result. Where it is that already, nothing is copied.

    Returns:
        `[2 * m, d]`, without a gradient: the rows of gate, then those of up.
    """
    if (packed := halves_of_one(gate.weight, up.weight)) is not None:
        return packed
    rows = gate.weight.shape[0]
    with torch.inference_mode(False), torch.no_grad():
        packed = torch.cat((gate.weight, up.weight))
        gate.weight.data, up.weight.data = packed[:rows], packed[rows:]
    return packed


def unpack(gate: nn.Linear, up: nn.Linear) -> None:
    """Gives each of the two weights memory of its own again. Their values stay."""
    with torch.inference_mode(False), torch.no_grad():
        for linear in (gate, up):
            linear.weight.data = linear.weight.detach().clone()


def halves_of_one(gate: Tensor, up: Tensor) -> Tensor | None:
    """The tensor whose first half is `gate` and whose second is `up`, sharing their memory; None if there is none."""
    side_by_side = (
        gate.shape == up.shape
        and gate.dtype == up.dtype
        and gate.is_contiguous()
        and up.is_contiguous()
        and gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr() != 0
        and up.storage_offset() == gate.storage_offset() + gate.numel()
    )
    if not side_by_side:
        return None
    rows, columns = gate.shape
    return gate.detach().as_strided((2 * rows, columns), (columns, 1), gate.storage_offset())
