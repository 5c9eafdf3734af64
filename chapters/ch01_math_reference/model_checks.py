"""Checks of the whole model against transformers, bit for bit. Used by the parity tests and by the mutants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from chapters.ch01_math_reference.twins import Twins
from qwen3_ref import KVCache, Qwen3


@torch.no_grad()
def our_chunks(model: Qwen3, tokens: Tensor, chunks: Sequence[int], cache: KVCache | None = None) -> Tensor:
    """Logits of `tokens: [b, t]` fed in `chunks` that sum to t, through a cache. → `[b, t, V]`"""
    cache = cache or KVCache(model.config, tokens.shape[0], tokens.shape[1], model.dtype, model.device)
    return torch.cat([model(part, cache) for part in tokens.split(list(chunks), dim=1)], dim=1)


@torch.no_grad()
def their_chunks(
    model: Qwen3ForCausalLM, tokens: Tensor, chunks: Sequence[int], cache: DynamicCache | None = None
) -> Tensor:
    """The same through transformers, with the same chunks."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    parts = tokens.split(list(chunks), dim=1)
    return torch.cat([model(part, past_key_values=cache, use_cache=True).logits for part in parts], dim=1)


def their_greedy_tokens(model: Qwen3ForCausalLM, prompt: Tensor, new_tokens: int) -> list[int]:
    """What transformers' `generate` answers to `prompt: [1, t]`, greedily and with no stop token."""
    options = {"do_sample": False, "max_new_tokens": new_tokens, "eos_token_id": None, "pad_token_id": 0}
    untyped: Any = model  # the declared type of `generate` does not know this class
    answer = untyped.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return list(answer[0, prompt.shape[1] :].tolist())


@torch.no_grad()
def check_prefill(twins: Twins, batch: int = 1, length: int = 23) -> None:
    """One pass without a cache."""
    tokens = twins.tokens(batch, length)
    ours, theirs = twins.ours(tokens), twins.theirs(tokens).logits
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.isfinite().all()
    assert float(ours.std()) > 0.1, "a degenerate model would prove nothing"
    assert torch.equal(ours, theirs), f"largest difference {float((ours - theirs).abs().max())}"


def check_cached(twins: Twins, batch: int = 1, chunks: Sequence[int] = (7, 1, 1, 5, 1, 1, 1)) -> None:
    """Prefill, single tokens and further chunks through a KV cache."""
    tokens = twins.tokens(batch, sum(chunks), seed=1)
    ours, theirs = our_chunks(twins.ours, tokens, chunks), their_chunks(twins.theirs, tokens, chunks)
    assert torch.equal(ours, theirs), f"largest difference {float((ours - theirs).abs().max())}"
