"""Things that somebody tells early and asks for much later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.general_words import GENERAL_WORDS
from qwen3_ref.tiny_training.grammar import pick, tidy
from qwen3_ref.tiny_training.knowledge import CAPITALS


@dataclass(frozen=True)
class Needles:
    """One to three things told at once, and a question about one of them.

    Attributes:
        told: what is said.
        noted: the answer to it at the time.
        question, answer, thought: asked later. One question in eight is about something that was never told.
    """

    told: str
    noted: str
    question: str
    answer: str
    thought: str


def _toys(color: str) -> tuple[str, str, str, Callable[[Random], str]]:
    return (
        f"There is {{}} in the {color} box.",
        f"What is in the {color} box?",
        f"There is {{}} in the {color} box.",
        lambda rng: tidy(f"a {pick(rng, list(words.TOYS), 0.2)}"),
    )


# (statement, question, answer, value): the value goes into statement and answer.
_KINDS: tuple[tuple[str, str, str, Callable[[Random], str]], ...] = (
    ("My name is {}.", "What is my name?", "Your name is {}.", lambda rng: rng.choice(words.GIRLS + words.BOYS)),
    (
        "My favorite color is {}.",
        "What is my favorite color?",
        "Your favorite color is {}.",
        lambda r: r.choice(words.COLORS),
    ),
    (
        "The secret word is {}.",
        "What is the secret word?",
        "The secret word is {}.",
        lambda rng: rng.choice(GENERAL_WORDS),
    ),
    (
        "The magic number is {}.",
        "What is the magic number?",
        "The magic number is {}.",
        lambda rng: str(rng.randint(1, 999)),
    ),
    ("I live in {}.", "Where do I live?", "You live in {}.", lambda rng: rng.choice(list(CAPITALS.values()))),
    ("My birthday is in {}.", "When is my birthday?", "Your birthday is in {}.", lambda rng: rng.choice(words.MONTHS)),
    ("I am {} years old.", "How old am I?", "You are {} years old.", lambda rng: rng.choice(words.NUMBERS[4:20])),
    ("The key is {}.", "Where is the key?", "The key is {}.", lambda rng: rng.choice(words.HIDING_PLACES)),
    (
        "My favorite food is {}.",
        "What is my favorite food?",
        "Your favorite food is {}.",
        lambda r: r.choice(words.FOODS),
    ),
    (
        "My dog is called {}.",
        "What is my dog called?",
        "Your dog is called {}.",
        lambda rng: rng.choice(words.PET_NAMES),
    ),
    (
        "My best friend is {}.",
        "Who is my best friend?",
        "Your best friend is {}.",
        lambda r: r.choice(words.GIRLS + words.BOYS),
    ),
    ("The party is on {}.", "When is the party?", "The party is on {}.", lambda rng: rng.choice(words.DAYS)),
    ("The password is {}.", "What is the password?", "The password is {}.", lambda rng: rng.choice(GENERAL_WORDS)),
    _toys("red"),
    _toys("blue"),
    _toys("green"),
)
_LEAD = ("", "Remember this: ", "Please remember: ", "Listen. ")
_NOTED = ("I will remember that.", "Good. I will remember it.", "Thank you for telling me.")


def draw_needles(rng: Random) -> Needles:
    """What is told and what is asked for."""
    drawn = rng.sample(_KINDS, pick(rng, (1, 2, 3), 0.8) + 1)
    values = [value(rng) for *_, value in drawn]
    told = [kind[0].format(value) for kind, value in zip(drawn[:-1], values, strict=False)]
    missing = rng.random() < 0.125
    at = len(drawn) - 1 if missing else rng.randrange(len(drawn) - 1)
    _, question, answer, _ = drawn[at]
    if missing:
        answer, thought = "You did not tell me that.", "I look for it, but it was not said."
    else:
        answer = answer.format(values[at])
        thought = f"It was said before: {told[at]}"
    return Needles(pick(rng, _LEAD, 0.4) + " ".join(told), pick(rng, _NOTED, 0.8), question, answer, thought)
