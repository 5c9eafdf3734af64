"""The next token of each row of logits, drawn where the logits are (chapter 11).

Sources: those of `qwen3_ref.sampling` for the filters, those of `qwen3_ref.gumbel` for the draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from qwen_cuda.operators.registration import register

WORD_BITS = 32


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    repetition_penalty: Tensor,
    seeds: Tensor,
    draws: Tensor,
    seen: Tensor,
) -> Tensor:
    """Repetition penalty → temperature → top-k → top-p → min-p → draw, as `qwen3_ref.sampling.Sampler`.

    A row's token depends on its logits, its parameters, its seed and the number of its draw alone: it is the same on
    every backend, and alone or in a batch. Parameters are read on the device: one CUDA graph serves all their values.

    Args:
        logits: float32 `[b, V]`, contiguous; b up to 8, V up to 2^20.
        temperature: float32 `[b]`, finite. Below 1e-6 the first of the largest logits is taken, after the penalty.
        top_k: int32 `[b]`. Keeps the k largest logits and their ties; 0 keeps all.
        top_p: float32 `[b]`. Keeps the fewest most likely tokens that reach p; 1 keeps all, 0 the most likely. All that
            are as likely as the last of them stay; of those the reference keeps only some.
        min_p: float32 `[b]`. Keeps tokens at least so many times as likely as the most likely; 0 keeps all.
        repetition_penalty: float32 `[b]`, above 0. For tokens in `seen`; 1 does nothing.
        seeds: int64 `[b]`, of the random numbers.
        draws: int64 `[b]`, how many tokens a row has drawn before. It is only read: who counts adds 1 afterwards.
        seen: int32 `[b, ceil(V / 32)]`, contiguous: bit `i % 32` of word `i // 32` for token i, see `seen_tokens`. The
            token that is drawn is added.
    Returns:
        int64 `[b]`. −1, and nothing added to `seen`, where the largest logit after penalty and temperature is NaN or
        not finite.

    Values are not checked, since the host would have to wait for them: a `top_p` or `min_p` that is NaN keeps all, and
    a NaN for a temperature is 0.

    Raises:
        RuntimeError: an argument does not meet this, or requires a gradient; the sentence says which.
    """
    return torch.ops.qwen_cuda.sample_tokens(
        logits, temperature, top_k, top_p, min_p, repetition_penalty, seeds, draws, seen
    )


def seen_tokens(histories: Sequence[Iterable[int]], vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """The argument `seen` of `sample_tokens` → int32 `[b, ceil(V / 32)]`.

    Args:
        histories: the ids of prompt and answer so far, for each row.
    Raises:
        ValueError: an id is not from 0 to `vocab_size` − 1.
    """
    bits = np.zeros((len(histories), -(-vocab_size // WORD_BITS) * WORD_BITS), np.uint8)
    for row, history in zip(bits, histories, strict=True):
        ids = np.fromiter(history, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ValueError(f"a history holds token ids outside 0 to {vocab_size - 1}.")
        row[ids] = 1
    packed = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return torch.from_numpy(packed.view(np.int32)).to(device)


def _fake(logits: Tensor, *parameters: Tensor) -> Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64)


register("sample_tokens", fake=_fake)
