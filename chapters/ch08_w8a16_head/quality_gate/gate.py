"""The judgement: which figures are taken, and when a model passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.agreement import Distance, judged_logits
from chapters.ch08_w8a16_head.quality_gate.prompts import (
    CONTEXT,
    LEAST_TEXTS,
    LEAST_TOKENS,
    GateError,
)
from chapters.ch08_w8a16_head.quality_gate.subject import Cost, Quantization, Subject
from qwen3_ref.model import Qwen3

AGREEMENT = 0.99
"""So large a share of the likeliest tokens must be the reference's."""
MARGIN = 0.25
"""No flip may be at a place where the reference's choice was further ahead: there it is more than a near-tie."""
GROUPS = (None, 128, 64, 32)


@dataclass(frozen=True)
class Arm:
    """One model beside the reference: how far it is, in all and on each text. `quantization` is None for bf16."""

    quantization: Quantization | None
    cost: Cost | None
    distance: Distance
    by_text: tuple[Distance, ...]

    @property
    def name(self) -> str:
        return "bf16 rounding" if self.quantization is None else self.quantization.name

    def to_dict(self) -> dict[str, Any]:
        """For the results file."""
        how = asdict(self.quantization) if self.quantization else {}
        cost = asdict(self.cost) if self.cost else {}
        return {"name": self.name, **how, **cost, **self.distance.to_dict()}


@dataclass(frozen=True)
class Verdict:
    """The arm that is judged, the noise of bf16 beside it, and other groups for comparison."""

    subject: Subject
    rounding: Arm
    judged: Arm
    variants: tuple[Arm, ...] = ()

    @property
    def complaints(self) -> list[str]:
        return list(complaints(self.judged.distance))

    @property
    def passed(self) -> bool:
        return not self.complaints

    def to_dict(self) -> dict[str, Any]:
        """For the results file; the package's docstring says what each key holds."""
        texts, tokenizer = self.subject.texts, self.subject.tokenizer
        return {
            "judged": True,
            "passed": self.passed,
            "complaints": self.complaints,
            "criteria": {"agreement": AGREEMENT, "margin": MARGIN, "texts": LEAST_TEXTS, "tokens": LEAST_TOKENS},
            "model": {"name": self.subject.name, "layers": self.subject.config.num_hidden_layers},
            "texts": {
                "file": texts.name,
                "digest": texts.digest,
                "count": len(texts.passages),
                "context": CONTEXT,
                "tokens": self.judged.by_text[0].tokens,
            },
            "rounding": self.rounding.to_dict(),
            "quantized": self.judged.to_dict()
            | {
                "flipped": [
                    asdict(flip) | {"expected": tokenizer.token(flip.expected), "chosen": tokenizer.token(flip.chosen)}
                    for flip in self.judged.distance.flips
                ],
                "by_text": [part.to_dict() for part in self.judged.by_text],
            },
            "variants": [arm.to_dict() for arm in self.variants],
        }


def complaints(distance: Distance) -> Iterator[str]:
    """Why this is not near enough to the reference, in sentences; nothing if it is. NaN never passes.

    Raises:
        GateError: there are too few tokens for a judgement.
    """
    if not distance.tokens >= LEAST_TEXTS * LEAST_TOKENS:
        least = f"{LEAST_TEXTS} × {LEAST_TOKENS} = {LEAST_TEXTS * LEAST_TOKENS}"
        raise GateError(f"{distance.tokens} tokens are too few for a judgement; at least {least} are needed.")
    figures = (distance.mean_error, distance.max_error, distance.kl, distance.max_kl, distance.loss)
    if not all(map(math.isfinite, figures)):
        yield "a figure is no finite number."
    if not distance.agreement >= AGREEMENT:
        yield (
            f"{distance.agreement:.2%} of {distance.tokens:,} tokens are the reference's; "
            f"at least {AGREEMENT:.0%} must be."
        )
    wide = [flip for flip in distance.flips if not flip.margin <= MARGIN]
    if wide:
        largest = max(wide, key=lambda flip: flip.margin)
        yield (
            f"{len(wide)} of {len(distance.flips)} flips are no near-ties: at token {largest.place} of text "
            f"{largest.text + 1} the reference's choice was {largest.margin:.3g} ahead; up to {MARGIN} is allowed."
        )


def judge(
    subject: Subject,
    quantization: Quantization,
    variants: bool = False,
    begin: Callable[[str], None] = lambda what: None,
) -> Verdict:
    """Runs the reference, its bf16 self and the quantised model. `begin` is called before each, with its name.

    Args:
        variants: also runs the same layers and bits with each of `GROUPS`, to compare error and bytes.
    Raises:
        GateError: it could not be judged: NaN, too few tokens, or a reference that cannot read these texts.
    """
    begin("fp32 reference")
    # On the host: a large vocabulary's logits of all texts are a gigabyte.
    reference = [logits.cpu() for logits in _logits(subject, subject.reference(), "the fp32 reference")]

    def arm(model: Qwen3, how: Quantization | None, cost: Cost | None) -> Arm:
        who = "the model in bf16" if how is None else f"the quantised model ({how.name})"
        parts = [
            Distance.of(text, prompt[0, CONTEXT:], truth.to(prompt.device), logits)
            for text, (prompt, truth, logits) in enumerate(
                zip(subject.prompts, reference, _logits(subject, model, who), strict=True)
            )
        ]
        return Arm(how, cost, Distance.over(parts), tuple(parts))

    def quantized(how: Quantization) -> Arm:
        begin(how.name)
        model, cost = subject.quantized(how)
        return arm(model, how, cost)

    begin("bf16 rounding")
    rounding = arm(subject.rounded(), None, None)
    refuse_untrained(subject, rounding.distance)
    judged = quantized(quantization)
    list(complaints(judged.distance))  # too few tokens are refused before the variants take their time
    others: Sequence[Quantization] = [
        Quantization(quantization.layers, quantization.bits, group) for group in GROUPS if variants
    ]
    return Verdict(
        subject, rounding, judged, tuple(judged if how == quantization else quantized(how) for how in others)
    )


def _logits(subject: Subject, model: Qwen3, who: str) -> Iterator[Tensor]:
    for number, prompt in enumerate(subject.prompts, start=1):
        yield judged_logits(model, prompt, f"{who}, text {number} of {subject.texts.name},")


def refuse_untrained(subject: Subject, distance: Distance) -> None:
    """Raises GateError for a model that predicts no better than blind guessing: it makes no choices to be changed."""
    perplexity = distance.reference_perplexity
    if not perplexity < subject.config.vocab_size:
        raise GateError(
            f"{subject.name} predicts {subject.texts.name} worse than blind guessing: its perplexity is "
            f"{perplexity:,.0f}, and it has {subject.config.vocab_size:,} tokens to choose from. It must be a trained "
            "model, and the texts of a kind that it knows."
        )
