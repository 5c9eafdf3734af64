"""The operators as plain PyTorch: the backend `reference`, and in float64 the truth that every backend is held against.

Each function has the arguments and results of the operator of its name. It computes in float32 (float64 for float64)
and rounds once. A chapter that adds an operator adds its function here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qwen3_ref import functional as F
from qwen3_ref import paged
from qwen_cuda.attention_workspace import WorkspaceLayout, partition_tokens
from qwen_cuda.testing.decode_references import (
    advance_decode,
    decode_linear,
    head_argmax,
    w8a16_argmax,
    w8a16_linear,
)
from qwen_cuda.testing.quantized_kv_reference import (
    fused_decode_attention_quantized,
    norm_rope_hadamard_quant_store,
    paged_attention_quantized,
)
from qwen_cuda.testing.token_draws import sample_tokens


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> Tensor:
    """`x: [..., d]`, `weight: [d]` → `[..., d]`."""
    return F.rms_norm(x, weight, eps, "hf" if hf_rounding else "fused")


def rms_norm_(x: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """As `rms_norm`; the result replaces `x`."""
    x.copy_(rms_norm(x, weight, eps, hf_rounding=hf_rounding))


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False
) -> tuple[Tensor, Tensor]:
    """`x, residual: [..., d]`, `weight: [d]` → the norm of the unrounded sum, and the sum. Both `[..., d]`.

    With `hf_rounding` the sum is rounded before it is normed.
    """
    return F.add_rms_norm(x, residual, weight, eps, "hf" if hf_rounding else "fused")


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, hf_rounding: bool = False) -> None:
    """As `add_rms_norm`; the normed rows replace `x`, the sum replaces `residual`."""
    normed, total = add_rms_norm(x, residual, weight, eps, hf_rounding=hf_rounding)
    x.copy_(normed)
    residual.copy_(total)


def silu_mul(gate_up: Tensor, *, hf_rounding: bool = False) -> Tensor:
    """`gate_up: [..., 2m]`, gate first → `[..., m]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.swiglu(gate, up, "hf" if hf_rounding else "fused")


def qk_norm_rope_cache_write(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    num_heads: int,
    *,
    return_k: bool = False,
) -> tuple[Tensor, Tensor]:
    """`qkv: [t, (Hq + 2 Hkv) · D]`, `k_cache, v_cache: [num_blocks, block_size, Hkv, D]` (written) → `q: [t, Hq, D]`
    and `k: [t, Hkv, D]`, or `[0, Hkv, D]` without `return_k`.
    """
    num_kv_heads, dim = k_cache.shape[2:]
    wide = torch.promote_types(qkv.dtype, torch.float32)
    known = (positions >= 0) & (positions < cos_sin.shape[0])
    cos, sin = cos_sin[torch.where(known, positions, 0)][:, None].to(wide).chunk(2, dim=-1)

    def turned(heads: Tensor, weight: Tensor) -> Tensor:
        normed = F.rms_norm(heads.to(wide), weight.to(wide), eps, "fused")
        return torch.where(known[:, None, None], F.apply_rope(normed, cos, sin), torch.nan).to(qkv.dtype)

    q, k, v = qkv.unflatten(1, (-1, dim)).split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    q, k = turned(q, q_weight), turned(k, k_weight)
    kept = known & (slot_mapping >= 0) & (slot_mapping < k_cache.shape[0] * k_cache.shape[1])
    for cache, heads in ((k_cache, k), (v_cache, v)):
        cache.view(-1, num_kv_heads, dim)[slot_mapping[kept].long()] = heads[kept]
    return q, k if return_k else k[:0]


def paged_attention_grouped(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """`q: [b, Hq, D]`, caches `[num_blocks, block_size, Hkv, D]` → `[b, Hq, D]`."""
    return paged.paged_attention(q, k_cache, v_cache, block_table, context_lens, scale)


def paged_attention_split(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    merge: str = "auto",
) -> Tensor:
    """As `paged_attention_grouped`, by way of `workspace`: the partials, then their merge."""
    out = torch.empty_like(q)
    paged_attention_partials(
        q, k_cache, v_cache, block_table, context_lens, scale, partition_size, partitions, workspace
    )
    merge_partitions(workspace, out, partitions)
    return out


def paged_attention_partials(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
) -> None:
    """Writes `(m, l, o)` of each partition into `workspace`; m counts in powers of two."""
    parts = WorkspaceLayout(q.shape[0], q.shape[1], k_cache.shape[2], q.shape[2], partitions).parts(workspace)
    for s in range(q.shape[0]):
        context = paged.context_of(context_lens, s, block_table, k_cache.shape[1])
        size = partition_tokens(context, partition_size, partitions)
        for p in range(partitions):
            cut = min(p * size, context), min((p + 1) * size, context)
            m, l, o = paged.paged_partition(q[s], k_cache, v_cache, block_table[s], scale, *cut)  # noqa: E741
            parts.m[s, :, p], parts.l[s, :, p], parts.o[s, :, p] = m[:, 0] / math.log(2), l[:, 0], o


def merge_partitions(workspace: Tensor, out: Tensor, partitions: int) -> None:
    """Merges the partials of `workspace` into `out: [b, Hq, D]`; the o of a partition with l = 0 counts nothing."""
    parts = WorkspaceLayout(out.shape[0], out.shape[1], 0, out.shape[2], partitions).parts(workspace)
    partials = (
        F.Partial(
            parts.m[:, :, p, None] * math.log(2),
            parts.l[:, :, p, None],
            torch.where(parts.l[:, :, p, None] == 0, 0, parts.o[:, :, p]),
        )
        for p in range(partitions)
    )
    out.copy_(F.merge_partitions(partials))


def fused_decode_attention(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    eps: float,
    scale: float,
    num_heads: int,
    partition_size: int,
    partitions: int,
    workspace: Tensor,
    *,
    merge: str = "auto",
    prefetch: bool = False,
) -> Tensor:
    """The write, then attention over what was written. → `[b, Hq, 128]`."""
    token = (qkv, q_weight, k_weight, cos_sin, positions, slot_mapping)
    q, _ = qk_norm_rope_cache_write(*token, k_cache, v_cache, eps, num_heads)
    where = (k_cache, v_cache, block_table, context_lens)
    return paged_attention_split(q, *where, scale, partition_size, partitions, workspace)


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    rms_norm,
    rms_norm_,
    add_rms_norm,
    add_rms_norm_,
    silu_mul,
    qk_norm_rope_cache_write,
    paged_attention_grouped,
    paged_attention_split,
    paged_attention_partials,
    merge_partitions,
    fused_decode_attention,
    decode_linear,
    w8a16_linear,
    head_argmax,
    w8a16_argmax,
    advance_decode,
    norm_rope_hadamard_quant_store,
    sample_tokens,
    paged_attention_quantized,
    fused_decode_attention_quantized,
)
REFERENCES: dict[str, Callable[..., Any]] = {function.__name__: function for function in _FUNCTIONS}


def oracle(name: str, *arguments: Any, **options: Any) -> Any:
    """What operator `name` gives in exact arithmetic, as far as float64 is that: floating tensors are widened first.

    → a float64 tensor, or a tuple of them, on the CPU. The arguments stay as they are. In-place forms have no result,
    so ask for the other form.
    """
    wide = {option: _widened(value) for option, value in options.items()}
    return REFERENCES[name](*(_widened(argument) for argument in arguments), **wide)


def _widened(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    argument = argument.detach().cpu()
    return argument.double() if argument.is_floating_point() else argument
