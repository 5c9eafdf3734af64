"""v1: no cache. Every new token sends the whole text through the model again."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref import Qwen3


# --8<-- [start:generate]
@torch.inference_mode()
def generate(model: Qwen3, prompt_ids: Tensor, new_tokens: int) -> list[int]:
    """`new_tokens` greedy ids behind `prompt_ids: [1, t]`; a stop token counts like any other."""
    ids = prompt_ids
    for _ in range(new_tokens):
        logits = model(ids)  # [1, t, V]: every position again, to read the last row
        ids = torch.cat((ids, logits[:, -1:].argmax(-1)), dim=1)
    return ids[0, prompt_ids.shape[1] :].tolist()


# --8<-- [end:generate]
