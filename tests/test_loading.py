"""Operators run the library that they are pointed at, for as long as they are."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from qwen_cuda import loading
from qwen_cuda.building import KERNELS, BuildError, Edit, Library, build
from tests.build_kit import environment, needs_compiler

pytestmark = needs_compiler

# Writes its number where the result belongs, and notes which operands it was told of.
KERNEL = """
#include <string>
#include "operators.h"
namespace {
const float kNumber = 1;
std::string operands;
}
QWEN_EXPORT void qwen_rms_norm(const qwen::RmsNorm& args, cudaStream_t) {
  if (args.rows == 13) throw std::string("thirteen");
  for (int64_t i = 0; i < args.rows * args.hidden; ++i) static_cast<float*>(args.out)[i] = kNumber;
}
"""
HOOKS = """
QWEN_EXPORT void cudasim_operand(const char* name, const void*, std::size_t bytes, int writable) {
  operands += std::string(name) + " " + std::to_string(bytes) + (writable ? " rw, " : " r, ");
}
QWEN_EXPORT void cudasim_forget_operands() { operands += "end"; }
QWEN_EXPORT const char* told() { return operands.c_str(); }
"""
ADD = "QWEN_EXPORT void qwen_add_rms_norm(const qwen::AddRmsNorm&, cudaStream_t) {}\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Library:
    """A stand-in for a kernel: it exports rms_norm, whose results are all 1."""
    path = tmp_path / "stand_in.cu"
    path.write_text(KERNEL)
    return Library("sim", (path,))


def numbered(library: Library, number: int) -> Library:
    """The same with another number."""
    return Library("sim", library.sources, edits=(Edit("stand_in.cu", "kNumber = 1", f"kNumber = {number}"),))


def now() -> float:
    """What rms_norm of the simulator gives."""
    out = torch.ops.qwen_sim.rms_norm(torch.full((2, 8), 5.0), torch.ones(8), 0.0)
    assert (out == out[0, 0]).all()
    return round(float(out[0, 0]), 3)


@pytest.fixture
def unpointed() -> None:
    """rms_norm of the simulator runs nothing, whatever ran before this test."""
    loading.load_operators()
    for op in loading.operator_names():
        loading._own.pop(("sim", op), None)
    loading._variants.pop("sim", None)
    loading._point(loading._bindings(), "sim", loading.operator_names())


@pytest.mark.usefixtures("unpointed")
def test_an_operator_that_is_not_ready_says_what_to_call() -> None:
    with pytest.raises(
        RuntimeError, match=re.escape('rms_norm: the simulator is not ready; call qwen_cuda.loading.backend("sim")')
    ):
        now()


def test_loading_twice_is_loading_once() -> None:
    loading.load_operators()
    loading.load_operators()
    x, weight = torch.tensor([[3.0, 4.0]]), torch.ones(2)
    expected = x / (x.pow(2).mean() ** 0.5)
    torch.testing.assert_close(torch.ops.qwen_cuda.rms_norm(x, weight, 0.0), expected)


@pytest.mark.usefixtures("unpointed")
def test_the_simulator_runs_the_kernels_of_the_product() -> None:
    loading.backend("sim")
    assert now() == 1.0
    exported = {op for (name, op) in loading._own if name == "sim"}
    assert exported == set(loading.operator_names())


@pytest.mark.usefixtures("unpointed")
def test_a_library_is_used_inside_the_with_and_no_longer(kernel: Library) -> None:
    two, three = numbered(kernel, 2), numbered(kernel, 3)
    with loading.using(two):
        assert now() == 2
        with loading.using(three) as inner, loading.using(three):
            assert now() == 3
            assert inner.launchers.keys() == {"rms_norm"}
        assert now() == 2
        with loading.using(two):
            assert now() == 2
        assert now() == 2
    with pytest.raises(RuntimeError, match="not ready"):
        now()


@pytest.mark.usefixtures("unpointed")
def test_an_error_inside_restores_as_well(kernel: Library) -> None:
    two = numbered(kernel, 2)
    with loading.using(two):
        with pytest.raises(ZeroDivisionError), loading.using(kernel):
            1 / 0  # noqa: B018
        assert now() == 2


@pytest.mark.usefixtures("unpointed")
def test_operators_that_a_library_does_not_export_stay_where_they_are(kernel: Library, tmp_path: Path) -> None:
    (tmp_path / "other.cu").write_text('#include "operators.h"\n' + ADD)
    with loading.using(kernel), loading.using(Library("sim", (tmp_path / "other.cu",))) as other:
        assert other.launchers.keys() == {"add_rms_norm"}
        assert now() == 1


@pytest.mark.usefixtures("unpointed")
def test_blocks_that_end_in_any_order_leave_what_was_before(kernel: Library) -> None:
    first, second = loading.using(numbered(kernel, 2)), loading.using(numbered(kernel, 3))
    with loading.using(kernel):
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert now() == 3
        second.__exit__(None, None, None)
        assert now() == 1


@pytest.mark.usefixtures("unpointed")
def test_setting_the_backend_up_inside_a_block_counts_after_it(kernel: Library) -> None:
    with loading.using(numbered(kernel, 2)):
        loading.backend("sim")
        assert now() == 2
    assert now() == 1.0


def test_a_library_without_launchers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.cu").write_text("int x = 1;\n")
    nothing = loading.using(Library("sim", (tmp_path / "none.cu",)))
    with pytest.raises(
        BuildError, match=r"none\.cu exports no launcher: it must define one that operators\.h declares\."
    ):
        nothing.__enter__()


def test_a_library_that_lacks_a_symbol_is_refused(kernel: Library) -> None:
    edit = Edit("stand_in.cu", 'throw std::string("thirteen")', "{ extern void absent(); absent(); }")
    with pytest.raises(BuildError, match=r"libstand_in\.so was built and cannot be loaded: .*absent"):
        loading.load(Library("sim", kernel.sources, edits=(edit,)))


@pytest.mark.usefixtures("unpointed")
def test_a_checked_library_is_told_its_own_operands_and_no_other_is(kernel: Library) -> None:
    text = kernel.sources[0].read_text()
    kernel.sources[0].write_text(text + HOOKS)
    with loading.using(kernel) as told, loading.using(numbered(kernel, 2)) as inner:
        now()
        for loaded, expected in ((told, b""), (inner, b"x 64 r, weight 32 r, out 64 rw, end")):
            loaded.handle.told.restype = ctypes.c_char_p
            assert sorted(loaded.handle.told().split(b", ")) == sorted(expected.split(b", "))


@pytest.mark.usefixtures("unpointed")
def test_threads_may_use_libraries_at_the_same_time(kernel: Library) -> None:
    libraries = [numbered(kernel, number) for number in (2, 3)]
    for library in libraries:
        loading.load(library)
    seen: set[float] = set()

    def work(library: Library) -> None:
        for _ in range(200):
            with loading.using(library):
                seen.add(now())

    with loading.using(kernel):
        threads = [threading.Thread(target=work, args=(library,)) for library in libraries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert now() == 1
    assert seen <= {1, 2, 3}


def test_every_declared_launcher_has_an_operator_of_its_name() -> None:
    assert set(loading.operator_names()) >= {"rms_norm", "add_rms_norm"}
    loading.load_operators()
    for op in loading.operator_names():
        for namespace in (torch.ops.qwen_cuda, torch.ops.qwen_sim):
            assert hasattr(namespace, op)


WITHOUT_NVCC = """
import torch
from qwen_cuda import loading
torch.cuda.is_available = lambda: True  # as on a machine with a GPU whose CUDA toolkit is missing
loading.load_operators()
print(torch.ops.qwen_cuda.rms_norm(torch.ones(1, 8), torch.ones(8), 0.0).sum())
"""


def test_a_gpu_without_nvcc_still_has_the_operators_on_the_cpu(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"CUDA_HOME": str(tmp_path / "nothing")}
    del env["QWEN_BUILD_DIR"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_NVCC], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("tensor(8.)"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere compilers have one C++ library only")
def test_the_bindings_share_the_c_plus_plus_library_of_pytorch() -> None:
    assert b"\0libstdc++.so.6\0" in build(loading.bindings_library())[0].read_bytes()


def test_the_bindings_know_no_cuda_headers() -> None:
    for path in (*KERNELS.glob("bindings/*"), *KERNELS.glob("cpu/*")):
        assert not re.search(r"#include [<\"](cuda|c10/cuda|ATen/cuda)", path.read_text(encoding="utf-8")), path


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list its mappings")
def test_a_simulated_library_gives_its_stacks_back_after_use() -> None:
    """A process may have 65,530 mappings, and a suite loads a hundred libraries with up to 1,024 stacks a block."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_bytes().splitlines())

    x, weight = torch.ones(2, 20000), torch.ones(20000)  # rows of a whole block of threads
    with loading.using(loading.default_library("rms_norm", "sim")):
        torch.ops.qwen_sim.rms_norm(x, weight, 1e-6)
        inside = mappings()
    assert inside - mappings() > 1000
    with loading.using(loading.default_library("rms_norm", "sim")):
        assert torch.equal(torch.ops.qwen_sim.rms_norm(x, weight, 0.0), x)
