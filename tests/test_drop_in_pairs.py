"""The ratio of paired times and its interval."""

from __future__ import annotations

import math
import random

import pytest

from chapters.ch03_swiglu.drop_in.pairs import Speedup


def test_equal_ratios_have_no_spread() -> None:
    found = Speedup.of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == Speedup(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))  # type: ignore[arg-type]


def test_drift_that_hits_both_alike_cancels() -> None:
    drift = [1.0, 1.3, 0.7, 2.0]
    found = Speedup.of([1.5 * d for d in drift], drift)
    assert found.ratio == pytest.approx(1.5)
    assert found.low == pytest.approx(1.5)


def test_the_inverse_pairs_have_the_inverse_interval() -> None:
    a, b = [1.0, 1.2, 1.1], [0.9, 1.0, 1.05]
    there, back = Speedup.of(a, b), Speedup.of(b, a)
    assert there.low is not None
    assert back.high is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


def test_one_pair_has_no_interval() -> None:
    assert Speedup.of([3.0], [2.0]) == Speedup(pytest.approx(1.5), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("pairs", [2, 8, 40])
def test_the_interval_holds_the_truth_nineteen_times_of_twenty(pairs: int) -> None:
    draw, held, runs = random.Random(pairs), 0, 2000
    for _ in range(runs):
        after = [math.exp(draw.gauss(0, 0.1)) for _ in range(pairs)]
        before = [1.2 * math.exp(draw.gauss(0, 0.1)) for _ in range(pairs)]
        found = Speedup.of(before, after)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.2 <= found.high
    # A share of 0.95 over 2000 runs has a standard error of 0.005: five of them to each side.
    assert abs(held / runs - 0.95) < 0.025


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], []), ([1.0], [0.0]), ([math.nan], [1.0])])
def test_what_is_no_pair_of_times_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must be pairs|needs times above 0"):
        Speedup.of(before, after)
