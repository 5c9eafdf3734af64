"""How far the logits of a patched model are from the unpatched one's, and both from float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALLOWED_RATIO = 1.5
"""A patched model's rms error against float64 may be so many times the unpatched one's.

Both round the same products as often, in another order, so that their errors are equal but for chance; a wrong
operator's is larger by orders of magnitude.
"""


@dataclass(frozen=True)
class Errors:
    """Of logits against float64, over all positions of all prompts: `rms` of all, `largest` of the magnitudes."""

    rms: float
    largest: float


@dataclass(frozen=True)
class Difference:
    """Of two models' logits: the mean and the largest magnitude; how often the likeliest token is the same one."""

    mean: float
    largest: float
    top1: float


@torch.no_grad()
def logits_of(model: Any, prompts: Sequence[Tensor]) -> list[Tensor]:
    """For each prompt `[1, t]` its logits `[t, V]`, in the model's dtype."""
    return [model(input_ids=prompt, use_cache=False).logits[0] for prompt in prompts]


def errors(logits: Sequence[Tensor], exact: Sequence[Tensor]) -> Errors:
    """Against float64. NaN anywhere gives NaN."""
    square = largest = 0.0
    count = 0
    for one, truth in zip(logits, exact, strict=True):
        error = (one.double() - truth).abs()
        square += float(error.square().sum())
        largest = _max(largest, float(error.max()))
        count += error.numel()
    return Errors(math.sqrt(square / count), largest)


def difference(logits: Sequence[Tensor], others: Sequence[Tensor]) -> Difference:
    """Of two models on the same prompts. NaN anywhere gives NaN."""
    total = largest = 0.0
    count = same = positions = 0
    for one, other in zip(logits, others, strict=True):
        apart = (one.double() - other.double()).abs()
        total, largest, count = total + float(apart.sum()), _max(largest, float(apart.max())), count + apart.numel()
        same += int((one.argmax(-1) == other.argmax(-1)).sum())
        positions += one.shape[0]
    return Difference(total / count, largest, same / positions)


def _max(a: float, b: float) -> float:
    """Python's `max` forgets a NaN that does not come first."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)
