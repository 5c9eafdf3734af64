"""Calls the small kernels of kernels/sim/tests/checked_*.cu, for the tests of the checked simulator."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen_cuda import simulator
from qwen_cuda.building import KERNELS, Library

FOLDER = KERNELS / "sim" / "tests"
FAULTS = Library("sim", (FOLDER / "checked_faults.cu",), "checked")
PATTERNS = Library("sim", (FOLDER / "checked_patterns.cu",), "checked")
OPERAND = 32  # floats of `in` and `out`, where nothing else is said


def aligned(count: int) -> NDArray[np.float32]:
    """[count] zeros that begin at a multiple of 128 bytes, with memory of the process on both sides."""
    room = np.zeros(count + 256, np.float32)
    first = 64 + (-(room.ctypes.data // 4) - 64) % 32
    return room[first : first + count]


def call(handle: ctypes.CDLL, name: str, number: int, inputs: int = OPERAND, outputs: int = OPERAND) -> str:
    """Runs a kernel on operands `in` and `out` of so many floats; returns its report, "" if all was well."""
    pairs = {"in": aligned(inputs), "out": aligned(outputs)}
    for operand, array in pairs.items():
        address, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        handle.cudasim_operand(operand.encode(), address, size, int(operand == "out"))
    function = getattr(handle, f"{name}_run")
    function.restype = ctypes.c_char_p
    try:
        return str(function(*(ctypes.c_void_p(array.ctypes.data) for array in pairs.values()), number).decode())
    finally:
        handle.cudasim_forget_operands()


def traced(handle: ctypes.CDLL, name: str, number: int = 1, inputs: int = 1056, outputs: int = 128) -> simulator.Trace:
    """The trace of a kernel that must run without a report."""
    with simulator.trace(handle) as made:
        assert call(handle, name, number, inputs, outputs) == ""
    return made


def marked(file: str, mark: str) -> str:
    """The place of the line whose comment is `@mark`, such as "checked_faults.cu:41"."""
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if re.search(rf"// @{re.escape(mark)}$", line))
    return f"{Path(file).name}:{number}"
