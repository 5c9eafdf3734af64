"""What one request of a warp costs a GPU's memory: sectors, lines and wavefronts, counted from its addresses.

A *request* is one instruction of a warp with the addresses of its active lanes. These are counts of what the addresses
ask for, not a model of caches or of time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

WARP = 32
SECTOR_BYTES = 32
LINE_BYTES = 128
BANKS = 32
BANK_BYTES = 4

Integers = NDArray[np.int64]


def segments(addresses: ArrayLike, sizes: ArrayLike, segment_bytes: int) -> Integers:
    """The numbers of the segments of `segment_bytes` that hold any byte of the accesses, sorted, each once.

    Global memory: a request takes as many 32-byte transactions (sectors) as are needed to serve all its lanes, whatever
    their order (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory", for compute capability 6.0 and up).
    The cache's lines and tags are 128 bytes: four sectors (Nsight Compute's documentation, "L1/TEX Cache").

    Args:
        addresses: [n] int, in bytes.
        sizes: [n] int, bytes of each access, at least 1.
        segment_bytes: SECTOR_BYTES or LINE_BYTES.
    """
    first = np.asarray(addresses, dtype=np.int64)
    last = first + np.asarray(sizes, dtype=np.int64) - 1
    return np.unique(np.concatenate([first // segment_bytes, last // segment_bytes]))  # at most 16 bytes: at most 2


def distinct_bytes(addresses: ArrayLike, sizes: ArrayLike) -> int:
    """How many bytes the request asks for, where several lanes ask for the same one counting it once."""
    starts, lengths = np.asarray(addresses, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
    if starts.size == 0:
        return 0
    steps = np.arange(lengths.max())
    bytes_ = starts[:, None] + steps
    return int(np.unique(bytes_[steps < lengths[:, None]]).size)


def phases(lanes: ArrayLike, sizes: ArrayLike) -> Integers:
    """[n] In which part of a shared-memory request each lane is served.

    Lanes that ask for at most 4 bytes are served together. 8 bytes are served in two halves of the warp, 16 bytes in
    four quarters, each part without conflicts of its own if its lanes fall on different banks. (CUDA C++ Programming
    Guide, "Shared Memory" of compute capability 2.x, for 64-bit and 128-bit accesses; later GPUs measure so.)
    """
    widths, numbers = np.asarray(sizes, dtype=np.int64), np.asarray(lanes, dtype=np.int64)
    return np.where(widths <= 4, 0, np.where(widths <= 8, numbers // 16, numbers // 8))


def wavefronts(lanes: ArrayLike, offsets: ArrayLike, sizes: ArrayLike, atomic: bool = False) -> tuple[int, int]:
    """How often shared memory must be asked to serve one request, and how often without any bank conflict.

    32 banks hold successive 4-byte words in turn, and each serves one word at a time. Lanes that read the same word are
    served at once (a broadcast); of lanes that write it, one is. Different words of one bank come one after the other
    (CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and up). Atomic operations on one word are
    done one by one (the same guide, "SIMT Architecture").

    Args:
        lanes, offsets, sizes: [n] int: lane, byte offset from the start of bank 0, bytes of each access.
        atomic: whether the request is an atomic operation.

    Returns:
        (wavefronts, wavefronts without conflicts). Their difference is the number of bank conflicts.
    """
    parts = phases(lanes, sizes)
    first = np.asarray(offsets, dtype=np.int64) // BANK_BYTES
    last = (np.asarray(offsets, dtype=np.int64) + np.asarray(sizes, dtype=np.int64) - 1) // BANK_BYTES
    total, ideal = 0, 0
    for part in np.unique(parts):
        words: list[int] = []
        for low, high in zip(first[parts == part], last[parts == part], strict=True):
            words.extend(range(int(low), int(high) + 1))
        counted = words if atomic else sorted(set(words))
        total += int(np.bincount(np.asarray(counted) % BANKS).max())
        ideal += 1
    return total, ideal
