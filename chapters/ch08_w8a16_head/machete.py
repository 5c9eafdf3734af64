"""vLLM's Machete beside our head: the packing that it reads, and a call. Its operators come with vLLM, if at all.

Machete multiplies 16-bit activations with packed integers on Tensor Cores. It takes an 8-bit weight as unsigned with a
bias of 128, four of a column to a word, in an order that its own operator prepares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qwen_cuda.benchmarking import Operands
from qwen_cuda.benchmarking.peers import Vllm

# How vLLM numbers its types: 0 bits of exponent, 8 of significand in bits 8 to 15, no sign, the bias in bits 17 to 48,
# finite and infinite values, and in bit 50 the kind of NaN that it enters for integers.
UINT8_BIAS_128 = 8 << 8 | 128 << 17 | 1 << 50


def unavailable(vllm: Vllm | None, group: int) -> str | None:
    """Why Machete cannot take part; None when it can."""
    if vllm is None or not all(hasattr(vllm.ops, name) for name in ("machete_mm", "machete_prepack_B")):
        return "vLLM's Machete is left out: its operators are not here."
    return None if group % 64 == 0 else "vLLM's Machete is left out of this group: it knows 64, 128 and whole rows."


def packed(qweight: Tensor, scales: Tensor) -> Operands:
    """`qweight: [n, k]` int8 and `scales: [n, groups]` → int32 words `[k/4, n]`, column after column, and bf16 scales
    `[groups, n]`.

    Raises:
        ValueError: k is no multiple of 4.
    """
    n, k = qweight.shape
    if k % 4:
        raise ValueError(
            f"qweight has shape {[n, k]}; Machete packs four columns to a word: k must be a multiple of 4."
        )
    biased = qweight.bitwise_xor(-128)  # the bits of q + 128
    words = biased.contiguous().view(torch.int32)  # [n, k/4]; a machine of our time puts the first byte last
    return {"words": words.t(), "bf16_scales": scales.t().contiguous().bfloat16()}


def prepacked(vllm: Vllm, of: Operands) -> Operands:
    """`of` with the words in Machete's own order, which it is not timed for."""
    words = vllm.ops.machete_prepack_B(of["words"], torch.bfloat16, UINT8_BIAS_128, torch.bfloat16)
    return {**of, "words": words}


def product(vllm: Vllm, group: int, of: Operands) -> list[Tensor]:
    """bf16 logits `[b, n]` of prepacked operands, by the schedule that Machete chooses."""
    return [
        vllm.ops.machete_mm(
            of["x"], of["words"], UINT8_BIAS_128, torch.bfloat16, of["bf16_scales"], None, group, None, None, None
        )
    ]
