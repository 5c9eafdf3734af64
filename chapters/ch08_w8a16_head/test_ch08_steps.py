"""Each step of the ladder is right: it passes every check of w8a16_linear without a norm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chapters.ch08_w8a16_head.w8_checks import LARGE, PLAIN_CHECKS, head_case
from qwen_cuda.testing.backends import opened, schedule
from qwen_cuda.testing.ladder import PLACE_IDS, PLACES, Place, built_for, step_library

STEPS = sorted((Path(__file__).parent / "steps").glob("v*.cu"))


@pytest.fixture(scope="module", params=PLACES, ids=PLACE_IDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Where steps run."""
    return built_for(request.param, STEPS)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_passes_the_checks_of_w8a16_linear(path: Path, place: Place) -> None:
    with opened(place[0], step_library(path, *place)) as backend:
        for check in PLAIN_CHECKS:
            if place[1] == "plain" or check not in LARGE:
                check(backend)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_of_the_head_is_right_in_another_order_of_threads(path: Path) -> None:
    with opened("sim", step_library(path, "sim", "plain")) as backend, schedule(7):
        for check in PLAIN_CHECKS:
            if check not in LARGE:
                check(backend)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_of_the_head_says_that_it_norms_nothing(path: Path) -> None:
    some = head_case(1, 4, 32, gain=torch.bfloat16)
    with (
        opened("sim", step_library(path, "sim", "plain")) as backend,
        pytest.raises(RuntimeError, match=rf"{path.stem[:2]} norms nothing: pass x normed"),
    ):
        backend.op("w8a16_linear")(some.x, some.qweight, some.scales, **some.options)


def test_the_ladder_has_three_steps_of_w8a16_linear() -> None:
    assert [path.stem.partition("_")[0] for path in STEPS] == ["v1", "v2", "v3"]
    for path in STEPS:
        with opened("sim", step_library(path, "sim", "plain")) as backend:
            assert backend.offered == {"w8a16_linear"}
