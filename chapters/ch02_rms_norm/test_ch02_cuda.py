"""What only a GPU has: streams, graphs, several devices, and a host that never waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from chapters.ch02_rms_norm.rms_norm_checks import EPS, norm
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
SIZE = 1024


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def tensors(seed: int = 1, rows: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """x, residual and weight."""
    x, residual = (rows_of_numbers((rows, SIZE), torch.bfloat16, seed=seed + i).cuda() for i in range(2))
    return x, residual, norm_weight(SIZE, torch.bfloat16, seed=3).cuda()


def test_it_runs_on_the_current_stream(gpu: Backend) -> None:
    """The input is written late on a side stream: a kernel on any other stream would read what was there before."""
    x, _, weight = tensors()
    expected = gpu.op("rms_norm")(x, weight, EPS)
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(x)
        out = gpu.namespace.rms_norm(late, weight, EPS)
    side.synchronize()
    assert_same_bits(out, expected)


@pytest.mark.skipif(
    "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ,
    reason="allocating without PyTorch's cache, as under a sanitizer, waits",
)
def test_the_host_does_not_wait(gpu: Backend) -> None:
    x, residual, weight = tensors()
    gpu.namespace.rms_norm(x, weight, EPS)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        gpu.namespace.rms_norm_(x, weight, EPS)
        gpu.namespace.add_rms_norm_(x, residual, weight, EPS)
        done.record()
        assert not done.query(), "the calls returned only after the kernels had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()


def test_a_graph_replays_the_bits_of_eager_calls(gpu: Backend) -> None:
    """Captured once, replayed on other numbers, in and out of place; the replay allocates nothing."""
    x, residual, weight = tensors()
    gpu.namespace.add_rms_norm(x, residual, weight, EPS)
    static = [x.clone(), residual.clone()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, total = gpu.namespace.add_rms_norm(*static, weight, EPS)
        gpu.namespace.add_rms_norm_(out, total, weight, EPS)
        last = gpu.namespace.rms_norm(out, weight, EPS)
    for seed in (11, 22):
        x, residual, _ = tensors(seed)
        expected, sums = gpu.namespace.add_rms_norm(x, residual, weight, EPS)
        gpu.namespace.add_rms_norm_(expected, sums, weight, EPS)
        wanted = gpu.namespace.rms_norm(expected, weight, EPS)
        static[0].copy_(x)
        static[1].copy_(residual)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        for one, other in ((last, wanted), (out, expected), (total, sums)):
            assert_same_bits(one, other)


def test_the_device_of_the_tensors_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    x, _, weight = tensors()
    expected = gpu.op("rms_norm")(x, weight, EPS)
    with torch.cuda.device(0):
        out = gpu.namespace.rms_norm(x.to(there), weight.to(there), EPS)
        assert out.device == there
        assert torch.cuda.current_device() == 0
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sizes_of_models_at_many_rows(gpu: Backend, dtype: torch.dtype) -> None:
    """The shapes of the benchmark, which are too large for the simulator."""
    for hidden in (896, 1024, 2560, 4096, 1001):
        for rows in (1, 8, 128, 512, 1024, 8192):
            norm(gpu, rows_of_numbers((rows, hidden), dtype, seed=rows, kind="wide"))


def test_many_launches_in_flight_do_not_disturb_each_other(gpu: Backend) -> None:
    """A chain in place, each kernel reading what the one before wrote: launches overlap, but none may be early."""
    x, residual, weight = tensors(rows=64)
    expected = (x.clone(), residual.clone())
    for _ in range(50):
        gpu.namespace.add_rms_norm_(*expected, weight, EPS)
        torch.cuda.synchronize()
    for _ in range(50):
        gpu.namespace.add_rms_norm_(x, residual, weight, EPS)
    torch.cuda.synchronize()
    assert_same_bits(x, expected[0])
    assert_same_bits(residual, expected[1])
