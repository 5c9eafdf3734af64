"""Each step of the ladder is right: it passes every check of decode_linear."""

from __future__ import annotations

from pathlib import Path

import pytest

from chapters.ch07_decode_gemv.decode_linear_checks import DECODE_LINEAR_CHECKS, LARGE
from qwen_cuda.testing.backends import opened, schedule
from qwen_cuda.testing.ladder import PLACE_IDS, PLACES, Place, built_for, step_library

STEPS = sorted((Path(__file__).parent / "steps").glob("v*.cu"))


@pytest.fixture(scope="module", params=PLACES, ids=PLACE_IDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Where steps run."""
    return built_for(request.param, STEPS)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_passes_the_checks_of_decode_linear(path: Path, place: Place) -> None:
    with opened(place[0], step_library(path, *place)) as backend:
        for check in DECODE_LINEAR_CHECKS:
            if place[1] == "plain" or check not in LARGE:
                check(backend)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_of_decode_linear_is_right_in_another_order_of_threads(path: Path) -> None:
    with opened("sim", step_library(path, "sim", "plain")) as backend, schedule(7):
        for check in DECODE_LINEAR_CHECKS:
            if check not in LARGE:
                check(backend)


def test_the_ladder_has_four_steps_of_decode_linear() -> None:
    assert [path.stem.partition("_")[0] for path in STEPS] == ["v1", "v2", "v3", "v4"]
    for path in STEPS:
        with opened("sim", step_library(path, "sim", "plain")) as backend:
            assert backend.offered == {"decode_linear"}
