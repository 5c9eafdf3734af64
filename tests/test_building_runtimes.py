"""Built libraries live in a Python process: they share its C++ library, and can be watched by a sanitizer there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from qwen_cuda.building import Edit, Library, build, sanitizers, toolchain
from tests.build_kit import answer, environment, needs_compiler, program, source, wrapped_compiler


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere compilers have one C++ library only")
@pytest.mark.parametrize("kind", ["sim", "cuda"])
def test_a_library_shares_the_c_plus_plus_library_of_the_process(
    kind: Literal["sim", "cuda"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As g++ does by itself where only libstdc++.a is installed: the first number that such a library prints crashes.
    real = shutil.which(toolchain.cxx().words[0])
    monkeypatch.setenv("CXX", str(program(tmp_path / "bin", "c++", f'exec {real} -static-libstdc++ "$@"')))
    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "builds"))
    monkeypatch.setenv("QWEN_CUDA_ARCHS", "90")
    if toolchain.cxx().is_clang:
        pytest.skip("clang takes the shared library")
    if kind == "cuda" and toolchain.cuda_home() is None:
        pytest.skip("there is no nvcc here")
    body = "std::ostringstream text; text << 4.5 << 7; return int(text.str().size());"
    library = Library(kind, source(tmp_path / "k.cu", body, "#include <sstream>").sources)
    path = build(library)[0]
    assert b"\0libstdc++.so.6\0" in path.read_bytes()
    assert answer(path) == 4


OVERRUN = """
#include <cstdlib>
extern "C" __attribute__((visibility("default"))) int answer() {
  volatile int* numbers = static_cast<int*>(std::malloc(4 * sizeof(int)));
  numbers[4] = 1;
  return numbers[4];
}
"""
LOAD = """
import sys
from pathlib import Path
from qwen_cuda.building import BuildError, Library, build, sanitizers
from qwen_cuda.loading import load
try:
    print(load(Library("sim", (Path(sys.argv[1]),), "asan")).handle.answer())
except BuildError as error:
    print(error.sentence)
"""


@needs_compiler
def test_address_sanitizer_runs_in_python_when_it_is_loaded_first(tmp_path: Path) -> None:
    if toolchain.cxx().is_clang:
        pytest.skip("the variant asan is built with g++")
    (tmp_path / "k.cu").write_text(OVERRUN)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "k.cu")]
    env = environment(tmp_path / "builds")
    without = subprocess.run(command, env=env, capture_output=True, text=True)
    assert 'qwen_cuda.building.sanitizers.environment("asan") gives.' in without.stdout
    found = subprocess.run(command, env=env | sanitizers.environment("asan"), capture_output=True, text=True)
    assert "heap-buffer-overflow" in found.stderr
    assert "k.cu:5" in found.stderr


@needs_compiler
def test_the_runtime_of_the_simulator_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "builds"))
    monkeypatch.setenv("CXX", str(wrapped_compiler(tmp_path / "bin", log)))

    def compiled(*libraries: Library) -> list[str]:
        log.unlink(missing_ok=True)
        build(*libraries)
        return sorted(re.findall(r"(\w+\.c\w+) -o", log.read_text()))

    first, second, third = (source(tmp_path / f"{n}.cu", before='#include "cuda_platform.cuh"') for n in "abc")
    assert compiled(first, second) == ["a.cu", "b.cu", "runtime.cpp"]
    assert compiled(third) == ["c.cu"]
    of_both = Edit("running_block.h", "int thread_ = -1;", "int thread_ = -2;")
    of_runtime = Edit("waiting.h", "std::this_thread::yield();", "")
    edited = [Library("sim", third.sources, edits=(edit,)) for edit in (of_both, of_runtime)]
    assert compiled(*edited) == ["c.cu", "c.cu", "runtime.cpp", "runtime.cpp"]
    assert compiled(source(tmp_path / "alone.cu")) == ["alone.cu"]  # of which no line asks for the simulator
