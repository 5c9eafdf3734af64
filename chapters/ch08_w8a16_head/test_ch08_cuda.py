"""What only a GPU has: streams, graphs, overlapping launches, a real vocabulary, PyTorch's own product beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head.argmax_checks import W8_ARGMAX_CHECKS, largest
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch08_w8a16_head.w8_checks import EPS, FP32, HeadCase, head_case, linear
from qwen_cuda.operators import argmax_workspace
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
VOCABULARY = 151936


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


@pytest.fixture(scope="module")
def head(gpu: Backend) -> W8Head:
    """A head of Qwen3-0.6B's size, random."""
    return W8Head.of(rows_of_numbers((VOCABULARY, 1024), torch.bfloat16, seed=1)).to(gpu.device)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [1024, 2048, 2560])
def test_a_whole_vocabulary_is_right(gpu: Backend, batch: int, k: int) -> None:
    some = replace(head_case(batch, VOCABULARY, k, 128, gain=torch.bfloat16), out_dtype=FP32)
    together = linear(gpu, some)
    assert_same_bits(linear(gpu, replace(some, x=some.x[:1])), together[:1])
    largest(gpu, some)


def test_the_head_runs_on_the_current_stream(gpu: Backend, head: W8Head) -> None:
    """x is written late on a side stream: a kernel on any other stream would read what was there before."""
    x = rows_of_numbers((2, 1024), torch.bfloat16, seed=2).cuda()
    expected, late, workspace = head.logits(x), torch.zeros_like(x), argmax_workspace(gpu.device)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(x)
        out, ids = head.logits(late), head.argmax(late, workspace)
    side.synchronize()
    assert_same_bits(out, expected)
    assert torch.equal(ids, expected.argmax(-1))


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_graph_of_norm_and_head_replays_the_ids_of_eager_calls(gpu: Backend, head: W8Head, prefetch: bool) -> None:
    """Each kernel is a dependent launch; the workspace serves one replay after the other."""
    gain = norm_weight(1024, torch.bfloat16, seed=3).cuda()
    workspace = argmax_workspace(gpu.device)

    def run(x: Tensor) -> Tensor:
        normed = gpu.namespace.rms_norm(x, gain, EPS)
        ids: Tensor = gpu.namespace.w8a16_argmax(
            normed, head.qweight, head.scales, norm_weight=gain, eps=EPS, workspace=workspace, prefetch=prefetch
        )
        return ids

    static = rows_of_numbers((3, 1024), torch.bfloat16, seed=9).cuda()
    run(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = [run(static), run(static)]
    for seed in range(20):
        static.copy_(rows_of_numbers((3, 1024), torch.bfloat16, seed=seed))
        expected = run(static)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        assert torch.equal(ids[0], expected)
        assert torch.equal(ids[1], expected)
        assert not workspace.any()


def test_prefetched_weights_wait_for_x(gpu: Backend, head: W8Head) -> None:
    """A chain in which each x comes from the kernel before: launches overlap, but none may read x early."""

    def chain(wait: bool) -> Tensor:
        x = rows_of_numbers((4, 1024), torch.bfloat16, seed=4).cuda()
        gain = norm_weight(1024, torch.bfloat16, seed=5).cuda()
        seen = []
        small = replace_rows(head, 4096)
        for _ in range(50):
            x = gpu.namespace.rms_norm(x, gain, EPS)
            logits = gpu.namespace.w8a16_linear(x, small.qweight, small.scales, prefetch=True)
            x = logits[:, :1024] / 64
            seen.append(logits)
            if wait:
                torch.cuda.synchronize()
        return torch.stack(seen)

    assert_same_bits(chain(wait=False), chain(wait=True))


def replace_rows(head: W8Head, count: int) -> W8Head:
    return W8Head(head.qweight[:count].contiguous(), head.scales[:count].contiguous())


def test_the_device_of_x_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    some = head_case(2, 300, 256, 64)
    expected = linear(gpu, some)
    with torch.cuda.device(0):
        out = gpu.namespace.w8a16_linear(some.x.to(there), some.qweight.to(there), some.scales.to(there))
        assert out.device == there
        assert torch.cuda.current_device() == 0
    assert_same_bits(out, expected)


def test_many_argmaxes_in_a_row_find_the_same_ids(gpu: Backend, head: W8Head) -> None:
    """Blocks come in any order, and a launch begins while the one before ends: 200 times on one workspace."""
    x = rows_of_numbers((8, 1024), torch.bfloat16, seed=6).cuda()
    workspace = argmax_workspace(gpu.device)
    found = torch.stack([head.argmax(x, workspace) for _ in range(200)])
    assert torch.equal(found, head.logits(x).argmax(-1).expand(200, 8))
    for check in W8_ARGMAX_CHECKS:
        check(gpu)


def test_a_heads_logits_are_near_those_of_pytorchs_product(head: W8Head) -> None:
    x = rows_of_numbers((3, 1024), torch.float32, seed=7).cuda()
    weight = head.dequantized()
    expected = torch.nn.functional.linear(x.double(), weight.double())
    some = HeadCase(x.cpu(), head.qweight[:8].cpu(), head.scales[:8].cpu())
    assert some.facts["group"] == 128
    torch.testing.assert_close(head.logits(x).double(), expected, rtol=1e-5, atol=1e-3)
