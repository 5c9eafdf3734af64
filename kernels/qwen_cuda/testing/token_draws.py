"""`sample_tokens` in PyTorch and numpy: which tokens are kept, in whole numbers, and the draw among them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from qwen3_ref.gumbel import LN_2, draw_token
from qwen3_ref.sampling import keep_top_k, penalise_repetition

ONE = 2.0**40  # the mass of the most likely token
LOG2_E = np.float32(1.4426950408889634)


def masses(below: Tensor) -> Tensor:
    """e^d · 2^40 for each d, float32 and at most 0, as int64: sums of them do not depend on their order."""
    power = np.maximum(below.numpy() * LOG2_E, np.float32(-63))
    whole = np.rint(power)
    rest = (power - whole) * LN_2
    series = rest * np.float32(1 / math.factorial(7))  # of e^rest
    for n in range(6, 0, -1):
        series = (series + np.float32(1 / math.factorial(n))) * rest
    mantissa = ((series + np.float32(1)) * np.float32(2**24)).astype(np.int64)
    return torch.from_numpy(mantissa << 16 >> (-whole).astype(np.int64))


def keep_nucleus(logits: Tensor, p: float) -> Tensor:
    """As `qwen3_ref.sampling.keep_top_p`, but that ties with the least likely token stay. float32 `[V]` → `[V]`.

    p is cut to 24 binary places, and p times the sum rounded up.
    """
    descending = logits.sort(descending=True).values
    sums = masses(descending - descending[0]).cumsum(0)
    total, places = int(sums[-1]), int(max(p, 0) * 2**24)
    limit = max(-(-total * places >> 24), 1)
    return logits.masked_fill(logits < descending[int(torch.searchsorted(sums, limit))], -torch.inf)


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    repetition_penalty: Tensor,
    seeds: Tensor,
    draws: Tensor,
    seen: Tensor,
) -> Tensor:
    """`logits: [b, V]`, one of each parameter a row, `seen: [b, ceil(V / 32)]` → int64 `[b]`; tokens join `seen`."""
    token = torch.full((logits.shape[0],), -1, dtype=torch.int64)
    for row, x in enumerate(logits.cpu()):
        filtered = keep(
            x,
            seen[row].cpu(),
            float(temperature[row]),
            int(top_k[row]),
            float(top_p[row]),
            float(min_p[row]),
            float(repetition_penalty[row]),
        )
        if not math.isfinite(float(filtered.max())):
            continue
        if temperature[row] >= 1e-6:
            one = draw_token(filtered, int(seeds[row]), int(draws[row]))
        else:
            one = int(filtered.argmax())
        token[row] = one
        seen[row, one // 32] |= 1 << one % 32 if one % 32 < 31 else -(1 << 31)
    return token.to(logits.device)


def keep(x: Tensor, seen: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float) -> Tensor:
    """A row's logits after penalty, temperature and filters; dropped tokens are −inf. `[V]` → `[V]`, on the CPU."""
    if penalty != 1:
        bits = seen[:, None] >> torch.arange(32) & 1
        x = penalise_repetition(x, bits.flatten().nonzero().flatten(), penalty)
    if not temperature >= 1e-6:
        return x
    x = x / x.new_tensor(temperature)
    if not math.isfinite(float(x.max())):
        return x
    if 0 < top_k < x.shape[0]:
        x = keep_top_k(x, top_k)
    if top_p < 1:
        x = keep_nucleus(x, top_p)
    if min_p > 0:
        x = x.masked_fill(masses(x - x.max()) < int(min(min_p, 1) * ONE), -torch.inf)
    return x
