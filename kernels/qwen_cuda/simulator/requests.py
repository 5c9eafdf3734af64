"""Warp-level instructions: the accesses of a warp's lanes, put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qwen_cuda.simulator import memory_model
from qwen_cuda.simulator.memory_model import LINE_BYTES, SECTOR_BYTES, WARP, Integers
from qwen_cuda.simulator.source_lines import Site
from qwen_cuda.simulator.trace_file import ATOMIC, BARRIER, GLOBAL, READ, SHARED, WRITE, MemoryObject, Recording

KINDS = {READ: "load", WRITE: "store", ATOMIC: "atomic"}
SPACES = {GLOBAL: "global", SHARED: "shared"}
# An operand is taken to lie on a GPU as it lies in the CPU's memory, to 64 bytes: so PyTorch aligns its tensors there.
# On a GPU allocations begin at multiples of 256.
ALIGNMENT_BYTES = 64


class Transactions(NamedTuple):
    """Of global memory: 32-byte sectors and 128-byte lines that are touched."""

    sectors: int
    lines: int


@dataclass(frozen=True, eq=False)
class Event:
    """One instruction of a warp. `lanes` are those that took part; `order` is each lane's count of events before it."""

    launch: int
    block: int
    warp: int
    site: Site
    lanes: Integers
    order: Integers

    @property
    def mask(self) -> int:
        """The lanes as bits."""
        return sum(1 << int(lane) for lane in self.lanes)


@dataclass(frozen=True, eq=False)
class Meeting(Event):
    """A barrier or a warp function. `named_lanes` is its mask argument; 0 for a barrier of the block."""

    name: str
    named_lanes: int


@dataclass(frozen=True, eq=False)
class Request(Event):
    """A load, a store or an atomic operation: `offsets` and `sizes` are the bytes of each lane, in `object`.

    Without an object (memory that is no operand) offsets are addresses.
    """

    kind: str
    space: str
    object: MemoryObject | None
    offsets: Integers
    sizes: Integers

    @cached_property
    def addresses(self) -> Integers:
        """[lanes] What counts for sectors and lines: offsets from a multiple of 128 bytes."""
        return self.offsets + (self.object.address % ALIGNMENT_BYTES if self.object else 0)

    @cached_property
    def transactions(self) -> Transactions:
        """Sectors and lines that the request touches; none in shared memory."""
        if self.space != "global":
            return Transactions(0, 0)
        counts = [memory_model.segments(self.addresses, self.sizes, size).size for size in (SECTOR_BYTES, LINE_BYTES)]
        return Transactions(*counts)

    @cached_property
    def bytes_requested(self) -> int:
        """Distinct bytes that the lanes ask for."""
        return memory_model.distinct_bytes(self.addresses, self.sizes)

    @property
    def bytes_moved(self) -> int:
        """32 for each sector; in shared memory nothing else than what is asked for."""
        return SECTOR_BYTES * self.transactions.sectors if self.space == "global" else self.bytes_requested

    @property
    def efficiency(self) -> float:
        """bytes_requested / bytes_moved: 1 where each byte that moves is wanted."""
        return self.bytes_requested / self.bytes_moved

    @cached_property
    def wavefronts(self) -> tuple[int, int]:
        """Of shared memory: as many as it takes, and as many as it takes without conflicts. (0, 0) elsewhere."""
        if self.space != "shared":
            return 0, 0
        return memory_model.wavefronts(self.lanes, self.offsets, self.sizes, self.kind == "atomic")

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts beyond those that are needed without conflicts."""
        return self.wavefronts[0] - self.wavefronts[1]

    @property
    def target(self) -> str:
        """Such as "x" or "__shared__ partial"."""
        name = self.object.name if self.object else "memory"
        return f"__shared__ {name}" if self.space == "shared" else name


def events_of(recording: Recording) -> Iterator[Event]:
    """The warp instructions of a recording, in the order in which they were begun.

    Lanes of one warp that come to the same place of the code for the same time (their first, second, … there) are taken
    for one instruction. A GPU decides that while it runs: where lanes of a warp have gone apart and do not come
    together again, it may issue more instructions than are counted here.
    """
    records = recording.records
    if records.size == 0:
        return
    site = _places(recording)
    occurrence = _occurrence(records, site)
    warp = records["thread"] // WARP
    keys = (records["launch"], records["block"], warp, site, records["kind"], records["space"], occurrence)
    order = np.lexsort((records["thread"], *reversed(keys)))
    changes = np.zeros(records.size, dtype=bool)
    changes[0] = True
    for key in keys:
        changes[1:] |= np.diff(key[order].astype(np.int64)) != 0
    starts = np.flatnonzero(changes)
    groups = np.split(order, starts[1:])
    for group in sorted(groups, key=lambda group: int(group.min())):
        yield _event(recording, records[group])


def _places(recording: Recording) -> Integers:
    """[records] The number of the place. A barrier's is its line: a compiler may call it twice, for different lanes."""
    first: dict[object, int] = {}
    line = np.array([first.setdefault((site.chain or (site.number,))[0], site.number) for site in recording.sites])
    site = recording.records["site"].astype(np.int64)
    return np.where(recording.records["kind"] >= BARRIER, line[site], site)


def _occurrence(records: NDArray[np.void], site: Integers) -> Integers:
    """[records] How many records of the same thread, place, kind and space came before."""
    keys = [records["launch"], records["block"], records["thread"], site, records["kind"], records["space"]]
    order = np.lexsort((records["sequence"], *reversed(keys)))
    first = np.zeros(records.size, dtype=bool)
    first[0] = True
    for key in keys:
        first[1:] |= np.diff(key[order].astype(np.int64)) != 0
    index = np.arange(records.size)
    within = index - np.maximum.accumulate(np.where(first, index, 0))
    occurrence = np.empty(records.size, dtype=np.int64)
    occurrence[order] = within
    return occurrence


def _event(recording: Recording, records: NDArray[np.void]) -> Event:
    one = records[0]
    lanes = records["thread"].astype(np.int64) % WARP
    order = records["sequence"].astype(np.int64)
    launch, block, warp = int(one["launch"]), int(one["block"]), int(one["thread"]) // WARP
    site, number = recording.sites[int(one["site"])], int(one["object"])
    if one["kind"] >= BARRIER:
        return Meeting(launch, block, warp, site, lanes, order, recording.names[number], int(one["bytes"]))
    target = recording.objects[number] if number >= 0 else None
    offsets, sizes = records["offset"].astype(np.int64), records["bytes"].astype(np.int64)
    kind, space = KINDS[int(one["kind"])], SPACES[int(one["space"])]
    return Request(launch, block, warp, site, lanes, order, kind, space, target, offsets, sizes)
