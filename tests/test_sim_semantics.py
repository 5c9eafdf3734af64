"""The simulator means what CUDA means: each primitive, each report of a wrong kernel, each number format."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from qwen_cuda.building import Library
from qwen_cuda.loading import load
from tests.build_kit import needs_compiler
from tests.simulator_programs import SOURCES, build, run

FILES = (
    "main.cu", "barriers.cu", "clusters.cu", "warp_functions.cu", "memory.cu",
    "arithmetic.cu", "reports.cu", "cluster_reports.cu",
)  # fmt: skip
CHECKS = {
    name: file for file in FILES for name in re.findall(r"^CHECK\((\w+)\)", (SOURCES / file).read_text(), re.MULTILINE)
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("simulator"), "checks", FILES)


@pytest.mark.parametrize("name", CHECKS)
def test_primitive(program: Path, name: str) -> None:
    done = run(program, name)
    if "0 checks" in done.stdout:
        pytest.skip("this check is not for this system")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_every_primitive_holds_in_any_order_of_threads(program: Path, seed: str) -> None:
    for name in (name for name, file in CHECKS.items() if "reports" not in file):  # reports name the first thread
        done = run(program, name, CUDASIM_SEED=seed, CUDASIM_THREADS="2")
        assert done.returncode == 0 or "0 checks" in done.stdout, done.stdout


def test_one_thread_of_the_system_is_enough(program: Path) -> None:
    done = run(program, CUDASIM_THREADS="1")
    assert done.returncode == 0, done.stdout


@needs_compiler
def test_every_primitive_means_the_same_in_a_checked_build(capfd: pytest.CaptureFixture[str]) -> None:
    files = tuple(SOURCES / file for file in FILES[:5])
    checked = load(Library("sim", files, "checked")).handle
    assert checked.run_checks(None) == 0, capfd.readouterr().out
    assert checked.run_checks(b"no_such_check") == -1


def test_a_check_can_fail(program: Path) -> None:
    assert run(program, "no_such_check").returncode == 1


@pytest.fixture(scope="module")
def conversions() -> ctypes.CDLL:
    return load(Library("sim", (SOURCES / "conversions.cu",))).handle


FORMATS = [("half", torch.float16), ("bfloat16", torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), FORMATS)
def test_all_16_bit_numbers_become_the_floats_that_pytorch_makes(
    conversions: ctypes.CDLL, name: str, dtype: torch.dtype
) -> None:
    numbers = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    got = torch.empty(65536)
    _call(conversions, f"{name}_to_float", numbers, got)
    want = numbers.view(dtype).float()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.view(torch.int32)[~want.isnan()], want.view(torch.int32)[~want.isnan()])


@pytest.mark.parametrize(("name", "dtype"), FORMATS)
def test_floats_are_rounded_as_pytorch_rounds_them(conversions: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    """Every number of the format, every midpoint of two of them and the floats beside it, and a million of any kind."""
    exact = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float()
    finite = exact[exact.isfinite()].sort().values
    middle = finite[:-1] + (finite[1:] - finite[:-1]) / 2
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-torch.inf, torch.inf)]
    random = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0))
    floats = torch.cat((exact, middle, *beside, random.to(torch.int32).view(torch.float32)))
    got = torch.empty(len(floats), dtype=torch.int16)
    _call(conversions, f"float_to_{name}", floats, got)
    want = floats.to(dtype)
    nan = want.isnan()
    assert torch.equal(got.view(dtype).isnan(), nan)
    assert torch.equal(got[~nan], want.view(torch.int16)[~nan])


def _call(library: ctypes.CDLL, function: str, source: torch.Tensor, target: torch.Tensor) -> None:
    getattr(library, function)(
        ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr()), ctypes.c_int64(len(source))
    )
