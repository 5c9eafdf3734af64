"""v3: the launches of a step are recorded once, and replayed as one."""

from __future__ import annotations

from chapters.ch09_graph_capture.starting_batch import StartingBatch
from chapters.ch09_graph_capture.step_graphs import StepGraphs
from chapters.ch09_graph_capture.steps import v2_static_buffers


class Decoding(v2_static_buffers.Decoding):
    """v2's steps as a CUDA graph. On a CPU there is none, and they run as they are."""

    # --8<-- [start:step]
    def __init__(self, start: StartingBatch) -> None:
        super().__init__(start)
        self.graphs = StepGraphs(self.run, start.model.device)
        self.begin()
        for _ in range(2):  # the first step of a kind allocates, the second is captured
            self.step()

    def enqueue(self) -> None:
        self.graphs(self.kind)

    # --8<-- [end:step]
