"""The model that is judged: its fp32 reference, its bf16 self, and itself with simulated integer weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.fake_quant import fake_quantize, stored_bytes
from chapters.ch08_w8a16_head.quality_gate.prompts import (
    HELD_OUT_STORIES,
    PASSAGES,
    GateError,
    Texts,
    encode,
    read_texts,
)
from qwen3_ref.config import Qwen3Config
from qwen3_ref.hub import TINY_DIR, ModelSource
from qwen3_ref.model import Qwen3
from qwen3_ref.tokenizer import Tokenizer
from qwen3_ref.weights import load_weights

Layers = Literal["head", "all"]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Quantization:
    """Which weights become integers, and how.

    Attributes:
        layers: `head` is the output projection alone; `all` is that and every projection of every layer. The norms and
            the embedding's look-up stay as they are, also where the embedding is the head's own weight.
        bits: of an integer.
        group: columns that share a scale; None is one scale per output channel.
    """

    layers: Layers = "head"
    bits: int = 8
    group: int | None = 128

    @property
    def name(self) -> str:
        where = "head" if self.layers == "head" else "all layers"
        return f"int{self.bits}, {where}, {'per channel' if self.group is None else f'group {self.group}'}"


@dataclass(frozen=True)
class Cost:
    """Of quantised weights: bytes before, in bf16, and after; rms of what rounding changed over rms of the weights."""

    bf16_bytes: int
    bytes: int
    weight_error: float


@dataclass(frozen=True)
class Subject:
    """A checkpoint with fp32 weights on its device, and the texts that it is judged on, as token ids."""

    name: str
    config: Qwen3Config
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    texts: Texts
    prompts: tuple[Tensor, ...]

    def reference(self) -> Qwen3:
        """The model in fp32, with the checkpoint's own weights."""
        return Qwen3.from_weights(self.config, self.weights)

    def rounded(self) -> Qwen3:
        """The model in bfloat16, weights and activations: what an unquantised engine computes."""
        return Qwen3.from_weights(self.config, {name: weight.bfloat16() for name, weight in self.weights.items()})

    def quantized(self, quantization: Quantization) -> tuple[Qwen3, Cost]:
        """The model in fp32 on weights that went through integers, and what they take. Others are shared, not copied.

        Raises:
            GateError: a weight cannot be quantised so.
        """
        weights = dict(self.weights)
        weights[HEAD] = self.weights[EMBEDDING if self.config.tie_word_embeddings else HEAD]
        names = [HEAD]
        if quantization.layers == "all":
            names += [name for name in weights if name.endswith("_proj.weight")]
        before = after = 0
        changed = size = 0.0
        for name in names:
            weight = weights[name]
            try:
                weights[name] = fake_quantize(weight, quantization.group, quantization.bits)
                after += stored_bytes(weight, quantization.group, quantization.bits)
            except ValueError as error:
                raise GateError(f"{name} cannot be quantised: {error}") from None
            before += 2 * weight.numel()
            changed += _square_sum(weights[name] - weight)
            size += _square_sum(weight)
        model = Qwen3.from_weights(replace(self.config, tie_word_embeddings=False), weights)
        return model, Cost(before, after, math.sqrt(changed / size) if size else 0.0)


def load(source: ModelSource, device: torch.device, tokens: int, texts: Texts | None = None) -> Subject:
    """Reads a checkpoint and the texts for it.

    Args:
        tokens: judged in each text.
        texts: None are the stories held out of the tiny checkpoint's training, and passages for other models.
    Raises:
        ConfigError, CheckpointError, TokenizerError: what is missing or wrong, by name.
        GateError: the texts cannot be judged.
    """
    if texts is None:
        texts = read_texts(HELD_OUT_STORIES if source.dir.resolve() == TINY_DIR else PASSAGES)
    config = Qwen3Config.from_pretrained(source.dir)
    tokenizer = Tokenizer.from_pretrained(source.dir)
    ids = encode(texts, tokenizer, tokens, config.vocab_size)
    weights = load_weights(source.dir, config, torch.float32, device)
    prompts = tuple(torch.tensor([one], device=device) for one in ids)
    return Subject(source.name, config, weights, tokenizer, texts, prompts)


def _square_sum(values: Tensor) -> float:
    return float(values.double().square().sum())
