"""The programs that builds need, found as a reader expects, with one sentence for each that is missing."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qwen_cuda.building.library import BuildError

OLDEST_ARCH = 75


@dataclass(frozen=True)
class Tool:
    """A program: the words that start it, and what it says its version is."""

    words: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


@functools.cache
def _says(words: tuple[str, ...], argument: str, stamp: float) -> str | None:
    """What `words argument` prints; None when it does not run. `stamp` is the program's time of change."""
    try:
        answer = subprocess.run([*words, argument], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def ask(words: tuple[str, ...], argument: str) -> str | None:
    """What `words argument` prints, asked once in a process; None when there is no such program or it fails."""
    path = shutil.which(words[0])
    return _says((path, *words[1:]), argument, os.stat(path).st_mtime) if path else None


def cxx() -> Tool:
    """The C++ compiler: $CXX, else c++, g++ or clang++.

    Raises:
        BuildError: there is none, or $CXX does not run.
    """
    named = os.environ.get("CXX")
    for words in [tuple(shlex.split(named))] if named else [("c++",), ("g++",), ("clang++",)]:
        version = ask(words, "--version")
        if version is not None:
            return Tool((shutil.which(words[0]) or words[0], *words[1:]), version.partition("\n")[0])
    if named:
        raise BuildError(f"The C++ compiler {named!r} does not run: set CXX to one that does, or unset it.")
    raise BuildError(
        "A C++ compiler is needed and none was found: run `sudo apt install g++` on Debian, Ubuntu or WSL2, "
        "`xcode-select --install` on macOS."
    )


def ninja() -> Tool:
    """The program ninja: of the Python package, else on the PATH.

    Raises:
        BuildError: there is none.
    """
    folders = [str(Path(sys.executable).parent)]
    with contextlib.suppress(ImportError):
        import ninja as package

        folders.append(package.BIN_DIR)
    for word in (*(os.path.join(folder, "ninja") for folder in folders), "ninja"):
        version = ask((word,), "--version")
        if version is not None:
            return Tool((shutil.which(word) or word,), version.strip())
    raise BuildError(
        f"ninja is needed and was not found: run `make setup`, or `{sys.executable} -m pip install ninja`."
    )


def cuda_home() -> Path | None:
    """The CUDA toolkit: $CUDA_HOME, $CUDA_PATH, the nvcc on the PATH, or /usr/local/cuda; None when there is none."""
    for key in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(key):
            return Path(os.environ[key])
    on_path = shutil.which("nvcc")
    places = [Path(on_path).resolve().parents[1]] if on_path else []
    return next((place for place in (*places, Path("/usr/local/cuda")) if (place / "bin" / "nvcc").exists()), None)


def nvcc() -> Tool:
    """nvcc, its version such as "13.0".

    Raises:
        BuildError: there is none, or it does not run.
    """
    home = cuda_home()
    word = str(home / "bin" / "nvcc") if home else "nvcc"
    version = ask((word,), "--version")
    if version is None and shutil.which(word):
        raise BuildError(f"{word} does not run: reinstall the CUDA toolkit, or set CUDA_HOME to another one.")
    release = re.search(r"release (\d+\.\d+)", version or "")
    if release is None:
        raise BuildError(
            f"nvcc is needed to build for a GPU, and there is none at {word}: install the CUDA toolkit, "
            "or set CUDA_HOME to where it is."
        )
    return Tool((word,), release[1])


def check_match(nvcc_version: str, torch_cuda: str | None) -> None:
    """Raises BuildError unless nvcc and PyTorch (None: built without CUDA) have the same major version of CUDA."""
    if torch_cuda and torch_cuda.split(".")[0] != nvcc_version.split(".")[0]:
        raise BuildError(
            f"nvcc is of CUDA {nvcc_version} and PyTorch was built for CUDA {torch_cuda}: install the CUDA toolkit "
            f"{torch_cuda} and set CUDA_HOME to it."
        )


def best_architecture(capability: int, known: Sequence[int]) -> int | None:
    """Of what nvcc can compile for, the best for a GPU of that compute capability (90 is 9.0); None when nothing fits.

    Code for 9.0 runs on every 9.x and on no other.
    """
    fitting = [arch for arch in known if arch // 10 == capability // 10 and arch <= capability]
    return max(fitting, default=None)


def architectures(wanted: list[int], compiler: Tool) -> list[int]:
    """What to compile for, so that GPUs of the compute capabilities `wanted` (90 is 9.0) can run the result.

    Raises:
        BuildError: a GPU is older than 7.5, or newer than what this nvcc knows.
    """
    listed = ask(compiler.words, "--list-gpu-arch") or ""
    known = sorted(int(number) for number in re.findall(r"compute_(\d+)", listed))
    chosen = set()
    for number in wanted:
        said = f"{number // 10}.{number % 10}"
        if number < OLDEST_ARCH:
            raise BuildError(f"The GPU has compute capability {said}; the kernels need 7.5 (Turing) or newer.")
        best = best_architecture(number, known)
        if best is None:
            raise BuildError(
                f"nvcc {compiler.version} cannot build for compute capability {said}: it knows "
                f"{', '.join(f'{arch // 10}.{arch % 10}' for arch in known)}; install a CUDA toolkit for that GPU and "
                "set CUDA_HOME to it."
            )
        chosen.add(best)
    return sorted(chosen)


def gencode(archs: Sequence[int]) -> list[str]:
    """nvcc's flags for machine code of these architectures."""
    return [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
