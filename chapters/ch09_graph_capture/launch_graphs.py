"""Work as CUDA graphs: what the CPU would launch one by one becomes a single launch.

A graph holds kernels with their arguments: grids, addresses, numbers. So all that changes from one run to the next must
be in memory that the kernels read, at addresses that stay. What cannot is a kind, and each kind has a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

Kind = TypeVar("Kind", bound=Hashable)


class LaunchGraphs(Generic[Kind]):
    """Runs work: the first of a kind launch by launch, the second is captured and replayed, as are all after it.

    The first one builds, allocates and tunes what a capture must not. Graphs share one pool of memory, since no two run
    at once.

    Args:
        run: enqueues the work of a kind.
        device: on a CPU there are no graphs, and everything runs as it is.
        enabled: False runs everything as it is on a GPU too.
        report: gets a sentence when a capture has failed. All work then runs launch by launch.
        name: of the graphs, in that sentence.
    Attributes:
        captured: the kinds that are graphs by now.
        failure: why capture was given up, or None.
    """

    def __init__(
        self,
        run: Callable[[Kind], None],
        device: torch.device,
        enabled: bool = True,
        report: Callable[[str], None] | None = None,
        name: str = "CUDA graphs",
    ) -> None:
        self._run, self._device, self._report, self._name = run, device, report, name
        self.enabled = enabled and device.type == "cuda"
        self.failure: str | None = None
        self._graphs: dict[Kind, Any] = {}
        self._seen: set[Kind] = set()
        self._pool: Any = None

    @property
    def captured(self) -> tuple[Kind, ...]:
        return tuple(self._graphs)

    def knows(self, kind: Kind) -> bool:
        """Whether work of this kind has run, so that it can be captured."""
        return self._launched_as(kind) in self._seen

    # --8<-- [start:call]
    def __call__(self, kind: Kind) -> None:
        """Enqueues work on the current stream."""
        if self.enabled and self.knows(kind) and kind not in self._graphs:
            self._capture(kind)
        self._seen.add(self._launched_as(kind))
        if kind in self._graphs:
            self._graphs[kind].replay()
        else:
            self._enqueue(kind)

    def _capture(self, kind: Kind) -> None:
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

    def _enqueue(self, kind: Kind) -> None:
        self._run(kind)

    def _launched_as(self, kind: Kind) -> Kind:
        """The kind of which one run prepares for this one as well."""
        return kind

    def _give_up(self, error: RuntimeError) -> None:
        self.enabled, self.failure = False, str(error).partition("\n")[0]
        self._graphs.clear()
        if self._report is not None:
            self._report(f"{self._name} are off, which costs speed and nothing else: capturing failed: {self.failure}")
