"""Each step of the ladder is right: it passes every check of the operator, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from chapters.ch10_quantized_kv.store_checks import STORE_CHECKS
from qwen_cuda.testing.backends import opened, schedule
from qwen_cuda.testing.ladder import PLACE_IDS, PLACES, Place, built_for, step_library

STEPS = sorted((Path(__file__).parent / "steps").glob("v*.cu"))


@pytest.fixture(scope="module", params=PLACES, ids=PLACE_IDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Where steps run."""
    return built_for(request.param, STEPS)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_passes_the_checks_of_the_store(path: Path, place: Place) -> None:
    with opened(place[0], step_library(path, *place)) as backend, schedule(7 if place[1] == "plain" else 0):
        for check in STORE_CHECKS:
            check(backend)


def test_the_ladder_of_chapter_10_is_complete() -> None:
    assert [path.stem.partition("_")[0] for path in STEPS] == ["v1", "v2"]
