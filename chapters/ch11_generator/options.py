"""Option values: text from the command line into numbers and names, with one sentence for what cannot be used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chapters.ch11_generator.errors import ArgumentError

if TYPE_CHECKING:
    from qwen3_ref.sampling import SamplingParams


def whole_number(option: str, text: str | None, low: int, high: int) -> int | None:
    """`text` as an integer from `low` to `high`; None stays None.

    Raises:
        ArgumentError: it is something else.
    """
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:  # also raised for thousands of digits
        value = low - 1
    if not low <= value <= high:
        raise ArgumentError(f"{option} is {_short(text)}; it must be a whole number from {low} to {high}.")
    return value


def number(option: str, text: str | None, low: float, high: float, *, above: bool = False) -> float | None:
    """`text` as a finite number from `low` (or above it) to `high`; None stays None.

    Raises:
        ArgumentError: it is something else.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value <= high) or (above and value == low) or not math.isfinite(value):
        start = f"above {low:g}" if above else f"of at least {low:g}"
        end = f" and at most {high:g}" if math.isfinite(high) else ""
        raise ArgumentError(f"{option} is {_short(text)}; it must be a finite number {start}{end}.")
    return value


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")


@dataclass(frozen=True)
class SamplingOptions:
    """The sampling options of a command line; None where an option was not given."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    greedy: bool = False

    @classmethod
    def parse(
        cls,
        temperature: str | None,
        top_k: str | None,
        top_p: str | None,
        min_p: str | None,
        repetition_penalty: str | None,
        seed: str | None,
        greedy: bool,
    ) -> SamplingOptions:
        """Checks each value.

        Raises:
            ArgumentError: one is out of range, or contradicts --greedy.
        """
        options = cls(
            temperature=number("--temperature", temperature, 0, math.inf),
            top_k=whole_number("--top-k", top_k, 0, 2**31 - 1),
            top_p=number("--top-p", top_p, 0, 1, above=True),
            min_p=number("--min-p", min_p, 0, 1),
            repetition_penalty=number("--repetition-penalty", repetition_penalty, 0, math.inf, above=True),
            seed=whole_number("--seed", seed, 0, 2**63 - 1),
            greedy=greedy,
        )
        if greedy and options.temperature:
            raise ArgumentError(f"--greedy means temperature 0, but --temperature is {temperature}; give one of them.")
        return options

    def over(self, default: SamplingParams) -> SamplingParams:
        """What was given, and `default` for the rest.

        A filter without a temperature samples at temperature 1 where the default would not sample at all.
        """
        from qwen3_ref.sampling import SamplingParams

        def first(given: float | None, otherwise: float) -> float:
            return otherwise if given is None else given

        filters = (self.top_k, self.top_p, self.min_p)
        fallback = 1.0 if default.greedy and any(given is not None for given in filters) else default.temperature
        return SamplingParams(
            temperature=0.0 if self.greedy else first(self.temperature, fallback),
            top_k=default.top_k if self.top_k is None else self.top_k,
            top_p=first(self.top_p, default.top_p),
            min_p=first(self.min_p, default.min_p),
            repetition_penalty=first(self.repetition_penalty, default.repetition_penalty),
            seed=self.seed,
        )
