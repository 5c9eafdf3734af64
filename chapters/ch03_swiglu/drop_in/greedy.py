"""Greedy continuations of two models, and whether the place where they part was a near-tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen_cuda.testing.ulp import ulp

TIE_ULPS = 4
"""Two logits so close, in units of the last place of their format, are a near-tie: each may be off by two."""
TIE_ERRORS = 6
"""So are two that are closer than so many times the unpatched model's own rms error against float64."""


@dataclass(frozen=True)
class Continuation:
    """`tokens: [n]`, and what stood behind each choice: the two largest logits, `[n, 2]` in float64, and their ulp."""

    tokens: Tensor
    best: Tensor
    ulps: Tensor

    @property
    def margins(self) -> Tensor:
        """By how much each token was the likeliest, `[n]`."""
        return self.best[:, 0] - self.best[:, 1]


@dataclass(frozen=True)
class Parting:
    """The first token in which a continuation differs from the unpatched model's.

    Attributes:
        prompt, place: which prompt, and which of its new tokens, from 0.
        margin: by how much the unpatched model's token was ahead of its second, `margin_ulps` in ulps of the logits.
        tie: whether that is little enough for rounding to decide.
    """

    prompt: int
    place: int
    margin: float
    margin_ulps: float
    tie: bool


@torch.no_grad()
def continue_greedily(model: Any, prompts: Sequence[Tensor], new_tokens: int) -> list[Continuation]:
    """`generate` on each prompt `[1, t]`, exactly `new_tokens` tokens."""
    found = []
    for prompt in prompts:
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = torch.stack([logits[0].topk(2).values for logits in out.logits])
        ulps = ulp(best[:, 0].cpu(), model.dtype)
        found.append(Continuation(out.sequences[0, prompt.shape[1] :].cpu(), best.double().cpu(), ulps))
    return found


def partings(ours: Sequence[Continuation], unpatched: Sequence[Continuation], rms_error: float) -> list[Parting]:
    """The first difference of each prompt that has one. `rms_error` is the unpatched model's against float64."""
    found = []
    for prompt, (mine, theirs) in enumerate(zip(ours, unpatched, strict=True)):
        differs = (mine.tokens != theirs.tokens).nonzero()
        if not differs.numel():
            continue
        place = int(differs[0])
        margin, unit = float(theirs.margins[place]), float(theirs.ulps[place])
        tie = margin <= max(TIE_ULPS * unit, TIE_ERRORS * rms_error)
        found.append(Parting(prompt, place, margin, margin / unit, tie))
    return found
