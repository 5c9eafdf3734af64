"""v5: four steps follow each other in one graph. What v4 does between kernels, it does between steps."""

from __future__ import annotations

from chapters.ch09_graph_capture.decoder import STEPS
from chapters.ch09_graph_capture.starting_batch import StartingBatch
from chapters.ch09_graph_capture.steps import v4_dependent_launch


class Decoding(v4_dependent_launch.Decoding):
    """v4's steps, `STEPS` at a time: the first enqueues those to come as well."""

    # --8<-- [start:step]
    def __init__(self, start: StartingBatch) -> None:
        super().__init__(start)
        self.kind = self.kind._replace(steps=STEPS)
        self.begin()
        self.step()  # captured, since v4 has run steps of this kind

    def enqueue(self) -> None:
        if (self.count - 1) % STEPS == 0:
            self.graphs(self.kind)

    # --8<-- [end:step]
