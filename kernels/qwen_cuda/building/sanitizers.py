"""Libraries of the variants asan and tsan need the sanitizer's runtime in the process before anything else.

subprocess.run([sys.executable, "-m", "pytest", …], env=os.environ | sanitizers.environment("asan"))
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

from qwen_cuda.building import toolchain
from qwen_cuda.building.library import BuildError

_RUNTIME = {"asan": "libasan.so", "tsan": "libtsan.so"}
_SYMBOL = {"asan": "__asan_init", "tsan": "__tsan_init"}
_OPTIONS = {
    # Python keeps memory to its end, which counts as leaked.
    "asan": ("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0"),
    # Python and PyTorch are not instrumented: what they order is not seen, so nothing of theirs is reported.
    "tsan": ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:report_signal_unsafe=0"),
}


def environment(variant: str) -> dict[str, str]:
    """What to add to the environment of a Python that loads libraries of `variant`, "asan" or "tsan".

    Raises:
        BuildError: the compiler has no such runtime.
    """
    # Without the C++ library beside it the sanitizer does not find what it must wrap, and the first throw ends it.
    runtimes = [_found(_RUNTIME[variant]), _found("libstdc++.so.6")]
    name, options = _OPTIONS[variant]
    given = [os.environ[name]] if os.environ.get(name) else []
    preload = [*runtimes, *os.environ.get("LD_PRELOAD", "").split()]
    return {"LD_PRELOAD": " ".join(preload), name: ":".join([options, *given])}


def check_loaded(variant: str) -> None:
    """Raises BuildError when this process lacks the runtime that a library of `variant` needs."""
    symbol = _SYMBOL.get(variant)
    if symbol and not hasattr(ctypes.CDLL(None), symbol):
        raise BuildError(
            f"A library of the variant {variant} can be loaded only where {_RUNTIME[variant]} came first: start Python "
            f'with the variables that qwen_cuda.building.sanitizers.environment("{variant}") gives.'
        )


def _found(name: str) -> str:
    """The file of a runtime that belongs to the compiler."""
    compiler = toolchain.cxx()
    command = [*compiler.words, f"-print-file-name={name}"]
    answer = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(answer):
        raise BuildError(f"{compiler.words[-1]} has no {name}: install your compiler's sanitizers, or set CXX=g++.")
    path = Path(answer)
    if path.stat().st_size < 4096:  # some systems have a text for the linker here, with the file's name in it
        named = re.search(r"/\S+\.so[.\d]*", path.read_text(encoding="utf-8", errors="replace"))
        path = Path(named[0]) if named else path
    return str(path.resolve())
