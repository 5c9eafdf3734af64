"""The comparison of all kernel tests: exact in its units, and never blind to NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qwen_cuda.testing.ulp import FAR, assert_same_bits, assert_within_ulp, ulp, ulp_distance, ulp_error

NAN, INF = float("nan"), float("inf")
SIXTEEN_BIT = (torch.bfloat16, torch.float16)
DTYPES = (*SIXTEEN_BIT, torch.float32)


def all_finite(dtype: torch.dtype) -> Tensor:
    """Every finite number of a 16-bit format in ascending order, zero once."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()].double().unique().to(dtype)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
def test_distance_counts_the_numbers_between(dtype: torch.dtype) -> None:
    numbers = all_finite(dtype)
    assert bool((ulp_distance(numbers[:-1], numbers[1:]) == 1).all())
    assert int(ulp_distance(numbers[0], numbers[-1])) == len(numbers) - 1


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
def test_ulp_is_the_gap_to_the_next_number_away_from_zero(dtype: torch.dtype) -> None:
    numbers = all_finite(dtype).double()
    numbers = numbers[numbers >= 0]
    assert torch.equal(ulp(numbers[:-1], dtype), numbers[1:] - numbers[:-1])
    assert torch.equal(ulp(-numbers, dtype), ulp(numbers, dtype))


def test_ulp_of_float32_is_the_gap_to_the_next_number() -> None:
    x = torch.tensor([0.0, 1e-45, 1e-40, 1.1754943e-38, 0.75, 1.0, 1.9999999, 2.0, 3e38], dtype=torch.float32)
    assert torch.equal(ulp(x.double(), torch.float32), torch.nextafter(x, torch.tensor(INF)).double() - x.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_to_nearest_errs_by_half_an_ulp_at_most(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    exponent = torch.rand(20_000, generator=generator, dtype=torch.float64) * 40 - 30
    truth = torch.randn(20_000, generator=generator, dtype=torch.float64) * torch.exp2(exponent)
    error = ulp_error(truth.float().to(dtype), truth)
    # Rounded to float32 first: a tie may then fall to the wrong side, by half a float32 ulp.
    assert 0.49 < float(error.max()) <= 0.5 + 2.0**-12
    assert_within_ulp(truth.float().to(dtype), truth, 0.501)
    with pytest.raises(AssertionError, match=r"more than 0\.4 ulp"):
        assert_within_ulp(truth.float().to(dtype), truth, 0.4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_and_distance_agree_between_neighbours(dtype: torch.dtype) -> None:
    a = torch.tensor([1.0, 1.5, -3.0, 1e-4, 100.0, 0.0], dtype=dtype)
    b = (
        torch.nextafter(a.float(), torch.tensor(INF))
        if dtype == torch.float32
        else a + ulp(a.double(), dtype).to(dtype)
    )
    assert ulp_distance(a, b).tolist() == [1] * len(a)
    assert ulp_error(b, a.double()).tolist() == [1.0] * len(a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_far_from_everything(dtype: torch.dtype) -> None:
    nan, one = torch.tensor([NAN], dtype=dtype), torch.ones(1, dtype=dtype)
    for a, b in ((nan, one), (one, nan), (nan, nan)):
        assert int(ulp_distance(a, b)) == FAR
        assert not bool(ulp_error(a, b.double()) <= 1e300)
        with pytest.raises(AssertionError, match="1 of 1 elements"):
            assert_within_ulp(a, b.double(), 1e300)
    assert_within_ulp(nan, nan.double(), nan=True)
    for a, b in ((nan, one), (one, nan)):
        with pytest.raises(AssertionError, match="1 of 1 elements"):
            assert_within_ulp(a, b.double(), 1e300, nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_is_right_only_where_the_truth_rounds_to_it(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    step = float(ulp(torch.tensor(largest, dtype=torch.float64), dtype))
    infinite, finite = torch.tensor([INF], dtype=dtype), torch.tensor([largest], dtype=dtype)
    for truth in (INF, largest + step, 2.0 * largest):
        assert_within_ulp(infinite, torch.tensor([truth], dtype=torch.float64), 0)
    assert_within_ulp(infinite, torch.tensor([largest + 0.6 * step], dtype=torch.float64), 0.5)
    wrong = [(infinite, 1.0), (infinite, largest), (infinite, -INF), (-infinite, largest * 2), (finite, INF)]
    for actual, truth in [*wrong, (finite, largest + 2 * step), (finite, NAN), (infinite, NAN)]:
        with pytest.raises(AssertionError, match="elements are more than"):
            assert_within_ulp(actual, torch.tensor([truth], dtype=torch.float64), 0.9)
    assert int(ulp_distance(infinite, finite)) == int(ulp_distance(infinite, -infinite)) == FAR
    assert int(ulp_distance(infinite, infinite)) == 0


def test_zero_has_one_place_and_two_patterns() -> None:
    zero, negative = torch.tensor([0.0]), torch.tensor([-0.0])
    assert int(ulp_distance(zero, negative)) == 0
    assert_within_ulp(negative, zero.double(), 0)
    with pytest.raises(AssertionError, match="1 of 1 elements differ"):
        assert_same_bits(zero, negative)


def test_a_failure_names_the_worst_element_and_how_many() -> None:
    truth = torch.zeros(2, 3, dtype=torch.float64) + 1.0
    actual = truth.bfloat16()
    actual[0, 1] += 2 * 2**-7
    actual[1, 2] -= 0.5
    with pytest.raises(AssertionError) as failure:
        assert_within_ulp(actual, truth)
    assert str(failure.value) == (
        "2 of 6 elements are more than 1 ulp of torch.bfloat16 from the truth. Worst at (1, 2): 0.5 instead of 1.0, "
        "64 ulp off. First at (0, 1)."
    )
    actual[1, 0] = NAN
    with pytest.raises(AssertionError, match=r"3 of 6 .* Worst at \(1, 0\): nan instead of 1.0, nan ulp off"):
        assert_within_ulp(actual, truth)


def test_another_shape_or_a_narrow_truth_fails() -> None:
    with pytest.raises(AssertionError, match=r"has shape \[1, 3\], the truth \[3\]"):
        assert_within_ulp(torch.ones(1, 3), torch.ones(3).double())
    with pytest.raises(AssertionError, match="must be float64"):
        assert_within_ulp(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="a distance needs one format"):
        ulp_distance(torch.ones(1), torch.ones(1).double())


def test_coarser_units_can_be_asked_for() -> None:
    assert_within_ulp(torch.tensor([1.004]), torch.ones(1).double(), 0.6, torch.bfloat16)
    with pytest.raises(AssertionError, match=r"ulp of torch\.float32"):
        assert_within_ulp(torch.tensor([1.004]), torch.ones(1).double(), 0.6)


def test_same_bits_sees_one_bit_and_takes_nan_for_itself() -> None:
    a = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).half()
    a[0, 0] = NAN
    assert_same_bits(a, a.clone())
    b = a.clone()
    b.view(torch.int16)[2, 4] ^= 1
    with pytest.raises(AssertionError, match=r"1 of 15 elements differ; the first at \(2, 4\)"):
        assert_same_bits(a, b)
    for other in (a.float(), a[:2]):
        with pytest.raises(AssertionError, match="the results have"):
            assert_same_bits(a, other)


def test_empty_results_compare() -> None:
    assert_within_ulp(torch.zeros(0, 3), torch.zeros(0, 3).double())
    assert_same_bits(torch.zeros(0, 3), torch.zeros(0, 3))
