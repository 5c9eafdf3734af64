"""How far a model is from the reference on texts that both are forced to read: tokens, logits, distributions.

Teacher forcing: both models see the same true text before each judged place, so that one different choice does not
change all that follow it, as it would in a generated text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.prompts import CONTEXT, GateError

LARGEST_EXPONENT = 700.0  # e^710 is no fp64


@dataclass(frozen=True)
class Flip:
    """A place at which the model's likeliest token is not the reference's.

    Attributes:
        text: which text, from 0; `place`: which of its tokens is predicted there, from 0.
        expected, chosen: the reference's likeliest token id, and the model's.
        margin: by how much the reference's logit of `expected` exceeds its logit of `chosen`: about 0 in a near-tie.
    """

    text: int
    place: int
    expected: int
    chosen: int
    margin: float


@dataclass(frozen=True)
class Distance:
    """Of a model from the reference, over some judged places.

    Attributes:
        tokens: how many places. `flips`: those with another likeliest token.
        mean_error, max_error: of the logits, magnitudes over all places and the whole vocabulary.
        kl, max_kl: KL divergence of the model's distribution from the reference's, nats, mean and largest of all.
        reference_loss, loss: mean cross-entropy of the true tokens, nats, of the reference and of the model.
    """

    tokens: int
    flips: tuple[Flip, ...]
    mean_error: float
    max_error: float
    kl: float
    max_kl: float
    reference_loss: float
    loss: float

    @property
    def agreement(self) -> float:
        return 1 - len(self.flips) / self.tokens

    @property
    def reference_perplexity(self) -> float:
        return math.exp(min(self.reference_loss, LARGEST_EXPONENT))

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, LARGEST_EXPONENT))

    @property
    def perplexity_change(self) -> float:
        """Relative: 0.01 is one per cent more."""
        return math.expm1(min(self.loss - self.reference_loss, LARGEST_EXPONENT))

    @classmethod
    def of(cls, text: int, tokens: Tensor, reference: Tensor, logits: Tensor) -> Distance:
        """Of one text. `tokens: [n]` are the true ones, `reference` and `logits: [n, V]` stand before each of them."""
        expected, chosen = reference.argmax(-1), logits.argmax(-1)
        rows = torch.arange(len(tokens), device=tokens.device)
        margins = (reference[rows, expected] - reference[rows, chosen]).tolist()
        flips = tuple(
            Flip(text, CONTEXT + i, int(expected[i]), int(chosen[i]), margins[i])
            for i in (expected != chosen).nonzero().flatten().tolist()
        )
        apart = (logits - reference).abs()
        truth, found = (x.double().log_softmax(-1) for x in (reference, logits))
        kl = (truth.exp() * (truth - found)).sum(-1).clamp(min=0)  # rounding may leave it just below 0
        losses = (-float(x[rows, tokens].mean()) for x in (truth, found))
        mean_error = float(apart.double().mean())
        return cls(len(tokens), flips, mean_error, float(apart.max()), float(kl.mean()), float(kl.max()), *losses)

    @classmethod
    def over(cls, parts: Sequence[Distance]) -> Distance:
        """Of all texts: means weighted by their places."""
        count = sum(part.tokens for part in parts)

        def mean(values: Iterable[float]) -> float:
            return math.fsum(value * part.tokens for value, part in zip(values, parts, strict=True)) / count

        return cls(
            count,
            tuple(flip for part in parts for flip in part.flips),
            mean(part.mean_error for part in parts),
            max(part.max_error for part in parts),
            mean(part.kl for part in parts),
            max(part.max_kl for part in parts),
            mean(part.reference_loss for part in parts),
            mean(part.loss for part in parts),
        )

    def to_dict(self) -> dict[str, Any]:
        """For the results file, without the flips themselves."""
        low, high = interval(self.tokens - len(self.flips), self.tokens)
        return {
            "tokens": self.tokens,
            "flips": len(self.flips),
            "agreement": self.agreement,
            "agreement_interval": [low, high],
            "logit_error": {"mean": self.mean_error, "max": self.max_error},
            "kl_nats": {"mean": self.kl, "max": self.max_kl},
            "perplexity": {
                "reference": self.reference_perplexity,
                "model": self.perplexity,
                "change": self.perplexity_change,
            },
        }


@torch.inference_mode()
def judged_logits(model: Callable[[Tensor], Tensor], prompt: Tensor, who: str) -> Tensor:
    """`prompt: [1, CONTEXT + n]` → the logits before each of its last `n` tokens, `[n, V]` in fp32.

    `model`: a Qwen3, or whatever else gives logits `[1, CONTEXT + n, V]`.

    Raises:
        GateError: one is NaN or infinite: no comparison with it means anything.
    """
    logits = model(prompt)[0, CONTEXT - 1 : -1].float()
    if not torch.isfinite(logits).all():
        raise GateError(f"{who} gives logits that are NaN or infinite: they cannot be judged.")
    return logits


def interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval (1927) for the true share behind so many successes; z = 1.96 is 95 %.

    It takes the trials as independent. Tokens of one text are less than that, so that the truth is a little wider.
    """
    share, square = successes / trials, z * z / trials
    centre = (share + square / 2) / (1 + square)
    reach = z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, centre - reach), min(1.0, centre + reach)
