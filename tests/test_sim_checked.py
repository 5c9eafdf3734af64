"""The checked simulator finds each planted fault, at its line, and nothing in the same kernel without it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from qwen_cuda import loading, simulator
from qwen_cuda.building import Library, build
from tests.build_kit import needs_compiler
from tests.sim_checked_kit import FAULTS, PATTERNS, call, marked

pytestmark = needs_compiler

# What the report says after "cuda_sim: block …: ". {line} is the line marked with the kernel's name, {line of x} that
# marked x.
NO_BARRIER, NO_SYNCWARP = "no barrier lies between the two", "no __syncwarp and no barrier lies between the two"
BOUNDS = {
    "past_end": "thread 31: {line}: writes 4 bytes just past the end of __shared__ tile (128 bytes)",
    "before_start": "thread 0: {line}: reads 4 bytes 8 bytes before the start of __shared__ tile (128 bytes)",
    "into_neighbour": "thread 31: {line}: reads 4 bytes just past the end of __shared__ third (128 bytes)",
    "of_template": "thread 0: {line}: writes 4 bytes 8 bytes past the end of __shared__ partial (32 bytes)",
    "of_device_function": "{line}: reads 4 bytes just past the end of __shared__ sums (16 bytes)",
    "of_device_variable": "{line}: reads 4 bytes 28 bytes past the end of (anonymous namespace)::table (32 bytes)",
    "dynamic_past_end": "{line}: reads 4 bytes just past the end of the dynamic shared memory (128 bytes)",
    "in_helper": "{line} (in store_at, checked_helper.cuh:7): writes 4 bytes just past the end of __shared__ tile",
}
UNWRITTEN = {
    "unwritten": "31: {line}: reads 4 bytes at byte 124 of __shared__ tile, which no thread of the block has written",
    "unwritten_by_this_block": "{line}: reads 4 bytes at byte 0 of __shared__ tile, which no thread",
    "unwritten_component": "{line}: reads 16 bytes at byte 12 of __shared__ vectors, which no thread",
}
RACES = {
    "read_too_early": "{line of read_too_early other}: writes 4 bytes at byte 128 of __shared__ tile: a race "
    f"with thread 31, which reads byte 128 at {{line}}; {NO_BARRIER}",
    "overwritten_too_early": "{line of overwritten_too_early other}: reads 4 bytes at byte 252 of __shared__ tile: a "
    f"race with thread 63, which writes byte 252 at {{line}}; {NO_BARRIER}",
    "two_writers": "thread 40: {line}: writes 4 bytes at byte 0 of __shared__ flag: a race with thread 0, which writes",
    "warp_without_syncwarp": f"at {{line}}; {NO_SYNCWARP}",
    "syncwarp_of_one_half": f"which reads byte 124 at {{line}}; {NO_SYNCWARP}",
    "shuffle_is_no_barrier": "{line}: reads 4 bytes at byte 120 of __shared__ tile: a race with thread 30, which",
    "barrier_of_one_warp": f"at {{line}}; {NO_BARRIER}",
    "atomic_before_zero": "1: {line}: atomically updates 4 bytes at byte 0 of __shared__ count: a race with thread 0",
    "read_beside_atomic": "atomically updates 4 bytes at byte 0 of __shared__ count: a race with thread 63, "
    "which reads byte 0 at {line}",
}
GLOBAL = {
    "global_past_end": "thread 30: {line}: reads 4 bytes just past the end of in (128 bytes)",
    "global_before_start": "thread 0: {line}: writes 4 bytes 4 bytes before the start of out (128 bytes)",
    "writes_input": "{line}: writes 4 bytes at byte 0 of in, which the kernel may only read",
    "far_away": "which lies in no operand of the call: in (128 bytes), out (128 bytes)",
    "null_pointer": "{line}: reads 4 bytes at address 0: a null pointer",
    "misaligned": "{line}: reads 16 bytes at byte 4 of in, whose address is not a multiple of 16: a GPU refuses it",
    "misaligned_in_shared": "{line}: reads 16 bytes at byte 4 of tile, whose address is not a multiple of 16",
    "half_past_end": "thread 15: {line}: reads 8 bytes just past the end of in (128 bytes)",
    "local_of_another": "{line}: reads 4 bytes of a local variable of thread 5; local memory is a thread's own",
}
NO_CLUSTER_BARRIER = "no barrier of the cluster lies between the two"
CLUSTER_RACES = {
    "far_read_without_wait": "{line of far_read_without_wait other}: writes 4 bytes at byte 0 of __shared__ tile: a "
    f"race with thread 0 of block (0,0,0), which reads byte 0 at {{line}}; {NO_CLUSTER_BARRIER}",
    "far_read_without_barrier": f"of block (0,0,0), which reads byte 0 at {{line}}; {NO_CLUSTER_BARRIER}",
    "far_reader_is_overtaken": "0: {line of far_reader_is_overtaken other}: reads 4 bytes at byte 0 of __shared__ tile "
    f"of block (1,0,0): a race with thread 0 of block (1,0,0), which writes byte 0 at {{line}}; {NO_CLUSTER_BARRIER}",
    "far_writers": "thread 5: {line}: writes 4 bytes at byte 0 of __shared__ sum: a race with "
    "thread 5 of block (1,0,0), which writes byte 0 at {line}",
    "far_read_beside_atomic": "thread 0: {line}: reads 4 bytes at byte 0 of __shared__ count: a race with thread ",
}
CLUSTERS = CLUSTER_RACES | {
    "far_past_end": "31: {line}: reads 4 bytes just past the end of __shared__ tile of block (0,0,0) (128 bytes)",
    "far_dynamic_past_end": "{line}: reads 4 bytes just past the end of the dynamic shared memory of block (0,0,0)",
    "far_unwritten": "thread 4: {line}: reads 4 bytes at byte 16 of __shared__ tile of block (1,0,0), which no thread "
    "of the cluster has written",
    "far_read_at_the_end": "{line}: reads 4 bytes of the shared memory of block (0,0,0), which may have ended by then",
    "far_block_has_ended": "0: {line}: reads 4 bytes of the shared memory of block (1,0,0), which has ended",
    "far_pointer_comes_back": "{line}: reads 4 bytes of its own block's shared memory by an address that another block",
}
SENTENCES = BOUNDS | UNWRITTEN | RACES | GLOBAL | CLUSTERS
SOUND = ["padding_is_not_read", "far_barrier_is_passed_on"]


@pytest.fixture(scope="module")
def faults() -> ctypes.CDLL:
    build(FAULTS, PATTERNS)  # at once
    return loading.load(FAULTS).handle


def expected(name: str) -> str:
    file = "checked_global_faults.cuh" if name in GLOBAL else "checked_faults.cu"
    file = "checked_cluster_faults.cuh" if name in CLUSTERS else file
    sentence = SENTENCES[name].replace("{line}", f"{{line of {name}}}")
    return re.sub(r"{line of ([^}]+)}", lambda match: marked(file, match[1]), sentence)


@pytest.mark.parametrize("name", SENTENCES)
def test_report_names_block_thread_line_and_bytes(name: str, faults: ctypes.CDLL) -> None:
    report = call(faults, name, 1)
    assert re.match(r"cuda_sim: block \([01],0,0\): thread \d+: ", report), report
    assert expected(name) in report


@pytest.mark.parametrize("name", [*SENTENCES, *SOUND])
@pytest.mark.parametrize("seed", [0, 7])
def test_same_kernel_without_the_fault_is_quiet(name: str, seed: int, faults: ctypes.CDLL) -> None:
    with simulator.options(seed=seed):
        assert call(faults, name, 0) == ""


@pytest.mark.parametrize("name", RACES | CLUSTER_RACES)
def test_a_race_is_found_whatever_the_order_of_threads(name: str, faults: ctypes.CDLL) -> None:
    for seed in range(1, 6):
        with simulator.options(seed=seed):
            assert "a race with thread" in call(faults, name, 1)


def test_reading_a_block_that_may_have_ended_is_found_whatever_the_order(faults: ctypes.CDLL) -> None:
    for seed in range(1, 13):
        with simulator.options(seed=seed):
            assert "ended" in call(faults, "far_read_at_the_end", 1)


def test_a_launch_after_a_report_starts_afresh(faults: ctypes.CDLL) -> None:
    for name in ("past_end", "unwritten", "two_writers", "far_away", "null_pointer"):
        assert call(faults, name, 1) != ""
        assert call(faults, name, 0) == ""


def test_without_operands_global_memory_is_not_bounded(faults: ctypes.CDLL) -> None:
    assert call(faults, "global_past_end", 1) != ""  # which forgets its operands
    data = (ctypes.c_float * 64)()
    faults.global_past_end_run.restype = ctypes.c_char_p
    assert faults.global_past_end_run(data, ctypes.byref(data, 128), 1) == b""


def test_libraries_do_not_see_each_other(faults: ctypes.CDLL) -> None:
    patterns = loading.load(PATTERNS).handle
    with simulator.trace(faults) as of_faults, simulator.trace(patterns) as of_patterns:
        x = torch.randn(64, 64)
        for _ in range(3):
            assert call(faults, "unwritten", 0) == ""
            assert call(patterns, "strided", 1) == ""
            assert torch.equal(x.repeat(2, 1)[:64], x)  # by PyTorch's own memcpy
    assert {launch.kernel.split("::")[-1] for launch in of_faults.launches} == {"unwritten(float*, int)"}
    assert len(of_faults.launches) == len(of_patterns.launches) == 3
    assert "past the end" in call(faults, "past_end", 1)
    assert "no operand" in call(patterns, "strided", 10**8)


def test_operands_are_those_of_the_thread_that_launches(faults: ctypes.CDLL) -> None:
    def run(fault: int) -> list[str]:
        return [call(faults, "global_past_end", fault) for _ in range(8)]

    with ThreadPoolExecutor(4) as pool:  # ctypes lets the others run meanwhile
        reports = list(pool.map(run, [0, 1, 0, 1]))
    assert reports[0] == reports[2] == [""] * 8
    assert all("past the end of in" in report for report in reports[1] + reports[3])


@pytest.mark.parametrize("library", [FAULTS, PATTERNS], ids=lambda library: library.name)
def test_no_callback_leaves_the_library(library: object) -> None:
    assert library in (FAULTS, PATTERNS)
    if shutil.which("nm") is None:
        pytest.skip("nm is not here")
    (path,) = build(FAULTS) if library is FAULTS else build(PATTERNS)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    exported = {
        "cudasim_operand",
        "cudasim_forget_operands",
        "cudasim_trace_start",
        "cudasim_trace_stop",
        "cudasim_release_stacks",
    }
    assert exported <= set(names)
    stray = [name for name in names if re.search(r"tsan|^mem|cudasim", name) and name not in exported]
    # The standard library's templates over types of ours have default visibility, and are nobody else's.
    assert [name for name in stray if not re.match(r"_ZN?K?(T[IVS])?N?S?t|_ZN9__gnu_cxx|_ZT[IVS]", name)] == []


@pytest.fixture(scope="module")
def clang() -> ctypes.CDLL:
    compiler = next((found for name in ("clang++", "clang++-14") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("clang++ is not here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler)
        (path,) = build(FAULTS)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("name", SENTENCES)
def test_clang_builds_report_the_same(name: str, clang: ctypes.CDLL) -> None:
    assert expected(name) in call(clang, name, 1)
    assert call(clang, name, 0) == ""


PAST_END = """
#include <string>

#include "cuda_platform.cuh"

__global__ void past_end(float* out, int wrong) {
  __shared__ float tile[32];
  tile[threadIdx.x + wrong] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
static float after[64];
extern "C" __attribute__((visibility("default"))) const char* past_end_run(const float* in, float* out, int wrong) {
  static std::string report;
  report.clear(), after[wrong] = in[0];
  try {
    launch(past_end, dim3(1), dim3(32), 0, nullptr, out, wrong);
  } catch (const std::exception& e) {
    report = e.what();
  }
  return report.c_str();
}
"""


@pytest.mark.parametrize("quick", [False, True])
def test_nothing_of_the_file_lies_just_behind_a_shared_variable(quick: bool, tmp_path: Path) -> None:
    (tmp_path / "past_end.cu").write_text(PAST_END, encoding="utf-8")
    handle = loading.load(Library("sim", (tmp_path / "past_end.cu",), "checked", quick=quick)).handle
    assert "past the end of __shared__ tile (128 bytes)" in call(handle, "past_end", 1)
    assert "past the end of __shared__ tile (128 bytes)" in call(handle, "past_end", 32)


def test_production_kernel_gives_the_same_bits_and_no_report() -> None:
    loading.load_operators()
    x, weight = torch.randn(3, 257), torch.randn(257)
    results = []
    for variant in ("plain", "checked"):
        with loading.using(loading.default_library("rms_norm", "sim", variant)):
            results.append(torch.ops.qwen_sim.rms_norm(x, weight, 1e-6))
    assert torch.equal(*results)
