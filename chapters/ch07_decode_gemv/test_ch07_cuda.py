"""What only a GPU has: streams, graphs, launches that overlap, a host that never waits, the shapes of the benchmark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch07_decode_gemv.linear_cases import BF16, EPS, FP16, FP32, linear_case, multiply
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
# n, k and what stands around: the linear layers of Qwen3-0.6B, of a larger and of an odd model.
LAYERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "qkv": (4096, 1024, {"norm": True}),
    "o": (1024, 2048, {"residual": True}),
    "gate_up": (6144, 1024, {"norm": True, "silu_mul": True}),
    "down": (1024, 3072, {"residual": True}),
    "gate_up of 4B": (19456, 2560, {"norm": True, "silu_mul": True}),
    "down of 4B": (2560, 9728, {"residual": True}),
    "Qwen2.5": (9728, 896, {"norm": True, "silu_mul": True}),
    "odd": (1027, 1031, {"norm": True, "residual": True}),
}
HIDDEN, DEPTH = 1024, 6


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


@pytest.mark.parametrize("layer", LAYERS)
def test_the_layers_of_the_benchmark_are_right(gpu: Backend, layer: str) -> None:
    n, k, around = LAYERS[layer]
    for b in (1, 2, 4, 8):
        some = linear_case(b, n, k, x_dtype=FP32 if "norm" in around else BF16, out_dtype=FP32, **around)
        batch = multiply(gpu, some, prefetch=True)
        assert_same_bits(multiply(gpu, some.row(b - 1)), batch[b - 1 :])


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_head_is_right(gpu: Backend, dtype: torch.dtype) -> None:
    for b in (1, 3):
        some = linear_case(b, 151936, 1024, dtype=dtype, norm=True)
        assert_same_bits(multiply(gpu, some, prefetch=True), multiply(gpu, some))


class Chain:
    """Layers of four products each, every one of which reads what the one before wrote."""

    def __init__(self, gpu: Backend, prefetch: bool = True) -> None:
        shapes = ((4 * HIDDEN, HIDDEN), (HIDDEN, 2 * HIDDEN), (6 * HIDDEN, HIDDEN), (HIDDEN, 3 * HIDDEN))
        self.weights = [
            [(rows_of_numbers(shape, BF16, seed=5 * layer + m) / 40).cuda() for m, shape in enumerate(shapes)]
            for layer in range(DEPTH)
        ]
        self.norm = norm_weight(HIDDEN, BF16, seed=4).cuda()
        self.op, self.prefetch = gpu.namespace.decode_linear, prefetch

    def __call__(self, x: Tensor, between: Callable[[], object] = lambda: None) -> Tensor:
        for qkv, o, gate_up, down in self.weights:
            q = self.op(x, qkv, norm_weight=self.norm, eps=EPS, prefetch=self.prefetch)[:, : 2 * HIDDEN]
            between()
            x = self.op(q, o, residual=x, out_dtype=FP32, prefetch=self.prefetch)
            between()
            hidden = self.op(x, gate_up, norm_weight=self.norm, eps=EPS, silu_mul=True, prefetch=self.prefetch)
            between()
            x = self.op(hidden, down, residual=x, out_dtype=FP32, prefetch=self.prefetch)
            between()
        return x


@pytest.mark.parametrize("prefetch", [False, True], ids=["waits first", "prefetch"])
def test_a_graph_of_a_chain_replays_the_bits_of_calls_one_by_one(gpu: Backend, prefetch: bool) -> None:
    """Launches overlap in the graph; none may read what is not there yet, nor write what is still being read."""
    chain, alone = Chain(gpu, prefetch), Chain(gpu, False)
    for b in (1, 3):
        static = rows_of_numbers((b, HIDDEN), FP32, seed=9).cuda()
        chain(static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = chain(static)
        for seed in (11, 22):
            static.copy_(rows_of_numbers((b, HIDDEN), FP32, seed=seed))
            expected = alone(static, torch.cuda.synchronize)
            assert bool(expected.isfinite().all())
            for _ in range(20):
                graph.replay()
            assert_same_bits(out, expected)
            for _ in range(5):
                assert_same_bits(chain(static), expected)


def test_weights_that_a_kernel_ahead_writes_are_waited_for(gpu: Backend) -> None:
    """Without prefetch: the rounding of a weight runs just before the product that reads it."""
    x, wide = rows_of_numbers((1, HIDDEN), BF16, seed=1).cuda(), rows_of_numbers((4096, HIDDEN), FP32, seed=2).cuda()
    weight = torch.zeros(4096, HIDDEN, dtype=BF16, device="cuda")
    expected = gpu.namespace.decode_linear(x, wide.to(BF16))
    for _ in range(20):
        weight.zero_()
        gate_up = torch.cat((wide, wide), dim=1)  # keeps the GPU busy, so that launches queue up
        weight.copy_(gate_up[:, :HIDDEN])
        assert_same_bits(gpu.namespace.decode_linear(x, weight), expected)


def test_decode_linear_runs_on_the_current_stream(gpu: Backend) -> None:
    """x is written late on a side stream: a kernel on any other stream would read what was there before."""
    x, weight = rows_of_numbers((2, HIDDEN), BF16, seed=1).cuda(), rows_of_numbers((512, HIDDEN), BF16, seed=2).cuda()
    expected = gpu.op("decode_linear")(x, weight)
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(x)
        out = gpu.namespace.decode_linear(late, weight, prefetch=True)
    side.synchronize()
    assert_same_bits(out, expected)


@pytest.mark.skipif(
    "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ,
    reason="allocating without PyTorch's cache, as under a sanitizer, waits",
)
def test_the_host_does_not_wait_for_decode_linear(gpu: Backend) -> None:
    x, weight = rows_of_numbers((1, HIDDEN), BF16, seed=1).cuda(), rows_of_numbers((512, HIDDEN), BF16, seed=2).cuda()
    gpu.namespace.decode_linear(x, weight)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        gpu.namespace.decode_linear(x, weight)
        done.record()
        assert not done.query(), "the call returned only after the kernel had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()


def test_the_device_of_weight_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    some = linear_case(1, 64, HIDDEN)
    expected = gpu.op("decode_linear")(some.x.cuda(), some.weight.cuda())
    with torch.cuda.device(0):
        out = gpu.namespace.decode_linear(some.x.to(there), some.weight.to(there))
        assert out.device == there
        assert torch.cuda.current_device() == 0
    assert_same_bits(out, expected)
