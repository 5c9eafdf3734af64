"""When a step is captured, when replayed, and what happens when it cannot be: with graphs that only count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch09_graph_capture.decode_step import StepKind
from chapters.ch09_graph_capture.step_graphs import StepGraphs

SHORT, LONG = StepKind(1, Plan(256, 1), True), StepKind(1, Plan(256, 8), True)


class FakeGraph:
    """Records what runs while it is captured, and runs nothing then."""

    recording: FakeGraph | None = None
    log: list[Any]

    def __init__(self) -> None:
        self.kinds: list[StepKind] = []

    def pool(self) -> str:
        return "the pool"

    def replay(self) -> None:
        FakeGraph.log.append(("replay", *self.kinds))


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pools with which captures began."""
    FakeGraph.log, begun = [], []

    @contextmanager
    def capture(graph: FakeGraph, pool: Any) -> Iterator[None]:
        begun.append(pool)
        FakeGraph.recording = graph
        try:
            yield
        finally:
            FakeGraph.recording = None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return begun


def run(kind: StepKind) -> None:
    if FakeGraph.recording is not None:
        FakeGraph.recording.kinds.append(kind)
    else:
        FakeGraph.log.append(("run", kind))


def test_the_first_step_of_a_kind_runs_and_all_others_are_replays(pools: list[Any]) -> None:
    graphs = StepGraphs(run, torch.device("cuda"))
    for kind in (SHORT, SHORT, SHORT, LONG, SHORT, LONG):
        graphs(kind)
    assert FakeGraph.log == [
        ("run", SHORT), ("replay", SHORT), ("replay", SHORT), ("run", LONG), ("replay", SHORT), ("replay", LONG),
    ]  # fmt: skip
    assert pools == [None, "the pool"]
    assert graphs.captured == (SHORT, LONG)


def test_steps_in_a_row_are_captured_at_once_when_one_of_their_kind_has_run(pools: list[Any]) -> None:
    graphs, four = StepGraphs(run, torch.device("cuda")), SHORT._replace(steps=4)
    assert not graphs.knows(four)
    for kind in (SHORT, four, four, SHORT):
        graphs(kind)
        assert graphs.knows(SHORT)
        assert graphs.knows(four)
    assert FakeGraph.log == [
        ("run", SHORT), ("replay", *[four] * 4), ("replay", *[four] * 4), ("replay", SHORT),
    ]  # fmt: skip
    assert graphs.captured == (four, SHORT)
    graphs(LONG._replace(steps=4))
    assert FakeGraph.log[-4:] == [("run", LONG._replace(steps=4))] * 4


@pytest.mark.parametrize(("device", "enabled"), [("cpu", True), ("cuda", False)])
def test_without_graphs_every_step_runs(pools: list[Any], device: str, enabled: bool) -> None:
    graphs = StepGraphs(run, torch.device(device), enabled)
    for _ in range(3):
        graphs(SHORT)
    assert FakeGraph.log == [("run", SHORT)] * 3
    assert pools == []
    assert not graphs.enabled


def test_a_capture_that_fails_is_told_once_and_steps_go_on(pools: list[Any]) -> None:
    def fails_later(kind: StepKind) -> None:
        if FakeGraph.recording is not None and kind == LONG:
            raise RuntimeError("operation not permitted when stream is capturing\nand a second line")
        run(kind)

    said: list[str] = []
    graphs = StepGraphs(fails_later, torch.device("cuda"), report=said.append)
    for kind in (SHORT, SHORT, LONG, LONG, LONG, SHORT):
        graphs(kind)
    assert said == [
        "CUDA graphs are off, which costs speed and nothing else: capturing failed: operation not permitted when stream"
        " is capturing"
    ]
    assert FakeGraph.log[-4:] == [("run", LONG), ("run", LONG), ("run", LONG), ("run", SHORT)]
    assert graphs.failure == "operation not permitted when stream is capturing"
    assert graphs.captured == ()
