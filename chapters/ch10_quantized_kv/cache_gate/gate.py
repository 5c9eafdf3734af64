"""The judgement of a cache: chapter 8's figures and criteria, and how many answers are still found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate import gate as weights_gate
from chapters.ch08_w8a16_head.quality_gate.agreement import Distance, judged_logits
from chapters.ch08_w8a16_head.quality_gate.gate import AGREEMENT, MARGIN, refuse_untrained
from chapters.ch08_w8a16_head.quality_gate.prompts import CONTEXT, LEAST_TEXTS, LEAST_TOKENS
from chapters.ch08_w8a16_head.quality_gate.subject import Subject
from chapters.ch10_quantized_kv.cache_gate.caches import FORMATS, CacheKind
from chapters.ch10_quantized_kv.cache_gate.needles import Question, Recall, answers
from qwen3_ref.cost import kv_bytes_per_token
from qwen3_ref.model import Qwen3

RECALL = 0.95
"""So large a share of the answers that the reference finds must be found."""

Model = Callable[[Tensor], Tensor]  # [1, n] tokens → [1, n, V] logits


@dataclass(frozen=True)
class Arm:
    """One model beside the reference. `kind` is None for bf16 with its own cache."""

    kind: CacheKind | None
    distance: Distance
    recall: Recall

    @property
    def name(self) -> str:
        return "bf16 rounding" if self.kind is None else self.kind.name

    @property
    def complaints(self) -> list[str]:
        return list(complaints(self))

    def to_dict(self) -> dict[str, Any]:
        """For the results file."""
        return {"name": self.name, **self.distance.to_dict(), "recall": asdict(self.recall)}


@dataclass(frozen=True)
class Verdict:
    """The caches, the judged one first, and the noise of bf16 beside them."""

    subject: Subject
    asked: tuple[Question, ...]
    rounding: Arm
    caches: tuple[Arm, ...]

    @property
    def judged(self) -> Arm:
        return self.caches[0]

    @property
    def passed(self) -> bool:
        return not self.judged.complaints

    def to_dict(self) -> dict[str, Any]:
        """For the results file; the package's docstring says what each key holds."""
        texts, config = self.subject.texts, self.subject.config
        lengths = [question.prompt.shape[1] for question in self.asked]
        criteria = {"agreement": AGREEMENT, "margin": MARGIN, "texts": LEAST_TEXTS, "tokens": LEAST_TOKENS}
        return {
            "judged": True,
            "passed": self.passed,
            "complaints": self.judged.complaints,
            "criteria": criteria | {"recall": RECALL},
            "model": {
                "name": self.subject.name,
                "layers": config.num_hidden_layers,
                "bf16_bytes": kv_bytes_per_token(config),
            },
            "texts": {
                "file": texts.name,
                "digest": texts.digest,
                "count": len(texts.passages),
                "context": CONTEXT,
                "tokens": self.judged.distance.tokens // len(texts.passages),
            },
            "needles": {
                "asked": len(self.asked),
                "context": [min(lengths), max(lengths)],
                "reference": self.rounding.recall.asked,
            },
            "rounding": self.rounding.to_dict(),
            "caches": [self._cache(arm) for arm in self.caches],
        }

    def _cache(self, arm: Arm) -> dict[str, Any]:
        assert arm.kind is not None
        cast, tokenizer = FORMATS[arm.kind.format], self.subject.tokenizer
        found = arm.to_dict() | {
            "format": arm.kind.format,
            "values": cast.values,
            "group": cast.group,
            "scales": cast.scales,
            "hadamard": arm.kind.hadamard,
            "bytes": arm.kind.token_bytes(self.subject.config),
            "judged": arm is self.judged,
            "passed": not arm.complaints,
            "complaints": arm.complaints,
        }
        if arm is self.judged:
            found["flipped"] = [
                asdict(flip) | {"expected": tokenizer.token(flip.expected), "chosen": tokenizer.token(flip.chosen)}
                for flip in arm.distance.flips
            ]
        return found


def complaints(arm: Arm) -> Iterator[str]:
    """Why this is not near enough to the reference, in sentences; nothing if it is.

    Raises:
        GateError: there are too few tokens for a judgement.
    """
    yield from weights_gate.complaints(arm.distance)
    if not arm.recall.share >= RECALL:
        yield (
            f"{arm.recall.found} of {arm.recall.asked} answers that the reference finds are found; "
            f"at least {RECALL:.0%} must be."
        )


def judge(
    subject: Subject,
    asked: tuple[Question, ...],
    kinds: Sequence[CacheKind],
    begin: Callable[[str], None] = lambda what: None,
) -> Verdict:
    """Runs the reference, its bf16 self, and the reference with each cache. `begin` is called before each.

    Args:
        asked: by `questions`.
        kinds: the first is judged, the others stand beside it.
    Raises:
        GateError: it could not be judged: NaN, too few tokens or answers, or a reference that cannot read these texts.
    """
    begin("fp32 reference")
    exact = subject.reference()
    # On the host: a large vocabulary's logits of all texts are a gigabyte.
    reference = [logits.cpu() for logits in _logits(subject, exact, "the fp32 reference")]
    found = answers(exact, asked)

    def arm(model: Model, kind: CacheKind | None) -> Arm:
        who = "the model in bf16" if kind is None else f"the model with a cache in {kind.name}"
        parts = [
            Distance.of(text, prompt[0, CONTEXT:], truth.to(prompt.device), logits)
            for text, (prompt, truth, logits) in enumerate(
                zip(subject.prompts, reference, _logits(subject, model, who), strict=True)
            )
        ]
        return Arm(kind, Distance.over(parts), Recall.of(asked, found, answers(model, asked)))

    begin("bf16 rounding")
    rounding = arm(subject.rounded(), None)
    refuse_untrained(subject, rounding.distance)
    caches = []
    for kind in kinds:
        begin(kind.name)
        caches.append(arm(with_cache(exact, kind), kind))
    return Verdict(subject, asked, rounding, tuple(caches))


def with_cache(model: Qwen3, kind: CacheKind) -> Model:
    """The model reading its keys and values, those of the same pass too, from a new cache of this kind."""

    def logits_of(tokens: Tensor) -> Tensor:
        return model(tokens, kind.new_cache(model.config, tokens.shape[1], tokens.device))

    return logits_of


def _logits(subject: Subject, model: Model, who: str) -> Iterator[Tensor]:
    for number, prompt in enumerate(subject.prompts, start=1):
        yield judged_logits(model, prompt, f"{who}, text {number} of {subject.texts.name},")
