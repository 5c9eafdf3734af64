"""The output head: int8 weights with a scale for each group of columns, and the largest logit's id (chapter 8).

Sources: Dettmers et al., LLM.int8(), 2022, section 2 (absmax quantisation, group by group here); Zhang and Sennrich,
Root Mean Square Layer Normalization, 2019, eq. 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.quantized import dequantize_w8, head_logits
from qwen_cuda.operators.registration import register

WORKSPACE_SIZE = 9  # int64: a count of blocks, and a key for each of up to 8 rows


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
    """`x Wᵀ` for `W[r, c] = qweight[r, c] · scales[r, c // group]`, in fp32 and rounded once.

    Args:
        x: `[b, k]` in bfloat16, float16 or float32, b up to 8, k up to 12288. The elements of a row lie side by side.
        qweight: int8 `[n, k]`, contiguous. Loads are widest where k is a multiple of 16.
        scales: float32 `[n, k / group]`, contiguous; group is 32, 64, 128 or k.
        norm_weight: `[k]`, in any of the three dtypes: x is first RMS-normed with it and `eps`, in fp32, and not
            rounded in between.
        out_dtype: float32, or that of `x`, which is the default.
        prefetch: on a GPU qweight and scales may be read before the kernels ahead in the stream have ended: for weights
            that none of them writes. x and norm_weight are read after them in any case.
    Returns:
        `[b, n]`, contiguous. A row gives the same bits alone and in a batch.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    Differentiable in all but `qweight`: when an argument requires a gradient, `qwen3_ref.quantized` runs instead.
    """
    return torch.ops.qwen_cuda.w8a16_linear(
        x, qweight, scales, norm_weight=norm_weight, eps=eps, out_dtype=out_dtype, prefetch=prefetch
    )


def head_argmax(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    workspace: Tensor,
    prefetch: bool = False,
) -> Tensor:
    """`argmax(x Wᵀ)` of fp32 logits that are never written: the next token of greedy decoding.

    Of equal logits the first counts, as for `torch.argmax`. Where the largest is NaN or infinite the id is −1: the
    model is broken, and there is no next token.

    Args:
        x, norm_weight, eps, prefetch: as for `w8a16_linear`.
        weight: `[n, k]` in bfloat16 or float16, contiguous.
        workspace: see `argmax_workspace`. Written, and zero again at the end. Not for two calls at once.
    Returns:
        int64 `[b]`.
    Raises:
        RuntimeError: an argument does not meet this, or requires a gradient; the sentence says which.
    """
    return torch.ops.qwen_cuda.head_argmax(
        x, weight, norm_weight=norm_weight, eps=eps, workspace=workspace, prefetch=prefetch
    )


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
    """`head_argmax` for the weights of `w8a16_linear`: exactly that of the logits that it gives in float32."""
    return torch.ops.qwen_cuda.w8a16_argmax(
        x, qweight, scales, norm_weight=norm_weight, eps=eps, workspace=workspace, prefetch=prefetch
    )


def argmax_workspace(device: torch.device | str) -> Tensor:
    """The workspace of `head_argmax` and `w8a16_argmax`: int64 zeros. One serves many calls, but not two at once."""
    return torch.zeros(WORKSPACE_SIZE, dtype=torch.int64, device=device)


def _reference_w8a16_linear(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    return head_logits(x, dequantize_w8(qweight, scales), norm_weight, eps).to(out_dtype or x.dtype)


def _fake_w8a16_linear(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    out_dtype: torch.dtype | None = None,
    prefetch: bool = False,
) -> Tensor:
    return x.new_empty((x.shape[0], qweight.shape[0]), dtype=out_dtype or x.dtype)


def _fake_argmax(x: Tensor, *weight: Tensor, **options: object) -> Tensor:
    return x.new_empty((x.shape[0],), dtype=torch.int64)


register("w8a16_linear", fake=_fake_w8a16_linear, reference=_reference_w8a16_linear)
register("head_argmax", fake=_fake_argmax)
register("w8a16_argmax", fake=_fake_argmax)
