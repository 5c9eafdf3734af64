"""Records what the threads of a kernel do, and answers questions about it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qwen_cuda import loading
from qwen_cuda.building import Library
from qwen_cuda.simulator import trace_file
from qwen_cuda.simulator.requests import Event, Request, Transactions, events_of
from qwen_cuda.simulator.summary import Summary, summarize
from qwen_cuda.simulator.timeline import Timeline
from qwen_cuda.simulator.trace_file import Launch, MemoryObject, Recording


class Trace:
    """What kernels did between the start and the end of `trace(...)`: empty before its end.

    Counts are over all global-memory requests (`transactions`, `bytes_requested`, `bytes_moved`, `efficiency`) and all
    shared-memory requests (`bank_conflicts`) of all launches. Choose requests with `where` to count fewer.
    """

    def __init__(self) -> None:
        self.launches: tuple[Launch, ...] = ()
        self.objects: tuple[MemoryObject, ...] = ()
        self.events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Trace:
        """The trace in a file that cudasim_trace_stop has written.

        Raises:
            ValueError: the file is not such a trace.
        """
        made = cls()
        made._take(trace_file.read(path))
        return made

    def _take(self, recording: Recording) -> None:
        self.launches, self.objects = recording.launches, recording.objects
        self.events = tuple(events_of(recording))

    @property
    def requests(self) -> list[Request]:
        """The loads, stores and atomic operations of warps, in the order in which they were begun."""
        return [event for event in self.events if isinstance(event, Request)]

    def where(
        self,
        *,
        line: str | int | None = None,
        kind: str | None = None,
        target: str | None = None,
        space: str | None = None,
        launch: int | None = None,
        block: int | None = None,
        warp: int | None = None,
    ) -> list[Request]:
        """The requests for which all that is given holds.

        Args:
            line: its line in the kernel's file, such as 41 or "rms_norm.cu:41".
            kind: "load", "store" or "atomic".
            target: the name of an operand or of a shared variable.
            space: "global" or "shared".
            launch, block, warp: linear numbers, from 0.
        """
        wanted = {"kind": kind, "space": space, "launch": launch, "block": block, "warp": warp}
        asked = {name: value for name, value in wanted.items() if value is not None}
        chosen = [request for request in self.requests if all(getattr(request, k) == v for k, v in asked.items())]
        if target is not None:
            chosen = [request for request in chosen if request.object is not None and request.object.name == target]
        if isinstance(line, int):
            chosen = [request for request in chosen if request.site.line is not None and request.site.line.line == line]
        elif line is not None:
            chosen = [request for request in chosen if request.site.label == line]
        return chosen

    @property
    def transactions(self) -> Transactions:
        """Sectors and lines, summed over the requests: what two requests touch counts twice."""
        each = [request.transactions for request in self.requests]
        return Transactions(sum(t.sectors for t in each), sum(t.lines for t in each))

    @property
    def bytes_requested(self) -> int:
        """Of global memory, summed over the requests."""
        return sum(request.bytes_requested for request in self.where(space="global"))

    @property
    def bytes_moved(self) -> int:
        """Of global memory: 32 for each sector of each request."""
        return sum(request.bytes_moved for request in self.where(space="global"))

    @property
    def efficiency(self) -> float:
        """bytes_requested / bytes_moved; 1 if nothing moved."""
        return self.bytes_requested / self.bytes_moved if self.bytes_moved else 1.0

    @property
    def bank_conflicts(self) -> int:
        """Of shared memory, summed over the requests."""
        return sum(request.bank_conflicts for request in self.requests)

    def summary(self) -> Summary:
        """A table with a row for each line, kind of access and operand; print it, or show it in a notebook."""
        return summarize(self.requests)

    def timeline(self, block: int = 0, warp: int = 0, launch: int = 0) -> Timeline:
        """What one warp did, instruction by instruction.

        Raises:
            ValueError: there is no such launch, block or warp in the trace.
        """
        chosen = [e for e in self.events if (e.launch, e.block, e.warp) == (launch, block, warp)]
        if not chosen:
            shapes = ", ".join(f"{each.kernel} with grid {each.grid} and block {each.block}" for each in self.launches)
            where = f"launch {launch}, block {block}, warp {warp}"
            raise ValueError(f"{where} is not in the trace; it holds {shapes or 'no launch'}.")
        return Timeline(self.launches[launch], block, warp, chosen)


@contextlib.contextmanager
def trace(target: Library | loading.Loaded | ctypes.CDLL) -> Iterator[Trace]:
    """Records all launches of a checked library inside the `with`.

    Args:
        target: the library whose kernels are recorded, built with variant="checked". A Library is built, and operators
            of the simulator are pointed at it meanwhile, as by `loading.using`.

    Yields:
        A Trace, filled at the end of the `with`; after a kernel's error it holds what came before.

    Raises:
        ValueError: the library is not a checked build.
        OSError: the recording cannot be written.
    """
    if isinstance(target, Library):
        with loading.using(target) as loaded, trace(loaded) as made:
            yield made
        return
    handle = target if isinstance(target, ctypes.CDLL) else target.handle
    if not hasattr(handle, "cudasim_trace_start"):
        raise ValueError(f'{handle._name} records no accesses: build it as Library("sim", …, variant="checked").')
    handle.cudasim_trace_start.restype = None
    handle.cudasim_trace_stop.argtypes, handle.cudasim_trace_stop.restype = [ctypes.c_char_p], ctypes.c_int
    made = Trace()
    with tempfile.TemporaryDirectory(prefix="cudasim-") as folder:
        path = Path(folder) / "trace"
        handle.cudasim_trace_start()
        try:
            yield made
        finally:
            error = handle.cudasim_trace_stop(os.fsencode(path))
            if error:
                raise OSError(error, f"the trace cannot be written: {os.strerror(error)}", str(path))
            made._take(trace_file.read(path))
