"""The same weights in two implementations: our Qwen3, and transformers' Qwen3ForCausalLM with eager attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from qwen3_ref import KVCache, Qwen3, Qwen3Config
from qwen3_ref.weights import save_pretrained

# The traits on which implementations of Qwen3 go wrong: query channels other than the hidden size (all four), groups of
# 1 to 4, one KV head, odd sizes, a free head, an eps that counts. Wide weights keep logits far from uniform.
SHAPES = {
    "group1-tied": Qwen3Config(
        vocab_size=211, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, initializer_range=0.3,
    ),
    "group2-untied": Qwen3Config(
        vocab_size=300, hidden_size=64, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, initializer_range=0.2, tie_word_embeddings=False,
    ),
    "group4-theta1e4": Qwen3Config(
        vocab_size=97, hidden_size=40, intermediate_size=56, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=8, initializer_range=0.3, rope_theta=1e4, rms_norm_eps=1e-3,
    ),
    "group3-odd": Qwen3Config(
        vocab_size=101, hidden_size=37, intermediate_size=53, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, head_dim=10, initializer_range=0.3, rope_theta=5e5, tie_word_embeddings=False,
    ),
    "head128": Qwen3Config(
        vocab_size=160, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, initializer_range=0.15,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Twins:
    """Both models hold the same values; `directory` is the checkpoint that transformers read."""

    ours: Qwen3
    theirs: Qwen3ForCausalLM
    directory: Path

    @property
    def config(self) -> Qwen3Config:
        return self.ours.config

    def tokens(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """Random token ids, `[batch, length]`."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.config.vocab_size, (batch, length), generator=generator)

    def cache(self, batch: int, max_len: int) -> KVCache:
        return KVCache(self.config, batch, max_len, self.ours.dtype)


def make_twins(directory: Path, config: Qwen3Config, dtype: torch.dtype, seed: int = 0) -> Twins:
    """Random weights (norm weights spread around one), saved by us and read back by both.

    Both read the file, because the bits of a product on a CPU depend on how its operands are aligned in memory: the
    vendor's matrix-vector code sums in another order when a weight does not start at a multiple of 64 bytes.
    `dtype="auto"` keeps transformers' RoPE frequencies in float32; casting the built model would round them.
    """
    save_pretrained(directory, Qwen3.random(config, seed, dtype))
    ours = Qwen3.from_pretrained(directory)
    theirs = Qwen3ForCausalLM.from_pretrained(directory, dtype="auto", attn_implementation="eager").eval()
    assert theirs.dtype == dtype
    return Twins(ours, theirs, directory)
