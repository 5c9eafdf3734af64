"""A question and its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A question, its answer, and what to think in between.

    Attributes:
        plain: the answer alone is a true sentence that needs no question.
        sure: no other answer is right, so it can be tested to the letter.
    """

    question: str
    answer: str
    thought: str
    plain: bool = True
    sure: bool = True
