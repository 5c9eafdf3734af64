"""The stages in PyTorch that all backends are held against: number formats exhaustively, the others against float64."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from chapters.ch10_quantized_kv.combinations import TURNS, Turn, casts
from chapters.ch10_quantized_kv.store_runs import table
from qwen3_ref.functional import apply_rope, rms_norm
from qwen3_ref.kv_quantization import (
    dequantize_groups,
    fused_multiply_add,
    hadamard_transform,
    norm_head,
    quantize_groups,
    rotate_tail,
)
from qwen3_ref.narrow_floats import (
    E2M1_NUMBERS,
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
from qwen_cuda.kv_cache_format import CastArgs
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits


def numbers_of_16_bits() -> torch.Tensor:
    """All of bfloat16 and of float16, as float32; NaN and infinities among them."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    return torch.cat((bits.view(torch.bfloat16).float(), bits.view(torch.float16).float()))


def test_e4m3_is_torchs_format_but_saturates() -> None:
    x = numbers_of_16_bits()
    codes = encode_e4m3(x)
    within = x.abs() <= 464  # a tie, whose even neighbour is 448
    assert_same_bits(codes[within], x[within].to(torch.float8_e4m3fn).view(torch.uint8))
    beyond = ~within & ~x.isnan()
    assert_same_bits(decode_e4m3(codes[beyond]), 448 * x[beyond].sign())
    assert bool((codes[x.isnan()] == 0x7F).all())
    every = torch.arange(256, dtype=torch.uint8)
    finite = every[(every & 0x7F) != 0x7F]
    assert_same_bits(encode_e4m3(decode_e4m3(finite)), finite)


def test_e2m1_is_its_table() -> None:
    every = torch.arange(16, dtype=torch.uint8)
    assert decode_e2m1(every).tolist() == [*E2M1_NUMBERS, *(-number for number in E2M1_NUMBERS)]
    assert_same_bits(encode_e2m1(decode_e2m1(every)), every)
    assert_same_bits(unpack_pairs(pack_pairs(every)), every)
    x = numbers_of_16_bits()
    codes = encode_e2m1(x)
    assert bool((codes[x.isnan()] == 7).all())
    finite = x.nan_to_num(0.0, 1e30, -1e30)
    error = (decode_e2m1(codes).double() - finite.double()).abs()[~x.isnan()]
    best = (finite.double()[:, None] - torch.tensor(E2M1_NUMBERS).double() * finite.sign()[:, None]).abs().amin(-1)
    assert torch.equal(error, best[~x.isnan()])
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    assert decode_e2m1(encode_e2m1(torch.tensor(list(ties)))).tolist() == list(ties.values())


def test_ue8m0_are_the_powers_of_two() -> None:
    codes = torch.arange(255, dtype=torch.uint8)
    powers = decode_ue8m0(codes)
    assert powers.double().tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert bool(decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan())
    assert_same_bits(powers, codes.view(torch.float8_e8m0fnu).float())
    assert_same_bits(ue8m0_at_least(powers.double()), codes)
    above = torch.nextafter(powers.double(), torch.tensor(torch.inf).double())[:-1]
    assert_same_bits(ue8m0_at_least(above), codes[1:])
    assert ue8m0_at_least(torch.tensor([0.0, 1e-300]).double()).tolist() == [0, 0]


def test_the_fused_multiply_add_is_rounded_once() -> None:
    """Against rational arithmetic, also where a product nearly cancels and where float64 would see a tie."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(3000, generator=generator) for _ in "ab")
    c = torch.where(torch.arange(3000) % 2 == 0, -(a * b), torch.randn(3000, generator=generator) * 2.0**-20)
    a[0], b[0], c[0] = 1 + 2**-23, 1 + 2**-23, 2.0**-70  # a tie of 24 bits but for the last term
    a[1], b[1], c[1] = 1 + 2**-12, 1 + 2**-12, -(2.0**-80)
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), fused_multiply_add(a, b, c).tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = torch.tensor(float(exact), dtype=torch.float64).float()
        ends = [near.nextafter(torch.tensor(end)) for end in (-torch.inf, torch.inf)]
        best = min((near, *ends), key=lambda one: abs(Fraction(float(one)) - exact))
        assert abs(Fraction(got) - exact) <= abs(Fraction(float(best)) - exact)


@pytest.mark.parametrize("dim", [128, 512])
def test_the_norm_is_that_of_the_reference_model(dim: int) -> None:
    x, weight = rows_of_numbers((50, dim), torch.float32, seed=1, kind="wide"), norm_weight(dim, torch.float32, seed=2)
    truth = rms_norm(x.double(), weight.double(), 1e-6, "fused")
    assert float(((norm_head(x, weight, 1e-6) - truth) / truth).abs().max()) <= 16 * 2.0**-24


@pytest.mark.parametrize("turn", TURNS[1:], ids=str)
def test_the_rotation_is_that_of_the_reference_model(turn: Turn) -> None:
    part, pairing, conjugate = turn
    rotary_dim = 64 if part == "tail" else 128
    x, (cos, sin) = rows_of_numbers((50, 128), torch.float32, seed=1), table(300, rotary_dim)[:50].chunk(2, dim=-1)
    turned = rotate_tail(x, cos, sin, pairing, conjugate)
    tail = x[:, -rotary_dim:].double()
    truth = apply_rope(tail, cos.double(), -sin.double() if conjugate else sin.double(), pairing)
    assert float((turned[:, -rotary_dim:] - truth).abs().max()) <= 2**-22 * float(tail.abs().max())
    assert_same_bits(turned[:, :-rotary_dim], x[:, :-rotary_dim])


def test_the_hadamard_transform_is_orthogonal_and_its_own_inverse() -> None:
    """And it spreads an outlier over all elements, which is what it is for."""
    x = rows_of_numbers((20, 128), torch.float32, seed=1, kind="spike")
    turned = hadamard_transform(x, 128**-0.5)
    assert float((hadamard_transform(turned, 128**-0.5) - x).abs().max()) <= 1e-4
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6)
    assert float(turned.abs().amax()) < 0.1 * float(x.abs().amax())
    matrix = hadamard_transform(torch.eye(128), 1.0)
    assert torch.equal(matrix @ matrix.T, 128 * torch.eye(128))


@pytest.mark.parametrize("cast", casts(), ids=str)
def test_a_scale_serves_its_group(cast: CastArgs) -> None:
    """Numbers err by half a step of codes, and by what the scale's own rounding costs; zeros stay zeros."""
    x = rows_of_numbers((40, 128), torch.bfloat16, seed=3, kind="wide").float()
    x[0], x[1] = 0.0, -0.0
    data, scales = quantize_groups(x, cast.values, cast.group, cast.scales)
    back = dequantize_groups(data, scales, cast.values, cast.scales).unflatten(-1, (-1, cast.group))
    amax = x.unflatten(-1, (-1, cast.group)).abs().amax(-1, keepdim=True)
    # Half a step at the top: 2^-4 of amax for 3 bits of significand, 2^-2 for 1. A scale of e4m3 errs by another 2^-4,
    # or by half its smallest number.
    half_step = 2.0**-4 if cast.values == "e4m3" else 2.0**-2
    slack = amax * half_step + (amax * 2.0**-4 + LARGEST[cast.values] * 2.0**-10 if cast.scales == "e4m3" else 0)
    assert bool(((back - x.unflatten(-1, (-1, cast.group))).abs() <= slack + 1e-30).all())
    assert_same_bits(back[:2].flatten(1), x[:2])
