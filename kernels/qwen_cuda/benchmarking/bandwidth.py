"""Our own read, copy and empty kernel (bandwidth.cu): what is held against them was measured on the same card.

PyTorch's kernels also compute or write something: the ceiling that they give is some per cent too low.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qwen_cuda.building import BuildError, Library
from qwen_cuda.loading import load

SOURCE = Path(__file__).with_name("bandwidth.cu")


@dataclass(frozen=True)
class Way:
    """One way to stream through memory: 16-byte loads that a thread has in flight, and blocks for each SM."""

    in_flight: int
    blocks_per_sm: int

    def __str__(self) -> str:
        return f"our kernel, {self.in_flight} loads in flight, {self.blocks_per_sm} blocks an SM"


# Blocks have 512 threads. On most GPUs an SM holds 3 or 4 of them; what does not fit waits for its turn.
WAYS = (Way(4, 4), Way(8, 2), Way(8, 3), Way(8, 16))


class Streams:
    """The kernels of bandwidth.cu on a GPU of `sms` SMs, enqueued on `stream()`, by default PyTorch's current one.

    Raises:
        RuntimeError: from each method, a launch failed; the text says why.
    """

    def __init__(self, handle: ctypes.CDLL, sms: int, stream: Callable[[], int] | None = None) -> None:
        self._sms, self._stream = sms, stream or _current_stream
        self._functions = {name: getattr(handle, f"bandwidth_{name}") for name in ("read", "copy", "empty")}
        streaming = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        for name, function in self._functions.items():
            function.argtypes = [ctypes.c_void_p] if name == "empty" else streaming
            function.restype = ctypes.c_char_p

    def read(self, data: Tensor, sums: Tensor, way: Way) -> None:
        """Reads `data`, contiguous and a multiple of 16 bytes. `sums: [≥ blocks] int32` gets each block's sum."""
        self._run("read", data, sums, way)

    def copy(self, data: Tensor, to: Tensor, way: Way) -> None:
        """Copies `data` to `to`, both contiguous and as many bytes, a multiple of 16."""
        self._run("copy", data, to, way)

    def empty(self) -> None:
        """A kernel that does nothing."""
        self._call("empty", self._stream())

    def blocks(self, way: Way) -> int:
        return self._sms * way.blocks_per_sm

    def wrong(self, data: Tensor, to: Tensor) -> str | None:
        """Why a way is wrong on `data` (any of its bits count) and the equally large `to`; None when all are right."""
        words = data.view(torch.int32)
        want = int(words.sum(dtype=torch.int64)) % 2**32
        for way in WAYS:
            sums = torch.full((self.blocks(way),), 0x7FFFFFFF, dtype=torch.int32, device=data.device)
            self.read(data, sums, way)
            if int(sums.sum(dtype=torch.int64)) % 2**32 != want:
                return f"{way}: the words that were read have another sum than those in memory."
            to.view(torch.int32).fill_(-1)
            self.copy(data, to, way)
            if not torch.equal(to.view(torch.int32), words):
                return f"{way}: the copy differs from what was copied."
        return None

    def _run(self, name: str, data: Tensor, to: Tensor, way: Way) -> None:
        self._call(name, data.data_ptr(), data.nbytes, to.data_ptr(), self.blocks(way), way.in_flight, self._stream())

    def _call(self, name: str, *arguments: int) -> None:
        if problem := self._functions[name](*arguments):
            raise RuntimeError(f"bandwidth_{name}: {problem.decode(errors='replace')}")


def _current_stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


@functools.cache
def streams(device: torch.device) -> Streams | str:
    """The kernels on this GPU, built if need be; or a sentence that says why they are not used."""
    try:
        handle = load(library()).handle
    except BuildError as error:
        return f"PyTorch's kernels alone give the ceilings of memory, some per cent too low: {error.sentence}"
    found = Streams(handle, torch.cuda.get_device_properties(device).multi_processor_count)
    data = torch.randint(-(2**31), 2**31 - 1, (2**22 + 12,), dtype=torch.int32, device=device)
    if problem := found.wrong(data, torch.empty_like(data)):
        return f"PyTorch's kernels alone give the ceilings of memory: ours is wrong here, {problem}"
    return found


def library() -> Library:
    """What holds the kernels, to be built with others at once."""
    return Library("cuda", (SOURCE,))
