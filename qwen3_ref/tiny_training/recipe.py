"""What is trained, on how much, and how fast the steps become small."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qwen3_ref.config import Qwen3Config
from qwen3_ref.tiny_training.bpe import ADDED_TOKENS, VOCAB_SIZE

BOS_ID = VOCAB_SIZE - len(ADDED_TOKENS)  # <|endoftext|>
EOS_ID = BOS_ID + 2  # <|im_end|>


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on.

    Attributes:
        documents: of the corpus; those that are held out are among them.
        tokenizer_documents: that the tokenizer is trained on.
        length: tokens of a row, and the positions that the model knows.
        batch: rows of a step. Small batches and many steps teach the model to copy names out of its context.
        steps: of the optimizer; None fits them into the given minutes after the warm-up has shown their speed.
        peak_rate: the highest learning rate, reached after `warmup` steps; then a cosine down to `final_share`.
    """

    seed: int = 0
    hidden_size: int = 256
    intermediate_size: int = 768
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    documents: int = 800_000
    tokenizer_documents: int = 20_000
    length: int = 2048
    batch: int = 16
    steps: int | None = None
    warmup: int = 300
    peak_rate: float = 2e-3
    final_share: float = 0.02
    weight_decay: float = 0.1

    def config(self) -> Qwen3Config:
        """The model. Its shape is Qwen3's: tied embedding, heads of 128, QK-norm, RoPE with θ = 1e6."""
        return Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.length,
            bos_token_id=BOS_ID,
            eos_token_ids=(EOS_ID,),
        )

    def rate(self, step: int, steps: int | None) -> float:
        """The learning rate of a step (from 0). `steps` may be unknown during the warm-up."""
        if step < self.warmup or steps is None:
            return self.peak_rate * (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.peak_rate * (self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress)))


SMOKE = Recipe(
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=2,
    kv_heads=1,
    documents=800,
    tokenizer_documents=400,
    length=128,
    batch=8,
    steps=20,
    warmup=5,
    peak_rate=1e-2,
)
"""A run of some seconds on any machine, which shows that all parts fit together."""
