"""Decode steps as CUDA graphs, several of which may follow each other in one."""

from __future__ import annotations

from chapters.ch09_graph_capture.decode_step import StepKind
from chapters.ch09_graph_capture.launch_graphs import LaunchGraphs


class StepGraphs(LaunchGraphs[StepKind]):
    """`LaunchGraphs` of `kind.steps` steps each. How many makes no difference to what the first one prepares."""

    def _enqueue(self, kind: StepKind) -> None:
        for _ in range(kind.steps):
            self._run(kind)

    def _launched_as(self, kind: StepKind) -> StepKind:
        return kind._replace(steps=1)
