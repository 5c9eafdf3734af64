"""Templates that write themselves out differently each time.

`[a|b|c]` becomes one of its alternatives (they nest, and one may be empty), `@name` a shared phrase, `{field}` a word
of the scene. Earlier alternatives are likelier: a model trained on the text has clear favourites, hence few near-ties.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from random import Random
from typing import TypeVar

T = TypeVar("T")
Choice = tuple["Sequel", ...]
"""Alternatives, the likeliest first."""
Sequel = tuple["str | Choice", ...]
"""Pieces that follow one another."""

_TOKEN = re.compile(r"@(\w+)|([\[\]|])|([^@\[\]|]+)")
_VOWEL_SOUND = r"(?!uni|use|one\b|once\b|euro)[aeiou]|hour\b|honest"
# The letter comes first and what stands before it last: so the search skips to each "a" instead of trying every place.
_ARTICLE = re.compile(rf"([Aa]) (?=(?:{_VOWEL_SOUND}))(?<!\w..)")


class GrammarError(ValueError):
    """A template with unbalanced brackets, an unknown phrase or an unknown field."""


@cache
def _zipf(count: int, exponent: float) -> list[float]:
    return list(accumulate((i + 1.5) ** -exponent for i in range(count)))


def pick(rng: Random, options: Sequence[T], exponent: float = 0.9) -> T:
    """One of `options`, the i-th (from 0) with a weight of `(i + 1.5) ** -exponent`."""
    weights = _zipf(len(options), exponent)
    return options[bisect(weights, rng.random() * weights[-1])]


class Grammar:
    """Writes templates out.

    Args:
        phrases: templates that `@name` stands for. They may use other phrases, fields and alternatives.
    """

    def __init__(self, phrases: Mapping[str, str]) -> None:
        self._phrases = phrases
        self._parsed: dict[str, Sequel] = {}

    def write(self, rng: Random, template: str, fields: Mapping[str, str]) -> str:
        """One text of `template`, on one line, with its spaces and articles set right.

        Raises:
            GrammarError: the template is not well formed, or asks for a phrase or field that does not exist.
        """
        out: list[str] = []
        _choose(rng, self.parse(template), out)
        return fill("".join(out), fields)

    def parse(self, template: str) -> Sequel:
        """The tree of a template, with its phrases put in."""
        tree = self._parsed.get(template)
        if tree is None:
            tokens = _TOKEN.findall(template)
            alternatives, end = self._alternatives(tokens, 0, template)
            if end != len(tokens) or len(alternatives) != 1:
                raise GrammarError(f"a template has a ']' or '|' outside of brackets: {template!r}.")
            tree = self._parsed[template] = alternatives[0]
        return tree

    def _alternatives(self, tokens: list[tuple[str, str, str]], at: int, template: str) -> tuple[list[Sequel], int]:
        """The alternatives from token `at` to the closing bracket or the end, and where they stop."""
        alternatives: list[Sequel] = []
        pieces: list[str | Choice] = []
        while at < len(tokens):
            phrase, sign, text = tokens[at]
            if sign == "]":
                break
            at += 1
            if text:
                pieces.append(text)
            elif phrase:
                if phrase not in self._phrases:
                    raise GrammarError(f"a template uses @{phrase}, which is no phrase: {template!r}.")
                pieces.extend(self.parse(self._phrases[phrase]))
            elif sign == "|":
                alternatives.append(tuple(pieces))
                pieces = []
            else:
                inner, at = self._alternatives(tokens, at, template)
                if at == len(tokens):
                    raise GrammarError(f"a template has a '[' without its ']': {template!r}.")
                pieces.append(tuple(inner))
                at += 1
        return [*alternatives, tuple(pieces)], at


def _choose(rng: Random, sequel: Sequel, out: list[str]) -> None:
    for piece in sequel:
        if isinstance(piece, str):
            out.append(piece)
        else:
            _choose(rng, pick(rng, piece), out)


def fill(template: str, fields: Mapping[str, str]) -> str:
    """`template`, which has no alternatives and phrases (any more), with its fields put in, set right.

    Raises:
        GrammarError: the template asks for a field that does not exist.
    """
    try:
        return tidy(template.format_map(fields))
    except KeyError as error:
        raise GrammarError(f"a template asks for {{{error.args[0]}}}, which the scene lacks: {template!r}.") from None


def tidy(text: str) -> str:
    """One line with single spaces, none before a full stop or comma, and `an` before a vowel's sound."""
    text = " ".join(text.split()).replace(" .", ".").replace(" ,", ",")
    return _ARTICLE.sub(r"\1n ", text)


def capital(text: str) -> str:
    """`text` with its first letter raised, the rest unchanged."""
    return text[:1].upper() + text[1:]
