"""The true shape of Qwen3-0.6B with random weights, bit for bit. Needs memory; `-m "not slow"` leaves it out."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config as TheirConfig
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from chapters.ch01_math_reference.model_checks import our_chunks, their_chunks
from qwen3_ref import QWEN3_0_6B, Qwen3
from qwen3_ref.weights import expected_shapes

NEEDED_GIB = 12
TOKENS = torch.tensor([[151643, 9707, 11, 1879, 0, 151935, 358, 1079, 264, 3988, 13]])

pytestmark = pytest.mark.slow


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def cheap_weights() -> dict[str, Tensor]:
    """bf16 weights of the true shape: windows of one block of random numbers, each tensor at its own offset.

    600 million fresh random numbers would take longer than the test.
    """
    generator = torch.Generator().manual_seed(6)
    noise = torch.randn(2**22 + 2**16, generator=generator).to(torch.bfloat16)
    weights = {}
    for number, (name, shape) in enumerate(expected_shapes(QWEN3_0_6B).items()):
        size = torch.Size(shape).numel()
        window = noise[(number * 4099) % 2**16 :][: 2**22]
        values = window.repeat(-(-size // 2**22))[:size].view(shape)
        weights[name] = 1 + 0.2 * values if len(shape) == 1 else values.mul_(0.03)
    return weights


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    if _memory_gib() < NEEDED_GIB:
        pytest.skip(f"this machine has {_memory_gib():.0f} GiB of memory; the test needs {NEEDED_GIB}.")
    return cheap_weights()


def _theirs(weights: dict[str, Tensor]) -> Any:
    """transformers' model on the same tensors, without a copy: its own loader would write and read gigabytes."""
    config = TheirConfig(**QWEN3_0_6B.to_dict())
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 596_049_920
    model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True)
    model.model.rotary_emb = Qwen3RotaryEmbedding(config)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_logits_have_the_bits_of_transformers(weights: dict[str, Tensor], dtype: torch.dtype) -> None:
    """A prompt of nine tokens and two decoded ones."""
    shared = {name: weight.to(dtype) for name, weight in weights.items()}
    ours = our_chunks(Qwen3.from_weights(QWEN3_0_6B, shared), TOKENS, [9, 1, 1])
    theirs = their_chunks(_theirs(shared), TOKENS, [9, 1, 1])
    assert ours.shape == (1, 11, 151936)
    assert ours.dtype == dtype
    assert ours.isfinite().all()
    assert float(ours.float().std()) > 0.1
    assert all(not torch.equal(ours[:, a], ours[:, b]) for a, b in pairwise(range(11)))
    assert torch.equal(ours, theirs)
