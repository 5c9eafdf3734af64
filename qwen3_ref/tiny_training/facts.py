"""Small knowledge: capitals, opposites, days, animals, sums, and what to say to hello or to a question too hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.general_words import GENERAL_WORDS, TOPICS
from qwen3_ref.tiny_training.grammar import capital, pick, tidy
from qwen3_ref.tiny_training.knowledge import ANIMAL_FACTS, CAPITALS, EASY, GREETINGS, OPPOSITES, THING_COLORS, USES


@dataclass(frozen=True)
class Exchange:
    """A question, its answer, and what to think in between. The answer alone is a plain true sentence if `plain`."""

    question: str
    answer: str
    thought: str
    plain: bool = True


def draw_exchange(rng: Random) -> Exchange:
    """One small question with its answer."""
    return _KINDS[pick(rng, range(len(_KINDS)), 0.35)](rng)


def draw_fact(rng: Random) -> str:
    """One true sentence."""
    while True:
        exchange = draw_exchange(rng)
        if exchange.plain:
            return exchange.answer


def _of(rng: Random, *options: str) -> str:
    return tidy(pick(rng, options, 0.6))


def _greeting(rng: Random) -> Exchange:
    questions, answers, thought = pick(rng, GREETINGS, 0.3)
    return Exchange(pick(rng, questions, 0.5), pick(rng, answers, 1.0), thought, plain=False)


def _capital(rng: Random) -> Exchange:
    land = pick(rng, list(CAPITALS), 0.2)
    question = _of(rng, f"What is the capital of {land}?", f"Tell me the capital of {land}.")
    return Exchange(question, f"The capital of {land} is {CAPITALS[land]}.", f"I have to name the capital of {land}.")


def _opposite(rng: Random) -> Exchange:
    a, b = pick(rng, OPPOSITES, 0.2)
    if rng.random() < 0.5:
        a, b = b, a
    question = _of(rng, f"What is the opposite of {a}?", f"Tell me the opposite of {a}.")
    return Exchange(question, f"The opposite of {a} is {b}.", f"I have to find the opposite of {a}.")


def _calendar(rng: Random) -> Exchange:
    names, unit = (words.DAYS, "day") if rng.random() < 0.6 else (words.MONTHS, "month")
    i = rng.randrange(len(names))
    side = "after" if rng.random() < 0.6 else "before"
    other = names[(i + (1 if side == "after" else -1)) % len(names)]
    question = _of(rng, f"What {unit} comes {side} {names[i]}?", f"Which {unit} is {side} {names[i]}?")
    return Exchange(question, f"{other} comes {side} {names[i]}.", f"I think of the {unit}s in their order.")


def _animal(rng: Random) -> Exchange:
    animal, home, food, sound = pick(rng, ANIMAL_FACTS, 0.2)
    question, answer = pick(
        rng,
        [
            (f"What does a {animal} say?", f"A {animal} says {sound}."),
            (f"Where does a {animal} live?", f"A {animal} lives {home}."),
            (f"What does a {animal} eat?", f"A {animal} eats {food}."),
        ],
        0.3,
    )
    return Exchange(tidy(question), tidy(answer), tidy(f"The question is about a {animal}."))


def _color(rng: Random) -> Exchange:
    thing, color = pick(rng, THING_COLORS, 0.2)
    return Exchange(
        f"What color is {thing}?", f"{capital(thing)} is {color}.", f"I think of {thing} and what it looks like."
    )


def _use(rng: Random) -> Exchange:
    thing, use = pick(rng, USES, 0.2)
    question = _of(rng, f"What do we use a {thing} for?", f"What can you do with a {thing}?")
    return Exchange(question, tidy(f"We use a {thing} to {use}."), tidy(f"I think of a {thing}."))


def _easy(rng: Random) -> Exchange:
    question, answer = pick(rng, EASY, 0.2)
    return Exchange(question, answer, "This is an easy question.", plain=not answer.startswith("You"))


def _sum_in_words(rng: Random) -> Exchange:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    names = words.NUMBERS
    if rng.random() < 0.45:
        a, b = max(a, b), min(a, b)
        text, result, thought = f"{names[a]} minus {names[b]}", names[a - b], f"I take {names[b]} away from {names[a]}."
    else:
        text, result, thought = f"{names[a]} plus {names[b]}", names[a + b], f"I add {names[a]} and {names[b]}."
    question = _of(rng, f"What is {text}?", f"How much is {text}?")
    return Exchange(question, capital(f"{text} is {result}."), thought)


def _sum_in_digits(rng: Random) -> Exchange:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if rng.random() < 0.45:
        a, b = max(a, b), min(a, b)
        text, result, thought = f"{a} - {b}", a - b, f"I take {b} away from {a}."
    else:
        text, result, thought = f"{a} + {b}", a + b, f"I add {a} and {b}."
    return Exchange(_of(rng, f"What is {text}?", f"{text} = ?"), f"{text} = {result}.", thought)


def _sum_in_a_story(rng: Random) -> Exchange:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    name, things = pick(rng, words.GIRLS + words.BOYS, 0.3), pick(rng, words.FRUITS, 0.3)
    names = words.NUMBERS
    if rng.random() < 0.5:
        a, b = max(a, b) + 1, min(a, b)
        second, result, thought = f"{name} eats {names[b]} of them.", a - b, f"{names[a]} minus {names[b]}"
        asked, verb = f"How many {things} are left?", "has"
    else:
        second, result, thought = f"Then {name} gets {names[b]} more.", a + b, f"{names[a]} plus {names[b]}"
        asked, verb = f"How many {things} does {name} have now?", "has"
    count = things if result != 1 else {"berries": "berry", "cherries": "cherry", "potatoes": "potato"}.get(things)
    answer = f"{name} {verb} {names[result] if result else 'no'} {count or things.removesuffix('s')} now."
    question = f"{name} has {names[a]} {things}. {second} {asked}"
    return Exchange(question, answer, f"I count. {capital(thought)} is {names[result]}.", plain=False)


def _count(rng: Random) -> Exchange:
    start, length = rng.randint(1, 30), rng.randint(3, 12)
    numbers = ", ".join(str(start + i) for i in range(length))
    question = f"Count from {start} to {start + length - 1}."
    return Exchange(question, numbers + ".", f"I start at {start} and add one each time.", plain=False)


def _next_number(rng: Random) -> Exchange:
    i, side = rng.randint(1, 19), ("after" if rng.random() < 0.6 else "before")
    names, other = words.NUMBERS, words.NUMBERS[i + 1 if side == "after" else i - 1]
    question = f"What number comes {side} {names[i]}?"
    answer = capital(f"{other} comes {side} {names[i]}.")
    return Exchange(question, answer, f"I count: {names[i - 1]}, {names[i]}, {names[i + 1]}.")


_WHY_NOT = "This is not about a story. I do not know it."


def _too_hard(rng: Random) -> Exchange:
    """A request outside of what the model knows, and a polite no that names what it can do."""
    topic = pick(rng, TOPICS, 0.1) if rng.random() < 0.5 else pick(rng, GENERAL_WORDS, 0.05)
    a, b = rng.randint(21, 999), rng.randint(21, 999)
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
            (f"What is {a} times {b}?", True),
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
    return Exchange(about, f"{no} {offer}", _WHY_NOT, plain=False)


_KINDS: tuple[Callable[[Random], Exchange], ...] = (
    _sum_in_digits,
    _sum_in_words,
    _capital,
    _too_hard,
    _greeting,
    _opposite,
    _calendar,
    _sum_in_a_story,
    _animal,
    _easy,
    _color,
    _use,
    _next_number,
    _count,
)
