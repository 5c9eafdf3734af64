"""What only a GPU has, for fused attention over codes: graphs, kernels that begin early, and its own instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_runs import EPS
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch05_grouped_attention.paged_cases import FP16, Heads
from chapters.ch06_split_attention.split_cases import merges
from chapters.ch10_quantized_kv import fused_candidates as fused
from chapters.ch10_quantized_kv.attention_checks import FP8, FP8_WIDE, MXFP4, NVFP4
from chapters.ch10_quantized_kv.fused_cases import in_turn, new_tokens, run
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.benchmarking import Operands
from qwen_cuda.kv_cache_format import CastArgs
from qwen_cuda.operators import fused_decode_attention_quantized
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
SHAPE = Shape(1000)
BLOCKS = 8  # partitions
NAMES = fused.FORMATS


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def new_workspace() -> Tensor:
    return WorkspaceLayout(SHAPE.batch, SHAPE.query_heads, SHAPE.kv_heads, SHAPE.head_dim, BLOCKS).new("cuda")


def operands(name: str, number: int) -> Operands:
    return fused.operands(name, SHAPE, torch.device("cuda"))(number)


def attend(name: str, of: Operands, workspace: Tensor, **options: Any) -> Tensor:
    cut: dict[str, Any] = {"partition_size": 128, "partitions": BLOCKS, "workspace": workspace}
    return fused_decode_attention_quantized(**fused.named(name, SHAPE, of), **cut, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("merge", ["last_block", "cluster"])
def test_a_graph_over_codes_follows_a_sequence_that_grows(gpu: Backend, name: str, merge: str, prefetch: bool) -> None:
    """Captured once and replayed token after token, bit for bit what eager calls give; each replay twice."""
    if merge not in merges(gpu, BLOCKS):
        pytest.skip("this GPU has no clusters")
    of, eager = operands(name, 1), operands(name, 1)
    workspace, other = new_workspace(), new_workspace()
    for held, where in ((of, workspace), (eager, other)):
        attend(name, held, where, merge=merge)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(name, of, workspace, merge=merge, prefetch=prefetch)
    for step, length in enumerate((1, 15, 16, 17, 200, 999, 1000, 300)):
        page = of["block_table"][0, (length - 1) // SHAPE.block_size]
        for held in (of, eager):
            held["context_lens"].fill_(length)
            held["positions"].fill_(length - 1)
            held["slot_mapping"].copy_(page * SHAPE.block_size + (length - 1) % SHAPE.block_size)
            held["qkv"].copy_(operands(name, 2 + step)["qkv"])
        graph.replay()
        first = out.clone()
        graph.replay()
        assert_same_bits(out, first)
        assert_same_bits(attend(name, eager, other, merge="last_block"), first)
        for cache in ("k_cache", "v_cache"):
            assert_same_bits(of[cache], eager[cache])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefetch", [False, True])
def test_fused_attention_over_codes_waits_for_the_kernel_that_writes_qkv(
    gpu: Backend, name: str, prefetch: bool
) -> None:
    """A chain in a graph, in which each call's qkv comes from the call before: launches overlap, none may be early."""
    cases, workspace = [operands(name, n) for n in range(4)], new_workspace()
    queries = SHAPE.query_heads * SHAPE.head_dim

    def chain(wait: bool) -> Tensor:
        qkv = cases[0]["qkv"].clone()
        for step in range(24):
            of = {**cases[step % 4], "qkv": qkv}
            out = attend(name, of, workspace, prefetch=prefetch and not wait)
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


@pytest.mark.parametrize("name", NAMES)
def test_fused_attention_over_codes_waits_for_our_own_kernels(gpu: Backend, name: str) -> None:
    """rms_norm triggers the next launch at once and writes qkv afterwards: what is read ahead must not be qkv."""
    of, workspace = operands(name, 5), new_workspace()
    weight = torch.ones_like(of["qkv"][0])
    rows = [torch.randn_like(of["qkv"].repeat(2048, 1)) for _ in range(4)]  # long enough to be overtaken
    for prefetch in (False, True):
        for x in rows:
            normed = gpu.namespace.rms_norm(x, weight, EPS)
            expected = attend(name, {**of, "qkv": normed[-1:].clone()}, workspace)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                late = {**of, "qkv": gpu.namespace.rms_norm(x, weight, EPS)[-1:]}
                out = attend(name, late, workspace, prefetch=prefetch)
            for _ in range(5):
                graph.replay()
                assert_same_bits(out, expected)


def test_fused_attention_over_codes_runs_on_the_current_stream(gpu: Backend) -> None:
    """qkv is written late on a side stream: a kernel on any other stream would read what was there before."""
    name, workspace = NAMES[0], new_workspace()
    of = operands(name, 3)
    expected = attend(name, of, workspace)
    late = {**of, "qkv": torch.zeros_like(of["qkv"])}
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late["qkv"].copy_(of["qkv"])
        out = attend(name, late, workspace)
    side.synchronize()
    assert_same_bits(out, expected)


@pytest.mark.parametrize("context", [128, 1024, 8192])
@pytest.mark.parametrize("cast", [FP8, FP8_WIDE, NVFP4, MXFP4], ids=["fp8", "fp8_wide", "nvfp4", "mxfp4"])
def test_contexts_over_codes_are_those_of_both_in_turn(gpu: Backend, cast: CastArgs, context: int) -> None:
    """With the heads of Qwen3-0.6B and others, and by every merge that there is."""
    lens = (context, context + 1)
    for heads in (Heads(kv_heads=8, group=2), Heads(8, 5), Heads(4, 8, dtype=FP16)):
        some = new_tokens(lens, cast, heads, "block_wide", seed=context)
        for cut in ((128, 8), (64, 20)):
            expected = in_turn(gpu, some, cut)
            for merge in merges(gpu, cut[1]):
                run(gpu, some, cut, merge=merge, prefetch=True).assert_same(expected)
