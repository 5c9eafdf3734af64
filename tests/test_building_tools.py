"""One sentence for each thing that a build can lack, and a place to build in on any machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qwen_cuda.building import KERNELS, BuildError, Library, build, store, toolchain
from tests.build_kit import answer, needs_compiler, program, source

NVCC = """case $1 in
--version) echo 'Cuda compilation tools, release 13.0, V13.0.88';;
--list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_86\\ncompute_90\\ncompute_100\\ncompute_120\\n';;
*) exit 1;; esac"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH: nothing is installed but what a test puts there."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "QWEN_CUDA_ARCHS", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    return folder


@pytest.fixture
def nvcc(path: Path, tmp_path: Path) -> Path:
    """A stand-in for nvcc 13.0."""
    program(path, "c++", "echo 'g++ 12'")
    return program(tmp_path / "cuda" / "bin", "nvcc", NVCC)


def sentence(work: Callable[[], object]) -> str:
    """The sentence of the BuildError that `work` raises."""
    with pytest.raises(BuildError) as caught:
        work()
    text = caught.value.sentence
    assert caught.value.output == ""
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_no_compiler(path: Path) -> None:
    assert "A C++ compiler is needed and none was found: run `sudo apt install g++`" in sentence(toolchain.cxx)


def test_a_compiler_that_does_not_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "c++", "echo works")
    monkeypatch.setenv("CXX", "clang++-99")
    assert "'clang++-99' does not run: set CXX" in sentence(toolchain.cxx)
    program(path, "clang++-99", "exit 127")
    assert "'clang++-99' does not run: set CXX" in sentence(toolchain.cxx)


def test_the_compiler_may_be_several_words(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "ccache", 'echo "$1 of ccache"')
    monkeypatch.setenv("CXX", "ccache g++")
    assert toolchain.cxx() == toolchain.Tool((str(path / "ccache"), "g++"), "g++ of ccache")


def test_no_ninja(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(path / "python"))
    monkeypatch.setitem(sys.modules, "ninja", None)
    assert "ninja is needed and was not found: run `make setup`" in sentence(toolchain.ninja)
    program(path, "ninja", "echo 1.11")
    assert toolchain.ninja() == toolchain.Tool((str(path / "ninja"),), "1.11")


def test_no_nvcc(path: Path, tmp_path: Path) -> None:
    assert f"there is none at {tmp_path}/cuda/bin/nvcc: install the CUDA toolkit" in sentence(toolchain.nvcc)


def test_an_nvcc_that_does_not_run(path: Path, tmp_path: Path) -> None:
    program(tmp_path / "cuda" / "bin", "nvcc", "exit 1")
    assert "nvcc does not run: reinstall the CUDA toolkit" in sentence(toolchain.nvcc)


def test_nvcc_is_found_as_pytorch_finds_it(nvcc: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.nvcc() == toolchain.Tool((str(nvcc),), "13.0")
    monkeypatch.delenv("CUDA_HOME")
    home = path.parent / "elsewhere"
    program(home / "bin", "nvcc", NVCC)
    (path / "nvcc").symlink_to(home / "bin" / "nvcc")
    assert toolchain.cuda_home() == home
    monkeypatch.setenv("CUDA_PATH", "/somewhere")
    assert toolchain.cuda_home() == Path("/somewhere")


def gpu_library(tmp_path: Path) -> Library:
    return Library("cuda", source(tmp_path / "k.cu").sources)


def test_an_nvcc_of_another_cuda_than_pytorch(nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    said = sentence(lambda: build(gpu_library(tmp_path)))
    assert said.startswith("nvcc is of CUDA 13.0 and PyTorch was built for CUDA 12.8: install the CUDA toolkit 12.8")
    toolchain.check_match("13.2", "13.0")
    toolchain.check_match("13.0", None)


@pytest.mark.parametrize(
    ("capability", "says"),
    [
        ((7, 0), "The GPU has compute capability 7.0; the kernels need 7.5 (Turing) or newer."),
        (
            (13, 1),
            "nvcc 13.0 cannot build for compute capability 13.1: it knows 7.5, 8.0, 8.6, 9.0, 10.0, 12.0; install",
        ),
    ],
)
def test_a_gpu_that_cannot_be_built_for(
    nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], says: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert sentence(lambda: build(gpu_library(tmp_path))).startswith(says)


def test_no_gpu_to_build_for(nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "No GPU is visible to build for: set QWEN_CUDA_ARCHS" in sentence(lambda: build(gpu_library(tmp_path)))


@pytest.mark.parametrize("named", ["hopper", ";", "sm_90", "9.0;x"])
def test_architectures_are_numbers(nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("QWEN_CUDA_ARCHS", named)
    said = sentence(lambda: build(gpu_library(tmp_path)))
    assert f"QWEN_CUDA_ARCHS is {named!r}; it must be compute capabilities such as 90 or 90;120." in said


def test_each_gpu_gets_code_that_it_can_run(nvcc: Path) -> None:
    compiler = toolchain.nvcc()
    assert toolchain.architectures([90, 121, 80, 89, 75, 90], compiler) == [75, 80, 86, 90, 120]
    assert toolchain.gencode([86, 120]) == [
        "-gencode=arch=compute_86,code=sm_86",
        "-gencode=arch=compute_120,code=sm_120",
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Library("hip", (Path("a.cu"),)),  # type: ignore[arg-type]
         "kind is 'hip'; it must be one of bindings, cuda, sim."),
        (lambda: Library("sim", (Path("a.cu"),), "fast"), "variant is 'fast'; a library of kind sim has plain, "),
        (lambda: Library("sim", ()), "sources is empty; a library of kind sim needs at least one file."),
    ],
)  # fmt: skip
def test_a_library_that_cannot_be(make: Callable[[], Library], says: str) -> None:
    assert says in sentence(make)


@needs_compiler
def test_a_read_only_checkout_builds_into_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.delenv("QWEN_BUILD_DIR", raising=False)
    monkeypatch.setattr(store, "ROOT", checkout)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = source(tmp_path / "k.cu")
    there = build(library)[0]
    assert there.is_relative_to(checkout / "build" / "kernels")
    # Tests may run as root, to whom no folder is read-only: a file in its place cannot be written by anybody.
    (checkout / "build").rename(tmp_path / "away")
    (checkout / "build").touch()
    cached = build(library)[0]
    assert cached.is_relative_to(tmp_path / "cache" / "qwen3-math-to-cuda" / "kernels")
    assert answer(cached) == 1
    # What was built before the checkout became read-only is used where it lies.
    (checkout / "build").unlink()
    (tmp_path / "away").rename(checkout / "build")
    monkeypatch.setattr(store, "writable_folder", lambda: pytest.fail("nothing is to be built"))
    assert build(library)[0] == there


def test_a_user_without_a_home_builds_into_a_private_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QWEN_BUILD_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.setattr(store, "ROOT", tmp_path / "file" / "checkout")
    (tmp_path / "file").touch()
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    place = store.writable_folder()
    assert place.parent == tmp_path
    assert store.folders()[-1] == place
    place.chmod(0o777)  # somebody else could put a library there
    assert place not in store.folders()


def test_nowhere_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "file" / "builds"))
    assert f"nothing can be written in {tmp_path}/file/builds; set QWEN_BUILD_DIR" in sentence(store.writable_folder)


@needs_compiler
def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(made: Path, place: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "builds"))
    monkeypatch.setattr(store, "move", full)
    said = sentence(lambda: build(source(tmp_path / "k.cu")))
    assert said == (
        f"Kernels could not be built in {tmp_path}/builds: [Errno 28] No space left on device; make room, or set "
        "QWEN_BUILD_DIR to another folder."
    )


def test_only_old_builds_are_swept_away(tmp_path: Path) -> None:
    old = time.time() - (store.KEPT_DAYS + 1) * 86400
    builds, others = ["sim/k-plain-0123456789abcdef", "cuda/k-plain-fedcba9876543210"], ["sim/mine", "photos/2020"]
    for name in (*builds, *others):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
        os.utime(tmp_path / name, (old, old))
    store.mark_used(tmp_path / builds[1])
    store.sweep(tmp_path)
    assert [name for name in (*builds, *others) if (tmp_path / name).exists()] == [builds[1], *others]


def test_building_imports_no_pytorch() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import qwen_cuda.loading\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(KERNELS)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['qwen_cuda']\n"
