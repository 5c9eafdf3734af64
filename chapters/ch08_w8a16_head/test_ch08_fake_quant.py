"""Simulated group quantisation: against exact arithmetic, element by element, and at the edges of the formats."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.fake_quant import ROWS, fake_quantize, stored_bytes

GROUPS = (32, 64, 128, None)


def weights(n: int, k: int, seed: int = 0) -> Tensor:
    """Rows and groups of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator) * torch.logspace(-3, 2, n)[:, None]


def expected(row: list[float], bits: int) -> list[float]:
    """One group by fractions; only the scale and the result are rounded to fp32, as promised."""
    largest = 2 ** (bits - 1) - 1
    scale = float(torch.tensor(max(map(abs, row))) / largest)
    if scale == 0:
        return [0.0] * len(row)
    integers = [max(-largest, min(largest, round(Fraction(value) / Fraction(scale)))) for value in row]
    return [float(torch.tensor(integer * scale, dtype=torch.float32)) for integer in integers]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", GROUPS)
def test_each_weight_is_its_nearest_multiple_of_the_scale(group: int | None, bits: int) -> None:
    weight = weights(5, 256)
    found = fake_quantize(weight, group, bits)
    size = group or 256
    wanted = [
        value
        for row in weight.tolist()
        for begin in range(0, 256, size)
        for value in expected(row[begin : begin + size], bits)
    ]
    # The quotient is rounded to fp32 before it is rounded to an integer: at half a step either neighbour is right.
    step = weight.view(5, -1, size).abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    same = found == torch.tensor(wanted).view(5, 256)
    halfway = ((weight.view(5, -1, size) / step).double().frac().abs() - 0.5).abs().view(5, 256) < 1e-4
    assert bool((same | halfway).all())
    assert same.double().mean() > 0.999
    assert bool(((found - weight).view(5, -1, size).abs() <= step * (0.5 + 1e-4)).all())


def test_the_nearest_of_two_is_the_even_one() -> None:
    weight = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    assert fake_quantize(weight, 8).tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, 126.0]]


def test_the_range_is_symmetric_and_each_group_has_its_own_scale() -> None:
    weight = torch.tensor([[-3.0, 1.0, 100.0, 1.0]])
    assert fake_quantize(weight, 2, 4)[0].tolist() == pytest.approx([-3.0, 6 / 7, 100.0, 0.0])
    assert fake_quantize(weight, None, 4).tolist() == [[0.0, 0.0, 100.0, 0.0]]


def test_an_outlier_costs_only_its_own_group() -> None:
    weight = weights(1, 128, seed=1)
    weight[0, 5] = 50 * float(weight.abs().max())
    error = (fake_quantize(weight, 32) - weight).abs()
    calm = (fake_quantize(weight[:, 32:], 32) - weight[:, 32:]).abs()
    assert torch.equal(error[:, 32:], calm)
    assert float(error[:, :32].mean()) > 10 * float(calm.mean())


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_a_group_of_zeros_stays_zero(value: float) -> None:
    weight = torch.full((2, 64), value)
    weight[1, 40] = 1.0
    found = fake_quantize(weight, 32)
    assert torch.equal(found, weight.abs())


@pytest.mark.parametrize("value", [2.0**-149, 3 * 2.0**-149, 2.0**-140, 2.0**-126, 3.4e38])
def test_extreme_weights_stay_finite_and_within_their_range(value: float) -> None:
    weight = torch.tensor([[value, -value, value / 3, 0.0]])
    found = fake_quantize(weight, 4)
    assert bool(torch.isfinite(found).all())
    assert float(found.abs().max()) <= 1.01 * value


def test_a_coarse_scale_does_not_leave_the_range_of_an_int8() -> None:
    """190 / 127 of the smallest fp32 number is rounded to one of it, and 190 of these are no int8."""
    smallest = 2.0**-149
    found = fake_quantize(torch.tensor([[190 * smallest, -190 * smallest, 3 * smallest, 0.0]]), 4)
    assert found.tolist() == [[127 * smallest, -127 * smallest, 3 * smallest, 0.0]]


def test_bf16_weights_are_quantised_from_their_exact_values() -> None:
    weight = weights(4, 128).bfloat16()
    found = fake_quantize(weight)
    assert found.dtype == torch.float32
    assert torch.equal(found, fake_quantize(weight.float()))


def test_many_rows_are_as_few() -> None:
    weight = weights(ROWS + 3, 32)
    found = fake_quantize(weight, 32)
    for rows in (slice(0, 4), slice(ROWS - 2, ROWS + 3)):
        assert torch.equal(found[rows], fake_quantize(weight[rows].contiguous(), 32))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_number_is_refused(value: float) -> None:
    weight = weights(2, 64)
    weight[1, 63] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        fake_quantize(weight, 32)


def test_what_cannot_be_grouped_is_refused() -> None:
    weight = weights(2, 96)
    with pytest.raises(ValueError, match=r"^group is 128; it must divide the 96 columns"):
        fake_quantize(weight)
    with pytest.raises(ValueError, match="group is 0"):
        fake_quantize(weight, 0)
    with pytest.raises(ValueError, match=r"shape \[96\]; it must be a matrix"):
        fake_quantize(weight[0])
    with pytest.raises(ValueError, match="bits is 9"):
        fake_quantize(weight, 32, 9)


@pytest.mark.parametrize(
    ("group", "bits", "wanted"),
    [(128, 8, 4 * 256 + 4 * 8), (None, 8, 4 * 256 + 4 * 4), (32, 4, 4 * 128 + 4 * 32)],
)
def test_bytes_count_integers_and_scales(group: int | None, bits: int, wanted: int) -> None:
    assert stored_bytes(torch.empty(4, 256), group, bits) == wanted


@pytest.mark.parametrize("group", GROUPS)
def test_eight_bits_are_those_of_the_chapters_head(group: int | None) -> None:
    """What the gate judges is what the kernels read: bit for bit."""
    quantize = pytest.importorskip("chapters.ch08_w8a16_head.quantize", reason="the chapter has no int8 head yet")
    weight = torch.cat([weights(300, 256, seed=2), torch.zeros(1, 256), weights(3, 256, seed=3) * 2.0**-140])
    for given in (weight, weight.bfloat16()):
        integers, scales = quantize.quantize_w8(given, group)
        back = integers.view(len(weight), scales.shape[1], -1).float() * scales[:, :, None]
        assert torch.equal(back.view(weight.shape), fake_quantize(given, group))
