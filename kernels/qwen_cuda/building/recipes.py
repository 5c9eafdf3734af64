"""How each kind of library is compiled and linked.

What a recipe holds goes into the library's key, by which a finished build is found again. So making one is cheap: it
reads versions. What follows from those but is slow to find out (PyTorch's folders, whether the compiler takes a flag)
is asked by `more`, when something is built.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qwen_cuda.building import toolchain
from qwen_cuda.building.library import KERNELS, BuildError, Library

CUDA_HEADERS = KERNELS / "cuda" / "include"
SIM_HEADERS = KERNELS / "sim" / "include"
SIM_RUNTIME = KERNELS / "sim" / "runtime"

More = Callable[[], Sequence[str]]


@dataclass(frozen=True)
class Object:
    """One source and its compiler; `folders` are those of the project's headers."""

    source: Path
    compiler: toolchain.Tool
    flags: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    more: More = tuple


@dataclass(frozen=True)
class Recipe:
    """The objects of a library, how they are linked, and by what `identity` else the result is determined.

    `runtime`, a header and what defines the functions that it declares, is one more object where a source reaches it.
    """

    objects: tuple[Object, ...]
    linker: toolchain.Tool
    link_flags: tuple[str, ...]
    more: More = tuple
    identity: tuple[str, ...] = ()
    runtime: tuple[Path, Object] | None = None


def recipe(library: Library) -> Recipe:
    """The recipe of `library` on this machine.

    Raises:
        BuildError: a program is missing or does not fit.
    """
    return {"sim": _sim, "cuda": _cuda, "bindings": _bindings}[library.kind](library)


_SIM_FLAGS = (
    "-x", "c++", "-std=c++17", "-fPIC", "-fvisibility=hidden",
    "-gdwarf-4",  # addr2line before 2.41 gives code of headers to the wrong file in version 5
    "-fno-strict-aliasing",  # kernels read bytes as other types, as CUDA allows
    "-ffp-contract=off",  # a * b + c rounds twice, on every machine
)  # fmt: skip
_KERNEL = "-Og"  # compiles in a third of the time of -O2, and a debugger sees the variables
_SANITIZER = {"asan": "-fsanitize=address", "tsan": "-fsanitize=thread"}


def _sim(library: Library) -> Recipe:
    compiler, variant = toolchain.cxx(), library.variant
    linked: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    if variant == "plain":
        flags: tuple[str, ...] = ("-g",)
    elif variant == "checked":
        # The compiler puts a call at every load and store of a kernel. The simulator's runtime defines what is called.
        flags, kernel = ("-g1", "-DCUDASIM_CHECKED=1"), ("-fsanitize=thread", *_every_access(compiler))
    else:
        if compiler.is_clang:
            raise BuildError(f"The variant {variant} is built with g++ only: set CXX=g++.")
        linked = (_SANITIZER[variant],)
        flags = ("-g", "-fno-omit-frame-pointer", *linked)
    # GCC marks no instruction of an optimised line as the start of a statement, and gdb then breaks somewhere else.
    flags = (*_SIM_FLAGS, *(() if compiler.is_clang else ("-gno-statement-frontiers",)), *flags)
    flags = (*flags, *(("-g0",) if library.quick else ()))
    kernel = (*flags, "-O0" if library.quick else _KERNEL, *kernel)
    objects = tuple(Object(source, compiler, kernel, (CUDA_HEADERS, SIM_HEADERS)) for source in library.sources)
    runtime = Object(SIM_RUNTIME / "cudasim" / "runtime.cpp", compiler, (*flags, "-O2"), (SIM_HEADERS, SIM_RUNTIME))
    return Recipe(
        objects, compiler, ("-shared", "-pthread", *linked), functools.partial(_shared_cxx_runtime, compiler),
        runtime=(SIM_HEADERS / "cuda_sim.h", runtime),
    )  # fmt: skip


def _every_access(compiler: toolchain.Tool) -> tuple[str, ...]:
    """Flags that keep a compiler from merging accesses that the kernel's text has apart."""
    if compiler.is_clang:
        return ("-mllvm", "-tsan-compound-read-before-write=1")
    return (
        "-fno-tree-sra", "-fno-ipa-icf", "-fno-crossjumping", "-fno-tree-tail-merge", "-fno-code-hoisting",
        "-ftoplevel-reorder",  # with -O0, too: then the gap of a shared variable lies behind it (shared_symbols.h)
    )  # fmt: skip


NVCC_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xcompiler=-Wall,-Wextra")


def nvcc_host(host: toolchain.Tool) -> tuple[str, ...]:
    """nvcc's flags for its C++ compiler. With NVCC_CCBIN set, which it reads itself, there are none."""
    return () if os.environ.get("NVCC_CCBIN") else ("-ccbin", host.words[-1])


def _cuda(library: Library) -> Recipe:
    compiler, host = toolchain.nvcc(), toolchain.cxx()
    targets = toolchain.gencode(toolchain.architectures(_wanted_architectures(compiler), compiler))
    flags = (*NVCC_FLAGS, *nvcc_host(host), "-Xcompiler=-fPIC,-fvisibility=hidden", *targets)
    objects = tuple(Object(source, compiler, flags, (CUDA_HEADERS,)) for source in library.sources)
    runtime = functools.partial(_shared_cxx_runtime, host)
    return Recipe(objects, compiler, ("-shared", "-cudart=static", *flags), runtime, identity=(host.version,))


def _wanted_architectures(compiler: toolchain.Tool) -> list[int]:
    """Of QWEN_CUDA_ARCHS, such as "90;120", else of the GPUs that PyTorch sees. Also holds nvcc against PyTorch."""
    import torch

    toolchain.check_match(compiler.version, torch.version.cuda)
    named = os.environ.get("QWEN_CUDA_ARCHS")
    if named:
        parts = named.replace(".", "").replace(",", ";").strip("; ").split(";")
        if not all(part.strip().isdigit() for part in parts):
            raise BuildError(f"QWEN_CUDA_ARCHS is {named!r}; it must be compute capabilities such as 90 or 90;120.")
        return [int(part) for part in parts]
    capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    if not capabilities:
        raise BuildError("No GPU is visible to build for: set QWEN_CUDA_ARCHS to its compute capability, such as 90.")
    return sorted({10 * major + minor for major, minor in capabilities})


def _bindings(library: Library) -> Recipe:
    import torch

    compiler = toolchain.cxx()
    shared = ("-std=c++20", "-fPIC", "-fvisibility=hidden")
    folders = (KERNELS / "bindings", KERNELS / "cpu", CUDA_HEADERS)
    with_torch = functools.partial(_compile_with_torch, compiler)
    objects = []
    for source in library.sources:
        if source.resolve().parent == KERNELS / "cpu":
            flags = (*shared, "-O3", "-ffp-contract=off")
            objects.append(Object(source, compiler, flags, folders, functools.partial(_for_this_cpu, compiler)))
        else:
            objects.append(Object(source, compiler, (*shared, "-O2"), folders, with_torch))
    identity = (torch.__version__, str(torch.version.git_version), sys.platform, _this_cpu())
    return Recipe(tuple(objects), compiler, ("-shared",), functools.partial(_link_with_torch, compiler), identity)


def _compile_with_torch(compiler: toolchain.Tool) -> list[str]:
    from torch.utils import cpp_extension

    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(cpp_extension.torch.compiled_with_cxx11_abi())}"
    folders = [word for path in cpp_extension.include_paths("cpu") for word in ("-isystem", path)]
    return [abi, *_openmp(compiler), *folders]


def _link_with_torch(compiler: toolchain.Tool) -> list[str]:
    from torch.utils import cpp_extension

    places = [Path(path) for path in cpp_extension.library_paths("cpu")]
    # PyTorch's own OpenMP: a second one would bring a second pool of threads.
    packaged = (*places, places[0].parents[1] / "torch.libs")
    openmp = [str(file) for place in packaged for file in sorted(place.glob("libgomp*.so*"))][:1]
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    libraries = [*(f"-L{place}" for place in places), "-lc10", "-ltorch_cpu", *undefined]
    openmp = (openmp or ["-fopenmp"]) if _openmp(compiler) else []
    return [*libraries, *openmp, *_shared_cxx_runtime(compiler)]


def _shared_cxx_runtime(compiler: toolchain.Tool) -> list[str]:
    """The C++ library as PyTorch has it, by its run-time name.

    Where the link libstdc++.so is not installed, g++ takes libstdc++.a without a word. A second copy of it numbers the
    facets of a locale anew, and the first number that a message prints crashes.
    """
    flag = "-l:libstdc++.so.6"
    return [] if compiler.is_clang or sys.platform != "linux" else _links(compiler, flag)


def _openmp(compiler: toolchain.Tool) -> list[str]:
    """at::parallel_for is serial without OpenMP. PyTorch brings that of GCC, which code of clang does not run on."""
    return [] if compiler.is_clang else _accepted(compiler, "-fopenmp")


def _for_this_cpu(compiler: toolchain.Tool) -> list[str]:
    return _accepted(compiler, "-march=native") or _accepted(compiler, "-mcpu=native")


@functools.cache
def _accepted(compiler: toolchain.Tool, flag: str) -> list[str]:
    """[flag] when the compiler takes it, else []."""
    command = [*compiler.words, flag, "-x", "c++", "-fsyntax-only", "-"]
    answer = subprocess.run(command, input=b"int main() {}\n", capture_output=True)
    return [flag] if answer.returncode == 0 else []


@functools.cache
def _links(compiler: toolchain.Tool, flag: str) -> list[str]:
    """[flag] when a program can be linked with it, else []."""
    command = [*compiler.words, "-x", "c++", "-", "-o", os.devnull, flag]
    answer = subprocess.run(command, input=b"int main() {}\n", capture_output=True)
    return [flag] if answer.returncode == 0 else []


@functools.cache
def _this_cpu() -> str:
    """What code for -march=native depends on: a folder of builds may be shared by different machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return platform.machine() + "".join(line for line in lines if line.startswith(kept))
