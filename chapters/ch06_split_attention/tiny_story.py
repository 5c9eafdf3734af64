"""The tiny model's greedy story, told by the reference and by the paged engine: what the tests of that engine share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.paged_model import PagedModel
from qwen3_ref.generate import Engine, Generation
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.model import Qwen3
from qwen3_ref.tokenizer import Tokenizer
from qwen_cuda.testing.backends import Backend

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STORY = "Once upon a time"
TOKENS = 2000
TOKENIZER = Tokenizer.from_pretrained(TINY_DIR)
PROMPT = TOKENIZER.encode(STORY)


def few_plans(batch: int, kv_heads: int, longest: int, device: torch.device) -> Plan:
    """A small table: one partition, some that fill up, and at last such as must grow."""
    return Plan(16, 1) if longest <= 20 else Plan(16, 3) if longest <= 150 else Plan(64, 8)


def weights(dtype: torch.dtype, device: torch.device | str = "cpu") -> Qwen3:
    return Qwen3.from_pretrained(TINY_DIR, dtype=dtype, device=device, attention="sdpa")


def paged(backend: Backend, dtype: torch.dtype = FP32, **options: Any) -> PagedModel:
    options = {"cache_dtype": FP16 if dtype == FP32 else dtype, "plans": few_plans, **options}
    return PagedModel(weights(dtype, backend.device), simulated=backend.name == "sim", **options)


def story(engine: Engine, prompt: Sequence[int], tokens: int) -> Generation:
    """Greedily; the token that ends a text is one like others, and the next text begins."""
    engine.reset()
    return Generation(engine, TOKENIZER, prompt, tokens, stop_ids=())
