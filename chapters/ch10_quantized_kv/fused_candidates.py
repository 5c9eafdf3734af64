"""Who takes part in the benchmark of fused decode attention over codes: our operator, and the two that it joins.

A set of operands is chapter 6's for its fused form, with caches of one quantised format, whose keys count as
transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.candidates import ULPS, Shape
from chapters.ch06_split_attention import fused_candidates as plain
from chapters.ch06_split_attention.candidates import layout
from chapters.ch06_split_attention.dispatch import Plan, plan_for
from chapters.ch06_split_attention.fused_candidates import EPS, TOKEN, caches
from chapters.ch06_split_attention.targets import FUSED_OP
from chapters.ch10_quantized_kv import reader_candidates as reader
from chapters.ch10_quantized_kv.cache_formats import HADAMARD_SCALE
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    QueriesOut,
    RopeArgs,
    fused_decode_attention_quantized,
    norm_rope_hadamard_quant_store,
    paged_attention_quantized,
)
from qwen_cuda.testing.references import REFERENCES

OP = "fused_decode_attention_quantized"
FORMATS = ("fp8_sections", "nvfp4_sections")  # without padding between rows
TRANSFORM = HadamardArgs(HADAMARD_SCALE)


def work(name: str, shape: Shape) -> Work:
    """The least traffic: qkv and the stored codes are read, the new token's and out are written."""
    form, rows, all_16_bit = reader.FORMATS[name], shape.batch * shape.context * shape.kv_heads, plain.work(shape)
    nbytes = all_16_bit.bytes + 2 * rows * (form.data_bytes + form.scale_bytes - 2 * shape.head_dim)
    return replace(all_16_bit, op=OP, shape=all_16_bit.shape | {"format": name}, bytes=nbytes)


def operands(name: str, shape: Shape, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only."""
    make_plain = plain.operands(shape, device)

    def make(number: int) -> Operands:
        made = make_plain(number)
        return made | {cache: reader.quantized(name, made[cache]) for cache in ("k_cache", "v_cache")}

    return make


def ours(name: str, shape: Shape, device: torch.device) -> Iterator[Variant]:
    """By the plan that a decode step has for this context: in one launch, and in two."""
    plan = plan_for(shape.batch, shape.kv_heads, shape.context, device, op=FUSED_OP)
    yield by_plan(name, "ours", shape, plan, device)
    workspace = layout(shape, plan).new(device)
    yield Variant("in_turn", partial(_in_turn, name, shape, plan, workspace), ulps=ULPS)


def by_plan(
    name: str, variant: str, shape: Shape, plan: Plan, device: torch.device, *, prefetch: bool = True
) -> Variant:
    """With `prefetch` as in a decode step: nothing but this call writes what it reads ahead."""
    workspace = layout(shape, plan).new(device)
    return Variant(variant, partial(_fused, name, shape, plan, workspace, prefetch), ulps=ULPS)


def truth(name: str, shape: Shape, of: Operands) -> Sequence[Tensor]:
    """The new token's codes as the contract has them, then attention in float64 over what all codes stand for."""
    form = reader.FORMATS[name]
    made = of | {cache: of[cache].clone() for cache in ("k_cache", "v_cache")}
    write = REFERENCES["norm_rope_hadamard_quant_store"]
    q = write_token(write, made, form, TRANSFORM.scale, shape.query_heads)
    return reader.truth(name, shape, made | {"q": q})


def write_token(
    write: Callable[..., object], of: Operands, form: KVCacheFormat, hadamard_scale: float, query_heads: int
) -> Tensor:
    """The new tokens' keys and values into the caches of `of`. → turned q, `[b, Hq, 128]`.

    `write` is `norm_rope_hadamard_quant_store` as it is registered, or its reference.
    """
    qkv, q_weight, k_weight, cos_sin, positions, slots = (of[one] for one in TOKEN)
    x, cast = qkv.unflatten(1, (-1, 128)), form.cast
    q = x.new_empty(len(x), query_heads, 128)
    write(
        x, norm_weight=k_weight, eps=EPS, cos_sin=cos_sin, positions=positions, hadamard_scale=hadamard_scale,
        values=cast.values, group=cast.group, scale_format=cast.scales, k_cache=of["k_cache"], v_cache=of["v_cache"],
        slot_mapping=slots, cache_layout=list(form.strides), query_weight=q_weight, query_out=q,
    )  # fmt: skip
    return q


def named(name: str, shape: Shape, of: Operands) -> dict[str, Any]:
    """All arguments of the operator but the cut."""
    tensors = {one: of[one] for one in (*TOKEN, "k_cache", "v_cache", "block_table", "context_lens")}
    sizes = {"eps": EPS, "scale": shape.scale, "num_heads": shape.query_heads, "format": reader.FORMATS[name]}
    return tensors | sizes | {"hadamard": TRANSFORM}


def _fused(name: str, shape: Shape, plan: Plan, workspace: Tensor, prefetch: bool, of: Operands) -> list[Tensor]:
    cut = {"partition_size": plan.partition_size, "partitions": plan.partitions, "workspace": workspace}
    given: dict[str, Any] = named(name, shape, of) | cut
    return [fused_decode_attention_quantized(**given, merge=plan.merge, prefetch=prefetch)]


def _in_turn(name: str, shape: Shape, plan: Plan, workspace: Tensor, of: Operands) -> list[Tensor]:
    form, cut = reader.FORMATS[name], (plan.partition_size, plan.partitions)
    qkv, q_weight, k_weight, cos_sin, positions, slots = (of[one] for one in TOKEN)
    heads = qkv.unflatten(1, (-1, shape.head_dim))
    q = heads.new_empty(shape.batch, shape.query_heads, shape.head_dim)
    to = KVCacheOut(of["k_cache"], slots, form, of["v_cache"], queries=QueriesOut(q, q_weight))
    norm, rope = NormArgs(k_weight, EPS), RopeArgs(positions, cos_sin)
    norm_rope_hadamard_quant_store(heads, norm, rope, TRANSFORM, form.cast, to)
    return [
        paged_attention_quantized(
            q, *caches(of), shape.scale, form, *cut, workspace, hadamard=TRANSFORM, merge=plan.merge
        )
    ]
