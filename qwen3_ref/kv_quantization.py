"""The stages of a quantised KV cache, one function each: norm, rotation, Hadamard transform, codes with scales.

All compute in float32, and in the order of operations that the kernels promise, so that results can be compared bit by
bit. Sources: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Su et al., RoFormer, 2021; Ashkboos et
al., QuaRot, 2024; Rouhani et al., OCP Microscaling Formats (MX) Specification, 2023.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from qwen3_ref.functional import Pairing
from qwen3_ref.narrow_floats import (
    LARGEST,
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    pack_pairs,
    ue8m0_at_least,
    unpack_pairs,
)

Values = Literal["e4m3", "e2m1"]
Scales = Literal["ue8m0", "e4m3", "float32"]
CHUNK = 128  # elements whose squares, and whose Hadamard transform, form one tree


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a · b + c in float32, rounded once.

    float64 holds the product exactly. The sum is rounded to odd there: of the two neighbours of the exact sum the one
    with an odd last bit, which the second rounding cannot mistake for a tie.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(torch.int64)
    outwards = (error > 0) == (total > 0)
    odd = torch.where(outwards, bits + 1, bits - 1).view(torch.float64)
    inexact = error.isfinite() & (error != 0) & (bits % 2 == 0)
    return torch.where(inexact, odd, total).float()


def tree_sum(x: Tensor) -> Tensor:
    """Neighbours are added, then neighbouring sums, and so on. `[…, 2^k]` → `[…]`."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


# --8<-- [start:norm]
def norm_head(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x · weight / √(mean(x²) + eps) over heads. `x: [..., D]` float32, D a multiple of 128.

    Squares of the pairs (r, r + 64) of a chunk of 128 are added in a tree over r; then the
    chunks are.
    """
    low, high = x.unflatten(-1, (-1, 2, CHUNK // 2)).unbind(-2)
    squares = tree_sum(tree_sum(fused_multiply_add(low, low, high * high)))
    mean = squares / x.shape[-1] + torch.tensor(eps, dtype=torch.float32)
    scale = 1 / mean.double().sqrt().float()  # PyTorch's float32 root is not always the nearest
    return x * scale[..., None] * weight.float()


# --8<-- [end:norm]


# --8<-- [start:rotate]
def rotate_tail(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairing: Pairing = "half",
    conjugate: bool = False,
) -> Tensor:
    """Turns the last elements of each head, as many as there are angles for.

    `x: [..., D]`, `cos, sin: [..., R/2]`, all float32. `conjugate` turns backwards.
    """
    head, tail = x.split((x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]), dim=-1)
    sin = -sin if conjugate else sin
    pairs = (-1, 2) if pairing == "interleaved" else (2, -1)
    side = -1 if pairing == "interleaved" else -2
    u, v = tail.unflatten(-1, pairs).unbind(side)
    cos, sin = cos.expand_as(u), sin.expand_as(u)
    turned = fused_multiply_add(u, cos, -(v * sin)), fused_multiply_add(v, cos, u * sin)
    return torch.cat((head, torch.stack(turned, dim=side).flatten(-2)), dim=-1)


# --8<-- [end:rotate]


# --8<-- [start:hadamard]
def hadamard_transform(x: Tensor, scale: float) -> Tensor:
    """scale · x H, where H is Sylvester's matrix of order 128. `x: [..., 128]` float32.

    Stage by stage, elements that differ in one bit of their index give way to their sum and
    their difference. With scale = 1/√128 the transform is orthogonal, and its own inverse.
    """
    bit = 1
    while bit < x.shape[-1]:
        u, w = x.unflatten(-1, (-1, 2, bit)).unbind(-2)
        x = torch.stack((u + w, u - w), dim=-2).flatten(-3)
        bit *= 2
    return x * torch.tensor(scale, dtype=torch.float32)


# --8<-- [end:hadamard]


# --8<-- [start:quantize]
def quantize_groups(
    x: Tensor,
    values: Values,
    group: int,
    scales: Scales,
) -> tuple[Tensor, Tensor]:
    """Codes and scales of each `group` neighbours. `x: [..., D]` float32 → bytes, uint8.

    codes `[..., D]`, two of e2m1 in a byte: `[..., D/2]`; scales `[..., D/group]`, four
    bytes each for float32. A scale is amax / largest as its format has it: ue8m0 the
    smallest power of two not below, e4m3 the nearest, saturated. It is never 0: the smallest
    of the format (2^-127, 2^-9, 2^-126) stands for less. A group with a NaN or an infinity
    has the scale NaN, and reads as NaN.
    """
    grouped = x.unflatten(-1, (-1, group))
    amax, finite = grouped.abs().amax(-1), grouped.isfinite().all(-1)
    amax = torch.where(finite, amax, 0)
    quotient = amax / torch.tensor(LARGEST[values])
    if scales == "ue8m0":
        codes = torch.where(finite, ue8m0_at_least(amax.double() / LARGEST[values]), 255)
        units = decode_ue8m0(codes)
    elif scales == "e4m3":
        codes = torch.where(finite, encode_e4m3(quotient).clamp(min=1), 0x7F)
        units = decode_e4m3(codes)
    else:
        units = torch.where(finite, quotient.clamp(min=2.0**-126), torch.nan)
        words = torch.where(finite, units.view(torch.int32), 0x7FFFFFFF)
        codes = words.flatten().view(torch.uint8).reshape(*words.shape[:-1], 4 * words.shape[-1])
    numbers = (grouped / units[..., None]).flatten(-2)
    if values == "e4m3":
        return encode_e4m3(numbers), codes
    return pack_pairs(encode_e2m1(numbers)), codes


# --8<-- [end:quantize]


def decode_scales(codes: Tensor, scales: Scales) -> Tensor:
    """Bytes of `quantize_groups` → float32 `[…, groups]`."""
    if scales == "ue8m0":
        return decode_ue8m0(codes)
    return decode_e4m3(codes) if scales == "e4m3" else codes.contiguous().view(torch.float32)


def dequantize_groups(data: Tensor, codes: Tensor, values: Values, scales: Scales) -> Tensor:
    """What `quantize_groups` gave → float32 `[…, D]`: code times scale, rounded once."""
    numbers = decode_e4m3(data) if values == "e4m3" else decode_e2m1(unpack_pairs(data))
    units = decode_scales(codes, scales)
    return (numbers.unflatten(-1, (units.shape[-1], -1)) * units[..., None]).flatten(-2)
