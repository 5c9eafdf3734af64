"""The model that is checked and timed: a checkpoint, or random weights of a known shape, and prompts for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Qwen2Config,
    Qwen3Config,
)

from qwen3_ref.config import QWEN3_0_6B
from qwen3_ref.hub import TINY_DIR

RANDOM = {
    "random-0.6b": lambda: Qwen3Config(**QWEN3_0_6B.to_dict()),
    "random-0.5b": lambda: Qwen2Config(  # Qwen2.5-0.5B
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
}  # fmt: skip
FAMILIES = ("qwen2", "qwen3")
TEXTS = (
    "Once upon a time, there was a",
    "The capital of France is Paris. The capital of Italy is",
    "Lily and Tom went to the park. They saw a big dog, and",
    "def add(a, b):\n    return",
)
RANDOM_LENGTHS = (5, 17, 64, 200)


class ModelError(ValueError):
    """A model that cannot be found, read or used. The message is a sentence for the user."""


@dataclass(frozen=True)
class Subject:
    """A model of transformers, ready to run, and prompts `[1, t]` on its device."""

    name: str
    model: Any
    prompts: tuple[Tensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def random_prompt(self, length: int) -> Tensor:
        """Random token ids `[1, length]`, the same in each run."""
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(self.model.config.vocab_size, (1, length), generator=generator)
        return ids.to(self.model.device)


def load(name: str, device: torch.device, dtype: str = "auto", seed: int = 0) -> Subject:
    """Loads or makes a model.

    Args:
        name: `tiny`, a name of `RANDOM`, a directory, or a hub id.
        dtype: `auto` is the checkpoint's own, and bfloat16 for random weights.
    Raises:
        ModelError: there is no such model, it is no Qwen2 or Qwen3, or it cannot be read.
    """
    model = _random(name, device, dtype, seed) if name in RANDOM else _checkpoint(name, device, dtype)
    model = model.eval().requires_grad_(False)
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # greedy, and no token ends it
    subject = Subject(name, model, ())
    ids = None if name in RANDOM else _encoded(_source(name))
    prompts = [torch.tensor([one], device=device) for one in ids] if ids else None
    return Subject(name, model, tuple(prompts or (subject.random_prompt(length) for length in RANDOM_LENGTHS)))


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """cuDNN plans anew for each length of a growing cache, which makes a step several times longer: see the ledger."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _random(name: str, device: torch.device, dtype: str, seed: int) -> Any:
    wanted = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.device(device), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(RANDOM[name](), dtype=wanted, attn_implementation="sdpa")
        for key, weight in model.named_parameters():  # a norm whose weights are all one hides half of its errors
            if "norm" in key:
                weight.normal_(1.0, 0.2)
    return model


def _checkpoint(name: str, device: torch.device, dtype: str) -> Any:
    source = _source(name)
    if not source:
        raise ModelError("MODEL is empty; it must be tiny, a directory, a hub id, or " + " or ".join(RANDOM) + ".")
    try:
        config = AutoConfig.from_pretrained(source)
        if config.model_type not in FAMILIES:
            raise ModelError(f"{name} is a model of type {config.model_type!r}; it must be a Qwen2, Qwen2.5 or Qwen3.")
        chosen = dtype if dtype == "auto" else getattr(torch, dtype)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=chosen, attn_implementation="sdpa")
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name} cannot be loaded: {lines[0].rstrip('.')}.") from error
    return model.to(device)


def _source(name: str) -> str:
    return str(TINY_DIR) if name == "tiny" and not Path(name).is_dir() else name


def _encoded(source: str) -> list[list[int]] | None:
    """The ids of `TEXTS`; None where the checkpoint has no tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError):
        return None
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    return ids if all(ids) else None  # transformers makes an empty tokenizer where there are no files of one
