"""What the lesson of graphs quotes of planted bugs is what is really said, and it counts as the cost model does."""

from __future__ import annotations

import itertools
import re

import pytest

from chapters.ch09_graph_capture import faults
from chapters.ch09_graph_capture.cost_model import DEPENDENT_US, GRAPH_US, HOST_US, READ_GBPS, Step, launches
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.testing.quotations import filled


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    return faults.reports()


def words() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


def test_a_dropped_barrier_shows_in_the_last_token_of_a_row_alone(reports: dict[str, str]) -> None:
    assert re.findall(r"(\d+) of 40", reports["race"]) == ["40", "40", "1"]


def test_the_simulator_reports_a_table_that_is_read_too_far_and_no_wrong_page(reports: dict[str, str]) -> None:
    assert "past the end of block_table" in reports["overrun"]
    right, early = (line.split()[1:] for line in reports["early"].splitlines())
    assert [one == other for one, other in zip(right, early, strict=True)] == [True, True, False, True]


def test_the_lesson_of_graphs_quotes_every_report_word_for_word(reports: dict[str, str]) -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch09_graph_capture.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def test_the_lesson_of_graphs_counts_as_the_model_does() -> None:
    count, (low, high) = launches(QWEN3_0_6B), HOST_US
    assert f"There are {count} of them" in words()
    assert f"{count} launches need {count * low:.0f} to {count * high:.0f} µs" in words()
    us = cost.decode_cost(QWEN3_0_6B, 1024).bytes / READ_GBPS / 1e3
    assert f"need {us:.0f} µs at a context of 1,024 (and {READ_GBPS / 1e3} TB/s)" in words()
    for name, each in (("in a graph", GRAPH_US), ("in a graph, dependent", DEPENDENT_US)):
        assert f"| {name} | the device's | {each} µs | {each * count:.0f} µs |" in words()


def test_what_the_figure_says_without_javascript_is_what_the_model_says() -> None:
    step = Step(142, 3.5, 1.8, GRAPH_US, 0.4)
    single, graph, dependent = (step.total_us(way) for way in ("one by one", "graph", "dependent"))
    assert 142 * 1.8 / single == pytest.approx(0.5, abs=0.02)
    assert graph / single == pytest.approx(0.75, abs=0.03)
    assert 0.4 < dependent / single < 0.5


@pytest.mark.parametrize(("launch", "expected"), [(4.0, 10 * 4.0 + 2.0), (2.0, 2.0 + 10 * 2.5 - 0.5)])
def test_the_model_is_that_of_the_lessons_formula(launch: float, expected: float) -> None:
    """The host decides, and the device does."""
    step = Step(10, launch, 2.0, 0.5)
    assert step.total_us("one by one") == pytest.approx(expected)
    assert step.total_us("graph") == pytest.approx(launch + 10 * 2.5 - 0.5)


def test_a_dependent_kernel_never_ends_before_what_it_waits_for() -> None:
    for ahead in (0.0, 0.5, 1.0):
        _, device = Step(6, 1.0, 2.0, 0.1, ahead).spans("dependent")
        for (_, before), (begin, end) in itertools.pairwise(device):
            assert end > before
            assert begin >= before - 2.0
