"""Small sources and stand-ins for compilers, for the tests of building."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from qwen_cuda.building import BuildError, Library, toolchain

HEAD = 'extern "C" __attribute__((visibility("default"))) '


def can_build() -> bool:
    """Whether this machine has a C++ compiler and ninja."""
    try:
        return bool(toolchain.cxx() and toolchain.ninja())
    except BuildError:
        return False


needs_compiler = pytest.mark.skipif(not can_build(), reason="there is no C++ compiler or no ninja here")


def source(path: Path, body: str = "return 1;", before: str = "") -> Library:
    """A library of one file, in which `int answer()` has that body."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}\n{HEAD}int answer() {{ {body} }}\n", encoding="utf-8")
    return Library("sim", (path,))


def answer(path: Path) -> int:
    """What `answer` of a built library returns."""
    return int(ctypes.CDLL(str(path)).answer())


def program(folder: Path, name: str, body: str) -> Path:
    """An executable shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def wrapped_compiler(folder: Path, log: Path, before: str = "") -> Path:
    """The C++ compiler of this machine, which notes in `log` each source that it compiles, and first does `before`."""
    real = shutil.which(toolchain.cxx().words[0])
    note = f'case " $* " in *" -c "*) echo "$*" >> "{log}"; {before or ":"};; esac'
    return program(folder, "c++", f'{note}\nexec {real} "$@"')


def environment(builds: Path, compiler: Path | None = None) -> dict[str, str]:
    """For a Python of its own that builds into `builds`."""
    root = Path(__file__).resolve().parents[1]
    python_path = os.pathsep.join([str(root / "tests"), str(root), str(root / "kernels")])
    added = {"QWEN_BUILD_DIR": str(builds), "PYTHONPATH": python_path}
    return os.environ | added | ({"CXX": str(compiler)} if compiler else {})
