"""What only a GPU has: graphs of a decode step, streams, and kernels that begin before the ones ahead have ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_runs import EPS
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch05_grouped_attention.paged_cases import FP16, Heads
from chapters.ch06_split_attention import fused_candidates
from chapters.ch06_split_attention.fused_candidates import TOKEN, caches
from chapters.ch06_split_attention.fused_cases import fused_case
from chapters.ch06_split_attention.fused_checks import check_cuts
from chapters.ch06_split_attention.split_cases import merges
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.benchmarking import Operands
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
SHAPE = Shape(1000)
MODEL = Heads(kv_heads=8, group=2)
BLOCKS = 8  # partitions


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def new_workspace() -> Tensor:
    return WorkspaceLayout(SHAPE.batch, SHAPE.query_heads, SHAPE.kv_heads, SHAPE.head_dim, BLOCKS).new("cuda")


def operands(number: int) -> Operands:
    return fused_candidates.operands(SHAPE, torch.device("cuda"))(number)


def attend(gpu: Backend, of: Operands, workspace: Tensor, **options: Any) -> Tensor:
    sizes = EPS, SHAPE.scale, SHAPE.query_heads, 128, BLOCKS, workspace
    out: Tensor = gpu.namespace.fused_decode_attention(*(of[name] for name in TOKEN), *caches(of), *sizes, **options)
    return out


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("merge", ["last_block", "cluster"])
def test_a_graph_of_fused_attention_follows_a_sequence_that_grows(gpu: Backend, merge: str, prefetch: bool) -> None:
    """Captured once and replayed token after token, bit for bit what eager calls give; each replay twice."""
    if merge not in merges(gpu, BLOCKS):
        pytest.skip("this GPU has no clusters")
    of, eager = operands(1), operands(1)
    workspace, other = new_workspace(), new_workspace()
    for held, where in ((of, workspace), (eager, other)):
        attend(gpu, held, where, merge=merge)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(gpu, of, workspace, merge=merge, prefetch=prefetch)
    for step, length in enumerate((1, 15, 16, 17, 200, 999, 1000, 300)):
        page = of["block_table"][0, (length - 1) // SHAPE.block_size]
        for held in (of, eager):
            held["context_lens"].fill_(length)
            held["positions"].fill_(length - 1)
            held["slot_mapping"].copy_(page * SHAPE.block_size + (length - 1) % SHAPE.block_size)
            held["qkv"].copy_(operands(2 + step)["qkv"])
        graph.replay()
        first = out.clone()
        graph.replay()
        assert_same_bits(out, first)
        assert_same_bits(attend(gpu, eager, other, merge="last_block"), first)
        for name in ("k_cache", "v_cache"):
            assert_same_bits(of[name], eager[name])


@pytest.mark.parametrize("prefetch", [False, True])
def test_fused_attention_waits_for_the_kernel_that_writes_qkv(gpu: Backend, prefetch: bool) -> None:
    """A chain in a graph, in which each call's qkv comes from the call before: launches overlap, none may be early."""
    cases, workspace = [operands(n) for n in range(4)], new_workspace()
    queries = SHAPE.query_heads * SHAPE.head_dim

    def chain(wait: bool) -> Tensor:
        qkv = cases[0]["qkv"].clone()
        for step in range(24):
            of = {**cases[step % 4], "qkv": qkv}
            out = attend(gpu, of, workspace, prefetch=prefetch and not wait)
            qkv = torch.cat((out.flatten(1), of["qkv"][:, queries:]), dim=1)
            if wait:
                torch.cuda.synchronize()
        return qkv

    expected = chain(wait=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain(wait=False)
    for _ in range(10):
        graph.replay()
        assert_same_bits(got, expected)


def test_fused_attention_waits_for_our_own_kernels(gpu: Backend) -> None:
    """rms_norm triggers the next launch at once and writes qkv afterwards: what is read ahead must not be qkv."""
    of, workspace = operands(5), new_workspace()
    weight = torch.ones_like(of["qkv"][0])
    rows = [torch.randn_like(of["qkv"].repeat(2048, 1)) for _ in range(4)]  # long enough to be overtaken
    for prefetch in (False, True):
        for x in rows:
            normed = gpu.namespace.rms_norm(x, weight, EPS)
            expected = attend(gpu, {**of, "qkv": normed[-1:].clone()}, workspace)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attend(
                    gpu, {**of, "qkv": gpu.namespace.rms_norm(x, weight, EPS)[-1:]}, workspace, prefetch=prefetch
                )
            for _ in range(5):
                graph.replay()
                assert_same_bits(out, expected)


def test_two_streams_with_a_workspace_each_do_not_meet(gpu: Backend) -> None:
    cases = [operands(n) for n in (1, 2)]
    workspaces, streams = [new_workspace() for _ in cases], [torch.cuda.Stream() for _ in cases]
    expected = [attend(gpu, of, workspace) for of, workspace in zip(cases, workspaces, strict=True)]
    torch.cuda.synchronize()
    outs: list[list[Tensor]] = [[], []]
    for _ in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                outs[i].append(attend(gpu, cases[i], workspaces[i]))
    torch.cuda.synchronize()
    for i, one in enumerate(expected):
        for out in outs[i]:
            assert_same_bits(out, one)


def test_fused_attention_runs_on_the_current_stream(gpu: Backend) -> None:
    """qkv is written late on a side stream: a kernel on any other stream would read what was there before."""
    of, workspace = operands(3), new_workspace()
    expected = attend(gpu, of, workspace)
    late = {**of, "qkv": torch.zeros_like(of["qkv"])}
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late["qkv"].copy_(of["qkv"])
        out = attend(gpu, late, workspace)
    side.synchronize()
    assert_same_bits(out, expected)


def test_the_host_does_not_wait_for_fused_attention(gpu: Backend) -> None:
    of, workspace = operands(4), new_workspace()
    attend(gpu, of, workspace)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        attend(gpu, of, workspace)
        done.record()
        assert not done.query(), "the call returned only after the kernel had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()


@pytest.mark.parametrize("context", [128, 1024, 8192])
def test_fused_contexts_of_the_benchmark_are_right(gpu: Backend, context: int) -> None:
    """With the heads of Qwen3-0.6B and others, and by every merge that there is."""
    for heads in (MODEL, Heads(8, 5), Heads(4, 8, dtype=FP16)):
        check_cuts(gpu, fused_case((context, context + 1), heads, seed=context), (128, 8), (64, 16), (64, 20))
