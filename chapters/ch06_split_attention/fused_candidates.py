"""Who takes part in the benchmark of fused decode attention: our operator by plan, and the two operators that it joins.

A set of operands is that of chapter 5, and with it `qkv: [b, (Hq + 2 Hkv) · 128]`, the weights of the two norms,
`cos_sin`, and the `positions` and `slot_mapping` of the new tokens, which are the last of their contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import ULPS, Shape
from chapters.ch06_split_attention.candidates import layout, merges
from chapters.ch06_split_attention.dispatch import Plan, plan_for
from chapters.ch06_split_attention.targets import FUSED_OP as OP
from qwen3_ref.paged import paged_attention
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.operators import cos_sin_table
from qwen_cuda.testing.references import REFERENCES

EPS, THETA = 1e-6, 1e6
TOKEN = ("qkv", "q_weight", "k_weight", "cos_sin", "positions", "slot_mapping")


def operands(shape: Shape, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n. The keys and values that the cache holds for the new token count for nothing."""
    make_cache = grouped.operands(shape, device, peers=False)
    cos_sin = cos_sin_table(shape.context, THETA, device)

    def make(number: int) -> Operands:
        made = make_cache(number)
        generator = torch.Generator(device).manual_seed(number + 1)
        width = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
        qkv = torch.empty((shape.batch, width), device=device).normal_(generator=generator)
        qkv[:, -shape.kv_heads * shape.head_dim :].uniform_(0.5, 1.5, generator=generator)
        made["qkv"] = qkv.to(shape.dtype)
        for name in ("q_weight", "k_weight"):
            weight = torch.empty(shape.head_dim, device=device).uniform_(0.5, 1.5, generator=generator)
            made[name] = weight.to(shape.dtype)
        made["cos_sin"] = cos_sin.clone()
        last = torch.full((shape.batch,), shape.context - 1, dtype=torch.int32, device=device)
        pages = made["block_table"][:, -1]
        made["positions"] = last.clone()
        made["slot_mapping"] = pages * shape.block_size + last % shape.block_size
        return made

    return make


def caches(of: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return of["k_cache"], of["v_cache"], of["block_table"], of["context_lens"]


def work(shape: Shape) -> Work:
    """The least traffic: qkv and the stored K and V are read, those of the new token and out are written."""
    heads, dim = shape.query_heads, shape.head_dim
    numbers = 2 * shape.kv_heads * (shape.context + 1) + 2 * heads  # a sequence's, in heads: the new K, V come and go
    constants = shape.batch * 4 * dim + 2 * dim * shape.dtype.itemsize  # rows of cos_sin, and the weights
    return replace(grouped.work(OP, shape), bytes=shape.batch * numbers * dim * shape.dtype.itemsize + constants)


def ours(shape: Shape, device: torch.device) -> Iterator[Variant]:
    """The choice for this context, each merge of its cut, and the two operators that it joins."""
    best = plan_for(shape.batch, shape.kv_heads, shape.context, device, op=OP)
    yield by_plan("ours", shape, best, device)
    for plan in merges(best, device):
        yield by_plan(f"ours_{plan.merge}", shape, plan, device)
    yield in_turn("in_turn", shape, plan_for(shape.batch, shape.kv_heads, shape.context, device), device)


def by_plan(name: str, shape: Shape, plan: Plan, device: torch.device, *, prefetch: bool = True) -> Variant:
    """With `prefetch` as in a decode step: nothing but this call writes what it reads ahead."""
    workspace = layout(shape, plan).new(device)
    return Variant(name, partial(_fused, shape, plan, workspace, prefetch), ulps=ULPS)


def in_turn(name: str, shape: Shape, plan: Plan, device: torch.device) -> Variant:
    """`qk_norm_rope_cache_write`, then attention by a plan."""
    workspace = layout(shape, plan).new(device)
    return Variant(name, partial(_in_turn, shape, plan, workspace), ulps=ULPS)


def truth(shape: Shape, of: Operands) -> Sequence[Tensor]:
    """Q and K as the contract rounds them, then attention in float64."""
    k_cache, v_cache, table, lens = caches(of)
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    write = REFERENCES["qk_norm_rope_cache_write"]
    q, _ = write(*(of[name] for name in TOKEN), k_cache, v_cache, EPS, shape.query_heads)
    return [paged_attention(q.double(), k_cache.double(), v_cache.double(), table, lens, shape.scale)]


def _fused(shape: Shape, plan: Plan, workspace: Tensor, prefetch: bool, of: Operands) -> list[Tensor]:
    sizes = EPS, shape.scale, shape.query_heads, plan.partition_size, plan.partitions, workspace
    token = (of[name] for name in TOKEN)
    run = torch.ops.qwen_cuda.fused_decode_attention
    return [run(*token, *caches(of), *sizes, merge=plan.merge, prefetch=prefetch)]


def _in_turn(shape: Shape, plan: Plan, workspace: Tensor, of: Operands) -> list[Tensor]:
    ops = torch.ops.qwen_cuda
    k_cache, v_cache, table, lens = caches(of)
    q, _ = ops.qk_norm_rope_cache_write(*(of[name] for name in TOKEN), k_cache, v_cache, EPS, shape.query_heads)
    where = q, k_cache, v_cache, table, lens, shape.scale
    if plan.partitions == 1:
        return [ops.paged_attention_grouped(*where)]
    return [ops.paged_attention_split(*where, plan.partition_size, plan.partitions, workspace, merge=plan.merge)]
