"""Who takes part in the benchmark of attention over quantised caches: our reader by plan, and 16-bit attention.

A set of operands holds `q: [b, Hq, 128]`, `block_table`, `context_lens`, and a pair of caches of one format, 16-bit or
quantised: what a set has that a variant does not read would not overflow the L2 cache for it. The keys of a quantised
cache count as transformed, and the kernel transforms the queries. Values are 0.5 to 1.5: results do not cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import ULPS, Shape
from chapters.ch06_split_attention import candidates as split
from chapters.ch06_split_attention.candidates import LONGEST
from chapters.ch06_split_attention.dispatch import Op, Plan, plan_for
from chapters.ch10_quantized_kv.cache_formats import HADAMARD_SCALE, NVFP4
from chapters.ch10_quantized_kv.candidates import FORMATS as WRITER_FORMATS
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, quantize_groups
from qwen3_ref.paged import paged_attention
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators import HadamardArgs, paged_attention_quantized

OP = "paged_attention_quantized"
PLAIN = "bf16"  # the format of chapter 6's caches
FORMATS = WRITER_FORMATS | {"nvfp4_sections": KVCacheFormat(NVFP4, heads=8, block_size=16, layout="block_wide")}
NAMES = (PLAIN, *FORMATS)


def work(name: str, shape: Shape) -> Work:
    """The least traffic: codes and scales of the contexts without padding, and q, are read, out is written."""
    plain = grouped.work("paged_attention", shape)
    if name == PLAIN:
        return plain
    form, rows = FORMATS[name], shape.batch * shape.context * shape.kv_heads
    nbytes = plain.bytes + 2 * rows * (form.data_bytes + form.scale_bytes - 2 * shape.head_dim)
    return Work(OP, plain.shape | {"format": name}, plain.dtype, nbytes, plain.flops)


def table_op(name: str) -> Op:
    """The rows of chapter 6's dispatch.json that hold the plans for a format; its layout does not matter."""
    if name == PLAIN:
        return "paged_attention"
    return "paged_attention_fp8" if FORMATS[name].cast.values == "e4m3" else "paged_attention_fp4"


def operands(name: str, shape: Shape, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number n, of numbers that depend on n only; the pages of each sequence lie in a shuffled order."""
    make_plain = grouped.operands(shape, device, peers=False)
    if name == PLAIN:
        return make_plain

    def make(number: int) -> Operands:
        made = make_plain(number)
        return made | {cache: quantized(name, made[cache]) for cache in ("k_cache", "v_cache")}

    return make


def quantized(name: str, rows: Tensor) -> Tensor:
    """A cache that holds these rows, `[num_blocks, block_size, heads, 128]`."""
    form = FORMATS[name]
    cache = form.new(len(rows), rows.device)
    codes = quantize_groups(rows.float(), form.cast.values, form.cast.group, form.cast.scales)
    for place, bytes_ in zip(form.views(cache), codes, strict=True):
        place.copy_(bytes_)
    return cache


def truth(name: str, shape: Shape, of: Operands) -> Sequence[Tensor]:
    """The answer in float64 over what the codes stand for, on the operands' device."""
    if name == PLAIN:
        return grouped.truth(shape, of)
    form = FORMATS[name]
    k, v = (
        dequantize_groups(*form.views(of[cache]), form.cast.values, form.cast.scales).double()
        for cache in ("k_cache", "v_cache")
    )
    q = hadamard_transform(of["q"].double(), HADAMARD_SCALE)
    return [paged_attention(q, k, v, of["block_table"], of["context_lens"], shape.scale)]


def ours(name: str, shape: Shape, device: torch.device) -> Iterator[Variant]:
    """The choice for this context, and for a graph that also serves long ones."""
    for variant, context in (("ours", shape.context), ("ours_long_graph", LONGEST)):
        plan = plan_for(shape.batch, shape.kv_heads, context, device, op=table_op(name))
        yield by_plan(name, variant, shape, plan, device)


def by_plan(name: str, variant: str, shape: Shape, plan: Plan, device: torch.device) -> Variant:
    """The reader with a plan; one partition is one block a KV head, by the same kernel."""
    if name == PLAIN:
        return split.by_plan(variant, shape, plan, device)
    layout = WorkspaceLayout(shape.batch, shape.query_heads, shape.kv_heads, shape.head_dim, plan.partitions)
    return Variant(variant, partial(_read, name, shape, plan, layout.new(device)), ulps=ULPS)


def _read(name: str, shape: Shape, plan: Plan, workspace: Tensor, of: Operands) -> list[Tensor]:
    cut, transform = (plan.partition_size, plan.partitions), HadamardArgs(HADAMARD_SCALE)
    tensors = grouped.inputs(of)
    return [
        paged_attention_quantized(
            *tensors, shape.scale, FORMATS[name], *cut, workspace, hadamard=transform, merge=plan.merge
        )
    ]
