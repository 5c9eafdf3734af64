"""The doctor's questions to programs: each on a stand-in that comes first on the PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen_cuda.doctor import probes
from qwen_cuda.doctor.probes import Compiler, Driver, Torch
from tests.build_kit import program

H200 = Torch("2.13.0", "13.0", (("NVIDIA H200", 9, 0),))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on the PATH."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("body", "driver"),
    [
        ("echo '580.1, NVIDIA H200'; echo '580.1, NVIDIA A2'", Driver("580.1", ("NVIDIA H200", "NVIDIA A2"))),
        ("echo 'No devices were found'; exit 6", None),
        ("echo 'NVIDIA-SMI has failed'; exit 9", Driver(error="NVIDIA-SMI has failed")),
    ],
)
def test_the_driver_is_read_from_nvidia_smi(path: Path, body: str, driver: Driver | None) -> None:
    program(path, "nvidia-smi", body)
    assert probes.nvidia_driver() == driver


def test_nvcc_is_found_in_cuda_home_before_the_path_and_tried_on_a_kernel(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "cuda" / "bin"
    home.mkdir(parents=True)
    program(
        home, "nvcc", "case $1 in --version) echo 'release 12.8, V12.8.61';; *) echo 'no cc1plus' >&2; exit 1;; esac"
    )
    program(path, "nvcc", "echo 'release 13.0, V13.0.88'")
    assert probes.nvcc(trial=False, env={}) == Compiler(str(path / "nvcc"), "13.0")
    found = probes.nvcc(trial=True, env={"CUDA_HOME": str(home.parent)})
    assert found == Compiler(str(home / "nvcc"), "12.8", "no cc1plus")


@pytest.mark.parametrize(
    ("body", "error"), [("exit 0", None), ("echo 'bad option -std=c++20' >&2; exit 1", "bad option")]
)
def test_the_host_compiler_is_tried(path: Path, body: str, error: str | None) -> None:
    program(path, "my-c++", body)
    found = probes.host_compiler({"CXX": "my-c++"})
    assert found is not None
    assert found.path == str(path / "my-c++")
    assert (found.error is None) if error is None else (error in str(found.error))


@pytest.mark.skipif(probes.host_compiler() is None, reason="there is no C++ compiler here")
def test_the_trial_library_is_c_plus_plus_20(path: Path) -> None:
    found = probes.host_compiler()
    assert found is not None
    assert found.error is None
    assert probes.compiles([found.path, "-std=c++17", *probes.CXX20_FLAGS[1:]], probes.CXX20, ".cpp") is not None


def test_the_architectures_are_those_that_nvcc_lists(path: Path) -> None:
    nvcc = program(path, "nvcc", "[ $1 = --list-gpu-arch ] && printf 'compute_75\\ncompute_120\\n'")
    assert probes.nvcc_architectures(str(nvcc)) == (75, 120)
    assert probes.nvcc_architectures(str(path / "gone")) == ()


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ('echo noise; echo \'{"version": "2.13.0", "cuda": "13.0", "devices": [["NVIDIA H200", 9, 0]]}\'', H200),
        ("echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", None),
        ("echo 'OSError: libcudart.so.13' >&2; exit 1", Torch(error="OSError: libcudart.so.13")),
        ("kill -ILL $$", Torch(error="no message")),
    ],
)
def test_the_state_of_torch_is_asked_in_another_process(path: Path, body: str, state: Torch | None) -> None:
    assert probes.torch_state(str(program(path, "python", body))) == state
