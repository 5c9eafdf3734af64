"""Each step of the ladder is right: it passes every check of the operators that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from chapters.ch02_rms_norm.add_rms_norm_checks import ADD_RMS_NORM_CHECKS
from chapters.ch02_rms_norm.rms_norm_checks import LARGE, RMS_NORM_CHECKS
from qwen_cuda.testing.backends import Backend, opened, schedule
from qwen_cuda.testing.ladder import PLACE_IDS, PLACES, Place, built_for, step_library
from qwen_cuda.testing.mutants import Check

STEPS = sorted((Path(__file__).parent / "steps").glob("v*.cu"))


@pytest.fixture(scope="module", params=PLACES, ids=PLACE_IDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Where steps run."""
    return built_for(request.param, STEPS)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_passes_the_checks_of_its_operators(path: Path, place: Place) -> None:
    with opened(place[0], step_library(path, *place)) as backend:
        for check in checks_of(backend):
            if place[1] == "plain" or check not in LARGE:
                check(backend)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_does_not_depend_on_the_order_of_threads(path: Path) -> None:
    with opened("sim", step_library(path, "sim", "plain")) as backend, schedule(7):
        for check in checks_of(backend):
            if check not in LARGE:
                check(backend)


def checks_of(backend: Backend) -> list[Check]:
    assert backend.offers("rms_norm")
    return [*RMS_NORM_CHECKS, *(ADD_RMS_NORM_CHECKS if backend.offers("add_rms_norm") else ())]


def test_the_ladder_leads_to_both_operators() -> None:
    assert [path.stem.partition("_")[0] for path in STEPS] == ["v1", "v2", "v3", "v4", "v5"]
    with opened("sim", step_library(STEPS[-1], "sim", "plain")) as backend:
        assert backend.offers("add_rms_norm")
