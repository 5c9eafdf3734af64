"""Questions about something that is told at the beginning of a long text: what a cache must keep until the end.

The tiny checkpoint has learned to answer them (`qwen3_ref.tiny_training.needles`); a larger model knows how anyway.
An answer counts as found if each of its tokens is the likeliest after the true ones before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.prompts import GateError, Texts
from qwen3_ref.tiny_training.needles import Needles, draw_needles
from qwen3_ref.tokenizer import Tokenizer

COUNT = 24
PASSAGES = 2  # of text between what is told and the question
LEAST_FOUND = 12  # by the reference: fewer say nothing about a cache


@dataclass(frozen=True)
class Question:
    """`prompt: [1, n]` ends with the answer's `answer` tokens; `text` is what is asked."""

    text: str
    prompt: Tensor
    answer: int


def questions(
    texts: Texts, tokenizer: Tokenizer, device: torch.device, count: int = COUNT, passages: int = PASSAGES
) -> tuple[Question, ...]:
    """The same for the same texts: number i has passages i, i + 1, … behind what is told.

    Raises:
        GateError: the tokenizer lets no answer stand for itself.
    """
    found = []
    for number in range(count):
        needle = drawn(number)
        filler = (texts.passages[(number + i) % len(texts.passages)] for i in range(passages))
        prompt = "\n\n".join([needle.told, *filler, f"Question: {needle.question}\nAnswer:"])
        before, ids = tokenizer.encode(prompt), tokenizer.encode(f"{prompt} {needle.answer}")
        if ids[: len(before)] != before:
            raise GateError(f"the tokenizer joins a question and its answer {needle.answer!r} into one token.")
        found.append(Question(needle.question, torch.tensor([ids], device=device), len(ids) - len(before)))
    return tuple(found)


def drawn(number: int) -> Needles:
    """A question whose answer was told."""
    rng = Random(f"needle {number}")
    while not (needle := draw_needles(rng)).thought.startswith("It was said before"):
        pass
    return needle


@torch.inference_mode()
def answers(logits_of: Callable[[Tensor], Tensor], asked: Sequence[Question]) -> list[bool]:
    """Whether each is found, by a model that gives `[1, n]` tokens `[1, n, V]` logits."""
    found = []
    for question in asked:
        logits = logits_of(question.prompt)[0, -question.answer - 1 : -1]
        found.append(bool((logits.argmax(-1) == question.prompt[0, -question.answer :]).all()))
    return found


@dataclass(frozen=True)
class Recall:
    """Of the questions that the reference answers: how many it is, how many of them are found, and which are lost."""

    asked: int
    found: int
    lost: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.found / self.asked

    @classmethod
    def of(cls, asked: Sequence[Question], reference: Sequence[bool], found: Sequence[bool]) -> Recall:
        """Raises:
        GateError: the reference finds too few answers for a judgement.
        """
        if sum(reference) < LEAST_FOUND:
            raise GateError(
                f"the reference finds {sum(reference)} of {len(asked)} answers that were told at the beginning of a "
                f"long text; at least {LEAST_FOUND} are needed for a judgement."
            )
        both = [(question.text, mine) for question, truth, mine in zip(asked, reference, found, strict=True) if truth]
        lost = tuple(text for text, mine in both if not mine)
        return cls(len(both), len(both) - len(lost), lost)
