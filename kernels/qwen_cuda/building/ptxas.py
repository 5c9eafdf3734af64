"""Reads what `nvcc -Xptxas -v` writes about each kernel."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
from typing import TypedDict


class Usage(TypedDict):
    """What one kernel takes. Registers are per thread, shared memory per block, stack and spills per thread."""

    registers: int
    shared_bytes: int  # static: dynamic shared memory is chosen at the launch
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '\w+'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


def usages(text: str) -> dict[str, Usage]:
    """Readable kernel name → what it takes, from the messages of one compilation for one architecture."""
    found: dict[str, Usage] = {}
    for match in _ENTRY.finditer(text):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found[readable(match["name"])] = Usage(
            registers=int(match["registers"]),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(match["stack"]),
            spill_store_bytes=int(match["stores"]),
            spill_load_bytes=int(match["loads"]),
        )
    return found


def readable(symbol: str) -> str:
    """A kernel's name and template arguments as in the source, without namespaces and parameters.

    _ZN12_GLOBAL__N_19norm_rowsI13__nv_bfloat16Li2EEEv… is norm_rows<bf16, 2>.
    """
    name = _demangled(symbol)
    name = name.removeprefix("void ")
    name = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", name)
    name = name.replace("__nv_bfloat16", "bf16").replace("__half", "fp16").replace("float", "fp32")
    name = re.sub(r"\((?:int|bool|unsigned int)\)", "", name)
    depth = 0
    for index, sign in enumerate(name):  # the parameters begin at the first parenthesis outside of <…>
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth == 0:
            return name[:index]
    return name


def _demangled(symbol: str) -> str:
    """`symbol` itself where the C++ library cannot be asked."""
    function = _demangler()
    if function is None:
        return symbol
    status = ctypes.c_int()
    text = function(symbol.encode(), None, None, ctypes.byref(status))
    if not text:
        return symbol
    name = ctypes.string_at(text).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return name


@functools.cache
def _demangler() -> ctypes._NamedFuncPointer | None:
    for library in ("libstdc++.so.6", "libc++.1.dylib", ctypes.util.find_library("stdc++")):
        try:
            function = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError, TypeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return function
    return None
