"""What only a GPU has: one graph for contexts of all lengths, launches that overlap, the shapes of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch05_grouped_attention.grouped_checks import QWEN3
from chapters.ch05_grouped_attention.paged_cases import FP16, Heads, PagedCase, grouped, paged_case
from chapters.ch06_split_attention.attention import paged_attention, plan_for
from chapters.ch06_split_attention.split_checks import split
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
MODEL = Heads(kv_heads=8, group=2)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def on_gpu(some: PagedCase) -> list[Any]:
    return [x.cuda() if isinstance(x, Tensor) else x for x in some.arguments]


def test_one_graph_serves_every_context(gpu: Backend) -> None:
    """Captured for the longest context; replayed while the lengths grow, and also shrink, on the device."""
    some = paged_case((4000, 4000), MODEL, seed=1)
    q, k, v, table, lens, scale = on_gpu(some)
    plan = plan_for(2, 8, 4000, q.device)
    workspace = plan.workspace(q, 8)

    def run() -> Tensor:
        return paged_attention(q, k, v, table, lens, scale, plan=plan, workspace=workspace)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for contexts in ((1, 0), (127, 128), (129, 1000), (2049, 3999), (4000, 5)):
        lens.copy_(torch.tensor(contexts, dtype=torch.int32))
        graph.replay()
        first = out.clone()
        graph.replay()
        assert_same_bits(out, first)
        assert_same_bits(run(), first)


def test_launches_that_share_a_workspace_follow_each_other(gpu: Backend) -> None:
    """With programmatic dependent launch a kernel may begin before the one ahead of it ends; not write before."""
    cases = [paged_case((900 + 50 * n, 300), MODEL, seed=n) for n in range(4)]
    given = [on_gpu(some) for some in cases]
    workspace = plan_for(2, 8, 1100, given[0][0].device).workspace(given[0][0], 8)
    assert workspace is not None
    expected = []
    for arguments in given:
        expected.append(gpu.namespace.paged_attention_split(*arguments, 64, 8, workspace))
        torch.cuda.synchronize()
    for _ in range(20):
        outs = [gpu.namespace.paged_attention_split(*arguments, 64, 8, workspace) for arguments in given]
    torch.cuda.synchronize()
    for one, other in zip(outs, expected, strict=True):
        assert_same_bits(one, other)


def test_attention_runs_on_the_current_stream(gpu: Backend) -> None:
    """The query is written late on a side stream: a kernel on any other stream would read what was there before."""
    arguments = on_gpu(paged_case((500,), MODEL, seed=5))
    expected = gpu.namespace.paged_attention_grouped(*arguments)
    late = torch.zeros_like(arguments[0])
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(arguments[0])
        out = gpu.namespace.paged_attention_grouped(late, *arguments[1:])
    side.synchronize()
    assert_same_bits(out, expected)


def test_the_contexts_of_the_benchmark_are_right(gpu: Backend) -> None:
    """Up to 32,768 tokens, and one around it."""
    for context in (128, 512, 1024, 4096, 8192, 32768, 32769):
        some = paged_case((context,), MODEL, seed=context)
        split(gpu, some, (128, 16))
    grouped(gpu, paged_case((8192,), MODEL, seed=1))


def test_groups_of_other_models_at_length(gpu: Backend) -> None:
    for heads in (Heads(8, 4), Heads(8, 5), Heads(8, 8, dtype=FP16), Heads(2, 7, 64)):
        some = paged_case((3000, 17, 0), heads, seed=heads.group)
        grouped(gpu, some)
        split(gpu, some, (64, 20))


def test_the_host_does_not_wait_for_attention(gpu: Backend) -> None:
    arguments = on_gpu(paged_case((500,), QWEN3, seed=6))
    workspace = plan_for(1, 2, 500, arguments[0].device).workspace(arguments[0], 2)
    kept: dict[str, Any] = {"workspace": workspace, "max_context": 500}
    paged_attention(*arguments, **kept)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        paged_attention(*arguments, **kept)
        done.record()
        assert not done.query(), "the call returned only after the kernel had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()
