"""Whether a patched model computes what the unpatched one does, for each set of operators and each rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from chapters.ch03_swiglu.drop_in.configurations import CONFIGURATIONS, ROUNDINGS, patched_copy
from chapters.ch03_swiglu.drop_in.exact import in_float64
from chapters.ch03_swiglu.drop_in.greedy import Parting, continue_greedily, partings
from chapters.ch03_swiglu.drop_in.logits import ALLOWED_RATIO, Difference, Errors, difference, errors, logits_of
from chapters.ch03_swiglu.drop_in.models import Subject


@dataclass(frozen=True)
class Arm:
    """One patched model beside the unpatched one.

    Attributes:
        configuration, rounding: which operators it has, and how they round.
        difference: of its logits from the unpatched model's.
        exact: errors of its logits against float64; `ratio` is their rms over the unpatched model's.
        identical: of the prompts, how many have the same greedy tokens.
        partings: where the others part.
    """

    configuration: str
    rounding: str
    difference: Difference
    exact: Errors
    ratio: float
    identical: int
    partings: tuple[Parting, ...]

    def complaints(self) -> Iterator[str]:
        """What is wrong with it, in sentences."""
        who = f"{self.configuration}, {self.rounding} rounding"
        if not self.ratio <= ALLOWED_RATIO:
            yield (
                f"{who}: the logits' rms error against float64 is {self.ratio:.3g} times the unpatched model's; "
                f"{ALLOWED_RATIO:g} times are allowed."
            )
        for parting in self.partings:
            if not parting.tie:
                yield (
                    f"{who}: prompt {parting.prompt + 1} gets another token at place {parting.place + 1}, where the "
                    f"unpatched model's margin is {parting.margin:.3g} ({parting.margin_ulps:.3g} ulp): no near-tie."
                )


@dataclass(frozen=True)
class Validation:
    """All arms on one model. `prompts` are their lengths, `unpatched` the unpatched model's errors."""

    prompts: tuple[int, ...]
    new_tokens: int
    unpatched: Errors
    arms: tuple[Arm, ...]

    @property
    def complaints(self) -> list[str]:
        return [sentence for arm in self.arms for sentence in arm.complaints()]

    def to_dict(self) -> dict[str, Any]:
        """For the results file; a figure that is no number is None there."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain | {"allowed_ratio": ALLOWED_RATIO, "complaints": self.complaints}


def arms() -> list[tuple[Any, Any]]:
    """Every configuration in every rounding, in the order of the tables."""
    return [(configuration, rounding) for configuration in CONFIGURATIONS for rounding in ROUNDINGS]


def validate(subject: Subject, new_tokens: int, begin: Callable[[str], None] = lambda what: None) -> Validation:
    """Runs every arm. `begin` is called before the unpatched model and before each arm, with its name."""
    begin("unpatched, and in float64")
    model, prompts = subject.model, subject.prompts
    exact_model = in_float64(model)
    exact = logits_of(exact_model, prompts)
    del exact_model
    plain = logits_of(model, prompts)
    own = errors(plain, exact)
    text = continue_greedily(model, prompts, new_tokens)
    found = []
    for configuration, rounding in arms():
        begin(f"{configuration.name}, {rounding} rounding")
        patched = patched_copy(model, configuration, rounding)
        logits = logits_of(patched, prompts)
        against = errors(logits, exact)
        apart = partings(continue_greedily(patched, prompts, new_tokens), text, own.rms)
        found.append(
            Arm(
                configuration.name,
                rounding,
                difference(logits, plain),
                against,
                against.rms / own.rms if own.rms else math.nan,
                len(prompts) - len(apart),
                tuple(apart),
            )
        )
    return Validation(tuple(prompt.shape[1] for prompt in prompts), new_tokens, own, tuple(found))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
