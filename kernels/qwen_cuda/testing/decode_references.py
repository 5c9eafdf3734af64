"""Those operators of `references` that only decoding has: linear layers of few rows, the head, the end of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref import functional as F
from qwen3_ref.quantized import dequantize_w8, head_logits
from qwen3_ref.sampling import finite_argmax


def decode_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    """`x: [b, k]`, `weight: [n, k]` → `[b, n]`, with `silu_mul` `[b, n/2]`. `prefetch` is a matter of launches."""
    return F.fused_linear(
        x,
        weight,
        norm_weight=norm_weight,
        eps=eps,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=out_dtype,
    )


def w8a16_linear(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    """`x: [b, k]`, `qweight: [n, k]` int8, `scales: [n, groups]` → `[b, n]`."""
    return head_logits(x, dequantize_w8(qweight, scales), norm_weight, eps).to(out_dtype or x.dtype)


def head_argmax(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    workspace: Tensor,
    prefetch: bool = False,
) -> Tensor:
    """`x: [b, k]`, `weight: [n, k]` → int64 `[b]`; the workspace is not used."""
    return finite_argmax(head_logits(x, weight, norm_weight, eps))


def w8a16_argmax(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    workspace: Tensor,
    prefetch: bool = False,
) -> Tensor:
    """As `head_argmax`, of the logits of `w8a16_linear`."""
    return finite_argmax(head_logits(x, dequantize_w8(qweight, scales), norm_weight, eps))


def advance_decode(
    ids: Tensor,
    embedding: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    draws: Tensor,
    history: Tensor,
    h: Tensor,
    num_blocks: int,
    block_size: int,
) -> None:
    """Row by row, as the operator's docstring says."""
    for row, (token, position) in enumerate(zip(ids.tolist(), context_lens.tolist(), strict=True)):
        block = -1
        if 0 <= token < len(embedding) and 0 <= position < history.shape[1]:
            history[row, position] = token
            draws[row] += 1
            if position // block_size < block_table.shape[1]:
                block = int(block_table[row, position // block_size])
        if not 0 <= block < num_blocks:
            context_lens[row], positions[row], slot_mapping[row], h[row] = -1, 0, -1, 0.0
            continue
        context_lens[row], positions[row] = position + 1, position
        slot_mapping[row] = block * block_size + position % block_size
        h[row] = embedding[token].to(h.dtype)
