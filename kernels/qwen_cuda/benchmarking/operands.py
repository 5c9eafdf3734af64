"""Sets of operands that take turns, so that none lies in a cache when its turn comes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Operands = dict[str, Tensor]
CACHES = 4  # all sets together are so many times as large as the cache
MOST_SETS = 512


@dataclass(frozen=True)
class Rotation:
    """Sets of operands of one shape.

    Attributes:
        set_bytes: the memory of one set; a tensor that two names share counts once.
        overflows: all sets together are `CACHES` times as large as the cache.
    """

    sets: tuple[Operands, ...]
    set_bytes: int
    overflows: bool

    @property
    def bytes(self) -> int:
        return self.set_bytes * len(self.sets)


def rotate(make: Callable[[int], Operands], cache_bytes: int, most: int = MOST_SETS) -> Rotation:
    """As many sets as overflow `cache_bytes`, but 2 at least and `most` at most. Without a cache (0) there is one set.

    Args:
        make: gives a set of its own for each number from 0 on. Outputs hold NaN, so that it shows when nobody writes.
    Raises:
        ValueError: two sets share memory, or a set has none.
    """
    first = make(0)
    set_bytes = sum(_storages(first).values())
    if set_bytes == 0:
        raise ValueError("make(0) gives tensors without elements; a set of operands must have some.")
    needed = math.ceil(CACHES * cache_bytes / set_bytes)
    count = min(max(needed, 2), most) if cache_bytes else 1
    sets = (first, *(make(number) for number in range(1, count)))
    if len(set().union(*(_storages(one) for one in sets))) != sum(len(_storages(one)) for one in sets):
        raise ValueError("make gives two sets that share memory; each set must have tensors of its own.")
    return Rotation(sets, set_bytes, overflows=bool(cache_bytes) and set_bytes * count >= CACHES * cache_bytes)


def cache_bytes(device: torch.device) -> int:
    """The L2 cache of a GPU; 0 for a CPU, where benchmarks of operators run warm."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def _storages(operands: Operands) -> dict[int, int]:
    """Address → bytes of what lies behind the tensors."""
    storages = (tensor.untyped_storage() for tensor in operands.values())
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
