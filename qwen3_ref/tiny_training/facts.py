"""Small knowledge: capitals, opposites, days, animals, and what to say to a question too hard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.exchange import Exchange
from qwen3_ref.tiny_training.general_words import GENERAL_WORDS, TOPICS
from qwen3_ref.tiny_training.grammar import capital, pick, tidy
from qwen3_ref.tiny_training.greetings import greeting
from qwen3_ref.tiny_training.knowledge import ANIMAL_FACTS, CAPITALS, EASY, OPPOSITES, THING_COLORS, USES
from qwen3_ref.tiny_training.sums import (
    LARGEST,
    count,
    next_number,
    number_name,
    sum_in_a_story,
    sum_in_digits,
    sum_in_words,
)

_UNKNOWN = [word for word in GENERAL_WORDS if word not in words.NUMBERS]
# What a question about something known may begin with.
_LEAD = (
    "Please tell me. ",
    "I have a question. ",
    "Hello! ",
    "Hi! ",
    "Quick question: ",
    "Hi there! ",
    "Good morning! ",
)


def draw_exchange(rng: Random) -> Exchange:
    """One small question with its answer."""
    return rng.choices(_KINDS, cum_weights=_CUMULATIVE)[0](rng)


def draw_known(rng: Random) -> Exchange:
    """One question to which only one answer is right."""
    while True:
        exchange = draw_exchange(rng)
        if exchange.sure:
            return exchange


def draw_fact(rng: Random) -> Exchange:
    """One question whose answer is a true sentence."""
    while True:
        exchange = draw_exchange(rng)
        if exchange.plain:
            return exchange


def lead(rng: Random, exchange: Exchange) -> str:
    """The question, sometimes with a hello or the like in front."""
    if exchange.sure and rng.random() < 0.1:
        return pick(rng, _LEAD, 0.4) + exchange.question
    return exchange.question


def _of(rng: Random, *options: str) -> str:
    return tidy(pick(rng, options, 0.6))


def _capital(rng: Random) -> Exchange:
    land = pick(rng, list(CAPITALS), 0.2)
    question = _of(
        rng,
        f"What is the capital of {land}?",
        f"Tell me the capital of {land}.",
        f"What is the capital city of {land}?",
        f"Which city is the capital of {land}?",
        f"Do you know the capital of {land}?",
        f"Name the capital of {land}.",
    )
    return Exchange(question, f"The capital of {land} is {CAPITALS[land]}.", f"I have to name the capital of {land}.")


def _opposite(rng: Random) -> Exchange:
    a, b = pick(rng, OPPOSITES, 0.2)
    if rng.random() < 0.5:
        a, b = b, a
    question = _of(
        rng,
        f"What is the opposite of {a}?",
        f"Tell me the opposite of {a}.",
        f"Which word is the opposite of {a}?",
        f"Do you know the opposite of {a}?",
    )
    return Exchange(question, f"The opposite of {a} is {b}.", f"I have to find the opposite of {a}.")


def _calendar(rng: Random) -> Exchange:
    names, unit = (words.DAYS, "day") if rng.random() < 0.6 else (words.MONTHS, "month")
    i = rng.randrange(len(names))
    side = "after" if rng.random() < 0.6 else "before"
    other = names[(i + (1 if side == "after" else -1)) % len(names)]
    question = _of(
        rng,
        f"What {unit} comes {side} {names[i]}?",
        f"Which {unit} is {side} {names[i]}?",
        f"What comes {side} {names[i]}?",
        f"Which {unit} comes right {side} {names[i]}?",
    )
    return Exchange(question, f"{other} comes {side} {names[i]}.", f"I think of the {unit}s in their order.")


def _animal(rng: Random) -> Exchange:
    animal, home, food, sound = pick(rng, ANIMAL_FACTS, 0.2)
    question, answer = pick(
        rng,
        [
            (f"What does a {animal} say?", f"A {animal} says {sound}."),
            (f"Where does a {animal} live?", f"A {animal} lives {home}."),
            (f"What does a {animal} eat?", f"A {animal} eats {food}."),
            (f"What sound does a {animal} make?", f"A {animal} says {sound}."),
        ],
        0.3,
    )
    return Exchange(tidy(question), tidy(answer), tidy(f"The question is about a {animal}."))


def _color(rng: Random) -> Exchange:
    thing, color = pick(rng, THING_COLORS, 0.2)
    question = _of(
        rng, f"What color is {thing}?", f"What is the color of {thing}?", f"Do you know the color of {thing}?"
    )
    return Exchange(question, f"{capital(thing)} is {color}.", f"I think of {thing} and what it looks like.")


def _use(rng: Random) -> Exchange:
    thing, use = pick(rng, USES, 0.2)
    question = _of(rng, f"What do we use a {thing} for?", f"What can you do with a {thing}?")
    return Exchange(question, tidy(f"We use a {thing} to {use}."), tidy(f"I think of a {thing}."))


def _easy(rng: Random) -> Exchange:
    question, answer = pick(rng, EASY, 0.2)
    return Exchange(question, answer, "This is an easy question.", plain=not answer.startswith("You"))


def _hard_sum(rng: Random) -> str:
    """A product, a quotient, or a sum of numbers that are too large."""
    a, b = rng.randint(LARGEST + 1, 999), rng.randint(2, 999)
    if rng.random() < 0.5:
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return f"What is {a} {pick(rng, ('+', '-', 'plus', 'minus'), 0.3)} {b}?"
    sign = pick(rng, ("times", "divided by"), 0.5)
    if rng.random() < 0.5:
        return f"What is {a} {sign} {b}?"
    return f"What is {number_name(rng.randint(2, LARGEST))} {sign} {number_name(rng.randint(2, LARGEST))}?"


_WHY_NOT = "This is not about a story. I do not know it."


def _too_hard(rng: Random) -> Exchange:
    """A request outside of what the model knows, and a polite no that names what it can do."""
    topic = pick(rng, TOPICS, 0.1) if rng.random() < 0.5 else pick(rng, _UNKNOWN, 0.05)
    about, plain = pick(
        rng,
        [
            (f"Tell me about {topic}.", False),
            (f"Explain {topic}.", False),
            (f"Write a poem about {topic}.", True),
            (f"What do you know about {topic}?", False),
            (f"Write Python code for {topic}.", True),
            ("Write Python code.", True),
            ("Write a program.", True),
            (f"How does {topic} work?", False),
            (f"What is {topic}?", False),
            (_hard_sum(rng), True),
            (f"Translate {topic} into French.", True),
            (f"Who is the president of {pick(rng, list(CAPITALS), 0.1)}?", True),
            (f"Write an essay about {topic}.", True),
            ("What is the weather today?", True),
            ("What is the news today?", True),
            (f"Who invented {topic}?", False),
            (f"Summarize this: {topic}.", True),
            (f"Give me a list of {rng.randint(3, 9)} facts about {topic}.", False),
        ],
        0.3,
    )
    no = _of(rng, "I am sorry, I can not do that.", "I am sorry, that is too hard for me.")
    if not plain:
        no = _of(rng, f"I do not know much about {topic}.", "I am sorry, I do not know that.")
    offer = _of(rng, "I only know little stories. Do you want one?", "I am a small model, and I tell little stories.")
    return Exchange(about, f"{no} {offer}", _WHY_NOT, plain=False, sure=False)


_WEIGHTED: tuple[tuple[Callable[[Random], Exchange], float], ...] = (
    (sum_in_words, 0.17),
    (sum_in_digits, 0.15),
    (greeting, 0.19),
    (_too_hard, 0.08),
    (_capital, 0.07),
    (_opposite, 0.06),
    (_calendar, 0.05),
    (sum_in_a_story, 0.06),
    (_animal, 0.05),
    (_easy, 0.03),
    (_color, 0.03),
    (_use, 0.03),
    (next_number, 0.015),
    (count, 0.015),
)
_KINDS = [kind for kind, _ in _WEIGHTED]
_CUMULATIVE = list(accumulate(weight for _, weight in _WEIGHTED))
