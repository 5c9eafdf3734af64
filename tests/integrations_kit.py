"""Small models of transformers with random weights, for the tests of our operators inside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from qwen_cuda.integrations.huggingface import modules

# Query channels other than the hidden size, groups of two, an odd intermediate size: no 16-byte load fits its rows.
_SIZES = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
CONFIGS = {
    "qwen3": lambda **more: Qwen3Config(**_SIZES | {"head_dim": 32} | more),
    "qwen2.5": lambda **more: Qwen2Config(**_SIZES | {"tie_word_embeddings": True} | more),  # with biases of q, k, v
}


def make(family: str = "qwen3", dtype: torch.dtype = torch.float32, attention: str = "sdpa", **more: Any) -> Any:
    """A model for inference; norm weights and biases are random too. `more` goes to its configuration."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**more), dtype=dtype, attn_implementation=attention).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.normal_(float("norm" in name), 0.3)
    return model


def tokens(model: Any, batch: int = 2, length: int = 9) -> Tensor:
    """Random token ids `[batch, length]`."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator).to(model.device)


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(ids).logits
    return found


def assert_near(actual: Tensor, expected: Tensor, ulps: float = 64) -> None:
    """Within `ulps` of the largest value: three layers, each with sums of some 50 products in another order."""
    bound = ulps * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    worst = float((actual.double() - expected.double()).abs().max())
    assert worst <= bound, f"logits differ by {worst:.3g}; {bound:.3g} is allowed"


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """From now on, how often each operator has run inside a patched model."""
    counts = dict.fromkeys(("rms_norm", "add_rms_norm", "silu_mul"), 0)

    def counted(name: str) -> Any:
        operator = getattr(modules, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return operator(*arguments, **options)

        return call

    for name in counts:
        monkeypatch.setattr(modules, name, counted(name))
    return counts
