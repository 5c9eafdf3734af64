"""The steps of a chapter's ladder in its tests: where they run, and as which library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qwen_cuda.building import Library, build
from qwen_cuda.testing.backends import Name, unavailable

Place = tuple[Name, str]  # a backend that runs kernels, and a variant of its libraries
PLACES: list[Place] = [("sim", "plain"), ("sim", "checked"), ("cuda", "plain")]
PLACE_IDS = ["sim", "sim-checked", "cuda"]


def step_library(path: Path, name: Name, variant: str) -> Library:
    """The file of a step, for the simulator or for a GPU."""
    return Library("cuda" if name == "cuda" else "sim", (path,), variant)


def built_for(place: Place, steps: Sequence[Path]) -> Place:
    """`place`, with all steps built for it together; skips the test where this machine does not have it."""
    if reason := unavailable(place[0]):
        pytest.skip(reason)
    build(*(step_library(path, *place) for path in steps))
    return place
