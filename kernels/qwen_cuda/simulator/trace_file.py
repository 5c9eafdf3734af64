"""Reads what a checked build of the simulator has recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen_cuda.simulator.source_lines import Frame, Site, frames_at, without_simulator

READ, WRITE, ATOMIC, BARRIER, WARP_FUNCTION = range(5)
NOWHERE, GLOBAL, SHARED = range(3)

# TraceRecord of kernels/sim/runtime/cudasim/trace.h
RECORD = np.dtype(
    [
        ("launch", "<u2"),
        ("thread", "<u2"),
        ("object", "<i2"),
        ("kind", "u1"),
        ("space", "u1"),
        ("block", "<u4"),
        ("sequence", "<u4"),
        ("site", "<u4"),
        ("bytes", "<u4"),
        ("offset", "<i8"),
    ]
)


@dataclass(frozen=True)
class Launch:
    """A kernel and the shape of its launch: blocks and threads in x, y, z."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        x, y, z = self.block
        return x * y * z


@dataclass(frozen=True)
class MemoryObject:
    """An operand in global memory or a variable in shared memory. `function` declares it, if it is shared."""

    name: str
    space: str
    bytes: int
    address: int
    function: str


@dataclass(frozen=True)
class Recording:
    """All that a file holds. `records` has the fields of RECORD; `names` are those of barriers and warp functions."""

    launches: tuple[Launch, ...]
    objects: tuple[MemoryObject, ...]
    sites: tuple[Site, ...]
    names: tuple[str, ...]
    records: NDArray[np.void]


def read(path: Path) -> Recording:
    """Reads the file that cudasim_trace_stop has written.

    Raises:
        ValueError: the file is not one of those, or is cut off.
    """
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(head)
    except ValueError as error:
        raise ValueError(f"{path} is not a trace of the simulator: its first line is not JSON ({error}).") from error
    if len(body) != header["records"] * RECORD.itemsize:
        raise ValueError(
            f"{path} is cut off: {len(body)} bytes of records, {header['records'] * RECORD.itemsize} expected."
        )
    library = Path(header["library"])
    kernels = [launch["kernel"] for launch in header["launches"]]
    addresses = {pc for site in header["sites"] for pc in site["pcs"]}
    frames = frames_at(library, [*addresses, *kernels])
    launches = tuple(
        Launch(
            kernel=frames[kernel][-1].function if frames[kernel] else f"{library.name}+{kernel:#x}",
            grid=tuple(launch["grid"]),
            block=tuple(launch["block"]),
            dynamic_shared_bytes=launch["dynamic_shared_bytes"],
        )
        for launch, kernel in zip(header["launches"], kernels, strict=True)
    )
    objects = tuple(MemoryObject(**fields) for fields in header["objects"])
    sites = tuple(_site(number, fields, frames, library) for number, fields in enumerate(header["sites"]))
    records = np.frombuffer(body, dtype=RECORD)
    return Recording(launches, objects, sites, tuple(header["names"]), records)


def _site(number: int, fields: dict[str, Any], frames: dict[int, list[Frame]], library: Path) -> Site:
    chain = [Frame("", fields["file"], fields["line"])] if fields["line"] else []
    chain += [frame for pc in fields["pcs"] for frame in frames[pc]]
    unknown = f"{library.name}+{fields['pcs'][0]:#x}" if fields["pcs"] else "?"
    return Site(number, without_simulator(chain), unknown)
