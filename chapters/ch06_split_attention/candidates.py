"""Who takes part in chapter 6's benchmark beside chapter 5's: the split kernel by plan and merge, and in two launches.

Operands and truth are those of chapter 5. A workspace belongs to a variant: like that of an engine it is the same in
every call, and stays in the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.candidates import PEER_ULPS, ULPS, Shape, inputs
from chapters.ch06_split_attention import flashinfer_library
from chapters.ch06_split_attention.backends import (
    Call,
    flashinfer_tables,
    flashinfer_unavailable,
    flashinfer_wrapper,
)
from chapters.ch06_split_attention.dispatch import Plan, plan_for
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.benchmarking import Operands, Variant

CLUSTERS = (2, 4, 8, 16)  # partitions that a cluster can merge
LONGEST = 32768  # tokens: the context for which `ours_long_graph` is captured


def layout(shape: Shape, plan: Plan) -> WorkspaceLayout:
    return WorkspaceLayout(shape.batch, shape.query_heads, shape.kv_heads, shape.head_dim, plan.partitions)


def has_clusters(device: torch.device) -> bool:
    """Whether blocks can be a cluster there."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def merges(plan: Plan, device: torch.device) -> Iterator[Plan]:
    """The same cut by each merge that can be chosen there."""
    if plan.partitions > 1:
        yield replace(plan, merge="last_block")
        if has_clusters(device) and plan.partitions in CLUSTERS:
            yield replace(plan, merge="cluster")


def ours(shape: Shape, device: torch.device) -> Iterator[Variant]:
    """The choice for this context and for a graph that also serves long ones; and each way to compute by itself."""
    best = plan_for(shape.batch, shape.kv_heads, shape.context, device)
    yield by_plan("ours", shape, best, device)
    yield by_plan("ours_long_graph", shape, plan_for(shape.batch, shape.kv_heads, LONGEST, device), device)
    yield Variant("ours_grouped", partial(_grouped, shape), ulps=ULPS)
    for plan in merges(best, device):
        yield by_plan(f"ours_{plan.merge}", shape, plan, device)
    if best.partitions > 1:
        workspace = layout(shape, best).new(device)
        yield Variant("ours_two_launches", partial(_two_launches, shape, best, workspace), ulps=ULPS)


def by_plan(name: str, shape: Shape, plan: Plan, device: torch.device, **more: Any) -> Variant:
    """`paged_attention` with a plan: chapter 5's kernel for one partition."""
    if plan.partitions == 1:
        return Variant(name, partial(_grouped, shape), ulps=ULPS, **more)
    return Variant(name, partial(_split, shape, plan, layout(shape, plan).new(device)), ulps=ULPS, **more)


def flashinfer(shape: Shape, of: Operands) -> Variant | str:
    """FlashInfer's paged decode, planned beforehand for the table that all sets share; or why there is none."""
    call = Call(*inputs(of), shape.scale)
    reason = flashinfer_unavailable()
    path = flashinfer_library.library_path() if reason else None
    if reason and not (path and flashinfer_library.serves(_sizes(call))):
        return reason
    wrapper = _from_library(ctypes.CDLL(str(path)), call) if path else flashinfer_wrapper(call)

    def run(now: Operands) -> list[Tensor]:
        return [wrapper.run(now["q"], (now["k_cache"], now["v_cache"]))]

    return Variant("flashinfer", run, ulps=ULPS + PEER_ULPS, peer=True)


def _sizes(call: Call) -> flashinfer_library.Sizes:
    batch, query_heads, head_dim = call.q.shape
    block_size, kv_heads = call.k_cache.shape[1:3]
    return flashinfer_library.Sizes(batch, query_heads, kv_heads, head_dim, block_size, call.q.dtype)


def _from_library(library: Any, call: Call) -> flashinfer_library.Wrapper:
    tables = flashinfer_tables(call.block_table, call.context_lens, call.k_cache.shape[1])
    return flashinfer_library.Wrapper(library, _sizes(call), *tables, call.scale, call.q.device)


def _grouped(shape: Shape, of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.paged_attention_grouped(*inputs(of), shape.scale)]


def _split(shape: Shape, plan: Plan, workspace: Tensor, of: Operands) -> list[Tensor]:
    cut = plan.partition_size, plan.partitions
    return [torch.ops.qwen_cuda.paged_attention_split(*inputs(of), shape.scale, *cut, workspace, merge=plan.merge)]


def _two_launches(shape: Shape, plan: Plan, workspace: Tensor, of: Operands) -> list[Tensor]:
    cut = plan.partition_size, plan.partitions
    torch.ops.qwen_cuda.paged_attention_partials(*inputs(of), shape.scale, *cut, workspace)
    torch.ops.qwen_cuda.merge_partitions(workspace, of["out"], plan.partitions)
    return [of["out"]]
