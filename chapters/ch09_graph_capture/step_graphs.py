"""Decode steps as CUDA graphs: what the CPU would launch one by one becomes a single launch.

A graph holds kernels with their arguments: grids, addresses, numbers. So all that changes from step to step must be in
memory that the kernels read, at addresses that stay. A step's kind says which graph: `StepKind`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chapters.ch09_graph_capture.decode_step import StepKind

Run = Callable[[StepKind], None]


class StepGraphs:
    """Runs steps: the first of a kind launch by launch, the second is captured and replayed, as are all after it.

    The first one builds, allocates and tunes what a capture must not; how many steps follow each other makes no
    difference to that. Graphs share one pool of memory, since no two run at once.

    Args:
        run: enqueues a step.
        device: on a CPU there are no graphs, and every step runs as it is.
        enabled: False runs every step as it is on a GPU too.
        report: gets a sentence when a capture has failed. All steps then run launch by launch.
    Attributes:
        captured: the kinds that are graphs by now.
        failure: why capture was given up, or None.
    """

    def __init__(
        self, run: Run, device: torch.device, enabled: bool = True, report: Callable[[str], None] | None = None
    ) -> None:
        self._run, self._device, self._report = run, device, report
        self.enabled = enabled and device.type == "cuda"
        self.failure: str | None = None
        self._graphs: dict[StepKind, Any] = {}
        self._seen: set[StepKind] = set()
        self._pool: Any = None

    @property
    def captured(self) -> tuple[StepKind, ...]:
        return tuple(self._graphs)

    def knows(self, kind: StepKind) -> bool:
        """Whether a step of this kind, alone or among several, has run."""
        return kind._replace(steps=1) in self._seen

    # --8<-- [start:call]
    def __call__(self, kind: StepKind) -> None:
        """Enqueues `kind.steps` steps on the current stream."""
        if self.enabled and self.knows(kind) and kind not in self._graphs:
            self._capture(kind)
        self._seen.add(kind._replace(steps=1))
        if kind in self._graphs:
            self._graphs[kind].replay()
        else:
            self._enqueue(kind)

    def _enqueue(self, kind: StepKind) -> None:
        for _ in range(kind.steps):
            self._run(kind)

    def _capture(self, kind: StepKind) -> None:
        """A capture only records: no kernel runs, and nothing changes in memory."""
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, pool=self._pool):
                self._enqueue(kind)
        except RuntimeError as error:
            self._give_up(error)
            return
        self._pool = graph.pool()
        self._graphs[kind] = graph

    # --8<-- [end:call]

    def _give_up(self, error: RuntimeError) -> None:
        self.enabled, self.failure = False, str(error).partition("\n")[0]
        self._graphs.clear()
        if self._report is not None:
            self._report(f"CUDA graphs are off, which costs speed and nothing else: capturing failed: {self.failure}")
