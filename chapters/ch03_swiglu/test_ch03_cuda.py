"""What only a GPU has: streams, graphs, a host that never waits, and PyTorch's own kernels beside ours."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from chapters.ch02_rms_norm.rms_norm_checks import EPS
from chapters.ch03_swiglu.hf_rounding_checks import assert_in_order
from chapters.ch03_swiglu.silu_mul_checks import product
from qwen3_ref.functional import swiglu
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
SIZE = 3072


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def packed(seed: int = 1, rows: int = 8) -> Tensor:
    return rows_of_numbers((rows, 2 * SIZE), torch.bfloat16, seed=seed).cuda()


def test_silu_mul_runs_on_the_current_stream(gpu: Backend) -> None:
    """The input is written late on a side stream: a kernel on any other stream would read what was there before."""
    gate_up = packed()
    expected = gpu.op("silu_mul")(gate_up)
    late = torch.zeros_like(gate_up)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(gate_up)
        out = gpu.namespace.silu_mul(late)
    side.synchronize()
    assert_same_bits(out, expected)


@pytest.mark.skipif(
    "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ,
    reason="allocating without PyTorch's cache, as under a sanitizer, waits",
)
def test_the_host_does_not_wait_for_silu_mul(gpu: Backend) -> None:
    gate_up = packed()
    gpu.namespace.silu_mul(gate_up)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        gpu.namespace.silu_mul(gate_up)
        done.record()
        assert not done.query(), "the call returned only after the kernel had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()


@pytest.mark.parametrize("hf_rounding", [False, True], ids=["once", "hf"])
def test_a_graph_of_an_mlp_replays_the_bits_of_eager_calls(gpu: Backend, hf_rounding: bool) -> None:
    """Norm, packed product, silu_mul: each is a dependent launch that must wait for the one before."""
    weight, gain = (
        rows_of_numbers((2 * SIZE, 1024), torch.bfloat16, seed=3).cuda() / 64,
        norm_weight(1024, torch.bfloat16, seed=4).cuda(),
    )

    def run(x: Tensor) -> Tensor:
        normed = gpu.namespace.rms_norm(x, gain, EPS, hf_rounding=hf_rounding)
        out: Tensor = gpu.namespace.silu_mul(torch.nn.functional.linear(normed, weight), hf_rounding=hf_rounding)
        return out

    static = rows_of_numbers((8, 1024), torch.bfloat16, seed=9).cuda()
    run(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(static)
    for seed in (11, 22):
        static.copy_(rows_of_numbers((8, 1024), torch.bfloat16, seed=seed))
        expected = run(static)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        assert_same_bits(out, expected)


def test_the_device_of_gate_up_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    gate_up = packed()
    expected = gpu.op("silu_mul")(gate_up)
    with torch.cuda.device(0):
        out = gpu.namespace.silu_mul(gate_up.to(there))
        assert out.device == there
        assert torch.cuda.current_device() == 0
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_intermediate_sizes_of_models_at_many_rows(gpu: Backend, dtype: torch.dtype) -> None:
    """The shapes of the benchmark, which are too large for the simulator."""
    for size in (3072, 4864, 9728, 3001):
        for rows in (1, 8, 128, 1024):
            product(gpu, rows_of_numbers((rows, 2 * size), dtype, seed=rows, kind="wide"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hugging_faces_order_is_that_of_pytorchs_kernels_on_this_gpu(gpu: Backend, dtype: torch.dtype) -> None:
    gate_up = rows_of_numbers((512, 2 * SIZE), dtype, seed=1).cuda()
    gate, up = gate_up.chunk(2, dim=-1)
    out = gpu.op("silu_mul")(gate_up, hf_rounding=True)
    exact = torch.nn.functional.silu(gate.double())
    assert_in_order(out, swiglu(gate, up, "hf").cpu(), exact.cpu(), up.cpu())


def test_many_launches_of_silu_mul_in_flight_do_not_disturb_each_other(gpu: Backend) -> None:
    """A chain, each kernel reading what the one before wrote: launches overlap, but none may be early."""

    def chain(wait: bool) -> Tensor:
        gate_up = packed(rows=64)
        for _ in range(50):
            out = gpu.namespace.silu_mul(gate_up)
            gate_up[:, :SIZE].copy_(out)  # the next gate
            if wait:
                torch.cuda.synchronize()
        return gate_up

    assert_same_bits(chain(wait=False), chain(wait=True))
