"""The data of the figure `coalescing` is a trace of the kernels as they are, and says what their mappings say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from chapters.ch02_rms_norm.figures import coalescing
from qwen_cuda.building import BuildError

HIDDEN, ROWS, BYTES = coalescing.HIDDEN, coalescing.ROWS, 2


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    try:
        return coalescing.traced()
    except BuildError as error:
        pytest.skip(f"the simulator cannot be built here: {error.sentence}")


def test_committed_trace_is_what_the_kernels_do(traced: dict[str, Any]) -> None:
    committed = coalescing.FILE.read_text(encoding="utf-8")
    assert committed == coalescing.text_of(traced), "run `python -m chapters.ch02_rms_norm.figures.coalescing`"


def addresses(run: dict[str, int]) -> list[list[int]]:
    """First byte of each lane, request by request."""
    return [
        [run["first"] + i * run["per_repeat"] + lane * run["per_lane"] for lane in range(run["lanes"])]
        for i in range(run["repeats"])
    ]


def read_by(thread: int, threads: int) -> list[list[int]]:
    return [[BYTES * (i + lane) for lane in range(32)] for i in range(thread, HIDDEN, threads)]


# What the head of each file says: one row for each lane, element by element; elements t, t + 256, …; packs of 8.
EXPECTED = {
    "v1_thread_per_row": [[[BYTES * (HIDDEN * lane + i) for lane in range(32)] for i in range(HIDDEN)]] * 2,
    "v2_block_per_row": [read_by(0, 256)] * 2,
    "v3_warp_shuffle": [read_by(0, 256)] * 2,
    "v4_vector_registers": [[[16 * lane for lane in range(32)]]],
}


@pytest.mark.parametrize("step", EXPECTED)
def test_first_warp_reads_what_its_mapping_says(step: str, traced: dict[str, Any]) -> None:
    (found,) = (entry for entry in traced["steps"] if entry["step"] == step)
    passes = [addresses(run) for run in found["warp"]]
    assert passes == EXPECTED[step]


def test_totals_are_counted_over_all_rows(traced: dict[str, Any]) -> None:
    whole = ROWS * HIDDEN * BYTES
    totals = {entry["step"][:2]: entry["totals"] for entry in traced["steps"]}
    assert totals["v1"] == {"requests": 2 * HIDDEN, "sectors": 2 * HIDDEN * 32, "bytes": 2 * whole}
    assert totals["v2"] == totals["v3"] == {"requests": 2 * whole // 64, "sectors": 2 * whole // 32, "bytes": 2 * whole}
    assert totals["v4"] == {"requests": whole // 512, "sectors": whole // 32, "bytes": whole}


@dataclass
class Place:
    label: str = "x.cu:1"


@dataclass
class Asked:
    """As much of a request as `runs` looks at."""

    offsets: Any
    size: int = 2

    def __post_init__(self) -> None:
        self.offsets = np.asarray(self.offsets)
        self.lanes = np.arange(len(self.offsets))
        self.sizes = np.full(len(self.offsets), self.size)
        self.site = Place()


@pytest.mark.parametrize(
    "requests",
    [
        [[0, 2, 4]],
        [[0, 2, 4], [6, 8, 10], [12, 14, 16], [0, 2, 4], [6, 8, 10]],
        [[0, 2, 4], [100, 102, 104], [0, 64, 128], [2, 66, 130]],
        [[8], [8], [8], [4]],
        [[6, 4, 2], [0, -2, -4]],
    ],
)
def test_runs_hold_every_request_in_order(requests: list[list[int]]) -> None:
    asked: list[Any] = [Asked(offsets) for offsets in requests]
    found = coalescing.runs(asked)
    assert [place for run in found for place in addresses(run)] == requests
    assert len(found) < len(requests) or len(requests) == 1


def test_what_is_no_progression_is_refused() -> None:
    asked: list[Any] = [Asked([0, 2, 8])]
    with pytest.raises(ValueError, match=r"x\.cu:1: the lanes .* which is no progression"):
        coalescing.runs(asked)
