"""Builds the simulator's own test programs, which are plain C++ programs and need no PyTorch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qwen_cuda.building import KERNELS

SOURCES = KERNELS / "sim" / "tests"
FLAGS = (
    "-x c++ -std=c++17 -g -gdwarf-4 -fno-strict-aliasing -ffp-contract=off -fno-omit-frame-pointer -pthread "
    "-Wall -Wextra -Werror"
).split()
HEADERS = [f"-I{KERNELS / place}" for place in ("cuda/include", "sim/include", "sim/runtime")]
RUNTIME = KERNELS / "sim" / "runtime" / "cudasim" / "runtime.cpp"


def compiler() -> str:
    """The C++ compiler; skips the test where there is none."""
    name = os.environ.get("CXX", "c++")
    try:
        subprocess.run([name, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no C++ compiler {name}")
    return name


def build(folder: Path, name: str, sources: Sequence[str], *flags: str) -> Path:
    """The program `name` in `folder`, from files of kernels/sim/tests, two of them compiled at a time."""
    cxx = compiler()
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout
    lines = [] if "clang" in version else ["-gno-statement-frontiers"]  # see qwen_cuda.building.recipes

    def compile_one(source: Path) -> Path:
        made = folder / f"{name}-{source.name}.o"
        level = "-O2" if source == RUNTIME else "-Og"
        command = [cxx, *FLAGS, level, *lines, *HEADERS, *flags, "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = [str(made) for made in pool.map(compile_one, (*(SOURCES / source for source in sources), RUNTIME))]
    program = folder / name
    subprocess.run([cxx, "-pthread", *flags, *objects, "-o", str(program)], check=True)
    return program


def run(program: Path, *arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it; output and errors come back as one text."""
    merged = {key: value for key, value in os.environ.items() if not key.startswith("CUDASIM_")} | environment
    command = [str(program), *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=merged,
        timeout=timeout,
    )  # fmt: skip
