"""Small sums, in words and in digits, asked for in many ways."""

from __future__ import annotations

from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.exchange import Exchange
from qwen3_ref.tiny_training.grammar import capital, pick

LARGEST = 20
"""The largest number that is added or taken away."""

_TENS = {20: "twenty", 30: "thirty", 40: "forty"}
# What people say, the most frequent first: {x} is "a plus b" in some notation, {a} and {b} are its numbers.
_ASKED = (
    "What is {x}?",
    "How much is {x}?",
    "What does {x} make?",
    "{x}?",
    "{x}",
    "Tell me what {x} is.",
    "Can you tell me what {x} is?",
    "What do you get for {x}?",
    "Calculate {x}.",
    "Do you know how much {x} is?",
)
_ASKED_TO_ADD = (
    "Can you add {a} and {b}?",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "How much is {a} and {b}?",
    "What do you get when you add {a} and {b}?",
)
_ASKED_TO_TAKE_AWAY = (
    "Can you take {b} away from {a}?",
    "Take {b} away from {a}.",
    "Please take {b} away from {a}.",
    "Can you subtract {b} from {a}?",
    "Subtract {b} from {a}.",
    "What is {a} take away {b}?",
)
_EQUATIONS = ("{x} = ?", "{x} =", "{x} = what?")


def number_name(n: int) -> str:
    """`n`, from -40 to 40, in words."""
    if n < 0:
        return "minus " + number_name(-n)
    if n <= LARGEST:
        return words.NUMBERS[n]
    tens, ones = n // 10 * 10, n % 10
    return _TENS[tens] + (f"-{words.NUMBERS[ones]}" if ones else "")


def _numbers(rng: Random) -> tuple[int, int, bool]:
    """Two numbers, and whether the second is taken away from the first. The small ones are asked for most."""
    largest = 10 if rng.random() < 0.4 else LARGEST
    a, b = rng.randint(0, largest), rng.randint(0, largest)
    less = rng.random() < 0.5
    if less and rng.random() < 0.85:
        a, b = max(a, b), min(a, b)
    return a, b, less


def _asked(rng: Random, a: str, b: str, text: str, less: bool, equations: bool) -> str:
    chance = rng.random()
    if equations and chance < 0.25:
        form = pick(rng, _EQUATIONS, 0.6)
    elif chance < 0.5:
        form = pick(rng, _ASKED_TO_TAKE_AWAY if less else _ASKED_TO_ADD, 0.4)
    else:
        form = pick(rng, _ASKED, 0.6)
    return capital(form.format(a=a, b=b, x=text))


def sum_in_words(rng: Random) -> Exchange:
    """What is twelve minus five? Twelve minus five is seven."""
    a, b, less = _numbers(rng)
    first, second, result = number_name(a), number_name(b), number_name(a - b if less else a + b)
    text = f"{first} {'minus' if less else 'plus'} {second}"
    thought = f"I take {second} away from {first}." if less else f"I add {first} and {second}."
    return Exchange(_asked(rng, first, second, text, less, False), capital(f"{text} is {result}."), thought)


def sum_in_digits(rng: Random) -> Exchange:
    """What is 12 - 5? 12 - 5 = 7."""
    a, b, less = _numbers(rng)
    sign = "-" if less else "+"
    written = pick(rng, (f"{a} {sign} {b}", f"{a} {'minus' if less else 'plus'} {b}", f"{a}{sign}{b}"), 0.7)
    thought = f"I take {b} away from {a}." if less else f"I add {a} and {b}."
    answer = f"{a} {sign} {b} = {a - b if less else a + b}."
    return Exchange(_asked(rng, str(a), str(b), written, less, True), answer, thought)


def _counted(n: int, things: str) -> str:
    if n == 1:
        things = things.removesuffix("ies") + "y" if things.endswith("ies") else things.removesuffix("s")
        things = "potato" if things == "potatoe" else things
    return f"{number_name(n)} {things}"


def sum_in_a_story(rng: Random) -> Exchange:
    """Ravi has nine plums. Ravi gives four of them away. How many plums are left?"""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    name, things = pick(rng, words.GIRLS + words.BOYS, 0.3), pick(rng, words.FRUITS, 0.3)
    if rng.random() < 0.5:
        a, b = max(a, b) + 1, min(a, b)
        second, result, sign = f"{name} gives {number_name(b)} of them away.", a - b, "minus"
        asked = f"How many {things} are left?"
    else:
        second, result, sign = f"Then {name} gets {number_name(b)} more.", a + b, "plus"
        asked = f"How many {things} does {name} have now?"
    answer = f"{name} has {_counted(result, things)} now."
    first = f"{name} has {_counted(a, things)}."
    thought = f"I count. {capital(number_name(a))} {sign} {number_name(b)} is {number_name(result)}."
    return Exchange(f"{first} {second} {asked}", answer, thought, plain=False)


def count(rng: Random) -> Exchange:
    """Count from 3 to 6. 3, 4, 5, 6."""
    start, length = rng.randint(0, 30), rng.randint(3, 12)
    numbers = ", ".join(str(start + i) for i in range(length))
    question = f"Count from {start} to {start + length - 1}."
    return Exchange(question, numbers + ".", f"I start at {start} and add one each time.", plain=False)


def next_number(rng: Random) -> Exchange:
    """What number comes after nine? Ten comes after nine."""
    i, side = rng.randint(1, 19), ("after" if rng.random() < 0.6 else "before")
    other = number_name(i + 1 if side == "after" else i - 1)
    question = f"What number comes {side} {number_name(i)}?"
    thought = f"I count: {number_name(i - 1)}, {number_name(i)}, {number_name(i + 1)}."
    return Exchange(question, capital(f"{other} comes {side} {number_name(i)}."), thought)
