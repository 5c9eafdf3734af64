"""Numbers of 8 and of 4 bits, and the powers of two that groups of them share, as bytes.

    e4m3   sign, 4 bits of exponent, 3 of significand: 0, 2⁻⁹ … 448, NaN
    e2m1   sign, 2 bits of exponent, 1 of significand: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN
    ue8m0  8 bits of exponent: 2⁻¹²⁷ … 2¹²⁷, NaN

Encoding rounds to nearest, ties to even, and saturates: beyond the largest number, infinity too, it is that number.

Source: Rouhani et al., OCP Microscaling Formats (MX) Specification, version 1.0, 2023.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
E2M1_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by their codes


def encode_e4m3(x: Tensor) -> Tensor:
    """float32 → codes, uint8. A NaN of any sign is 0x7f."""
    codes = x.clamp(-LARGEST["e4m3"], LARGEST["e4m3"]).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(x.isnan(), 0x7F, codes)


def decode_e4m3(codes: Tensor) -> Tensor:
    """uint8 → float32, exact."""
    return codes.view(torch.float8_e4m3fn).float()


def encode_e2m1(x: Tensor) -> Tensor:
    """float32 → codes from 0 to 15, uint8, the sign in bit 3. A NaN is 7, which is 6."""
    magnitude = x.abs()
    codes = torch.zeros_like(x, dtype=torch.uint8)
    for lower, pair in enumerate(pairwise(E2M1_NUMBERS)):
        middle = sum(pair) / 2
        codes += ((magnitude > middle) | ((magnitude == middle) & (lower % 2 == 1))).to(torch.uint8)
    return torch.where(x.isnan(), 7, codes + 8 * x.signbit().to(torch.uint8))


def decode_e2m1(codes: Tensor) -> Tensor:
    """Codes from 0 to 15 → float32, exact."""
    numbers = torch.tensor((*E2M1_NUMBERS, *(-number for number in E2M1_NUMBERS)), device=codes.device)
    return numbers[codes.long()]


def pack_pairs(codes: Tensor) -> Tensor:
    """`[…, 2n]` codes of 4 bits → `[…, n]` bytes, the first of a pair in the lower half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_pairs(packed: Tensor) -> Tensor:
    """`[…, n]` bytes → `[…, 2n]` codes of 4 bits."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def ue8m0_at_least(x: Tensor) -> Tensor:
    """Codes of the smallest powers of two, from 2⁻¹²⁷ on, that are not below x ≥ 0 (float64, finite). → uint8."""
    part, exponent = torch.frexp(x)  # x = part · 2^exponent, 0.5 ≤ part < 1
    power = torch.where(part == 0.5, exponent - 1, exponent)
    return torch.where(x == 0, 0, power + 127).clamp(min=0).to(torch.uint8)


def decode_ue8m0(codes: Tensor) -> Tensor:
    """uint8 → float32, exact; 255 is NaN."""
    powers = torch.ldexp(torch.ones_like(codes, dtype=torch.float64), codes.to(torch.int32) - 127)
    return torch.where(codes == 255, torch.nan, powers).float()
