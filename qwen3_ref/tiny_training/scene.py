"""A scene: the people, things and places of one story, as the fields that templates ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.grammar import Grammar, capital, pick
from qwen3_ref.tiny_training.phrases import PHRASES

GRAMMAR = Grammar(PHRASES)


@dataclass(frozen=True)
class Plot:
    """One kind of story.

    Attributes:
        name: unique among the plots.
        about: ends of "Tell me a story …", e.g. "about a lost {toy}".
        plan: the story in three or four short sentences, for the think block.
        questions: pairs of a question about the story and its answer.
        text: the paragraphs, separated by blank lines.
        choices: fields that are drawn together: "a,b,c" → rows of values separated by semicolons, which may use fields.
        helper: the field of `choices` that names what the friend must be good at, if any.
    """

    name: str
    about: tuple[str, ...]
    plan: str
    questions: tuple[tuple[str, str], ...]
    text: str
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    helper: str | None = None


@dataclass(frozen=True)
class Trait:
    """A detail told at the start of a story that comes back at its end, and that can be asked for."""

    told: str
    question: str
    answer: str
    recalled: str


TRAITS = (
    Trait(
        "[{His} favorite color was {col}.|{n} liked {col} more than any other color.]",
        "What was {n}'s favorite color?",
        "{n}'s favorite color was {col}.",
        "That evening, {n} drew a picture of it all with a {col} crayon.",
    ),
    Trait(
        "[{He} liked {treat} more than anything else.|{His} favorite food was {treat}.]",
        "What was {n}'s favorite food?",
        "{n}'s favorite food was {treat}.",
        "For dinner, there was {treat}, and {n} ate it all up.",
    ),
    Trait(
        "{He} lived {home} with {his} {fam}.",
        "Where did {n} live?",
        "{n} lived {home}.",
        "{n} thought that there was no better place to live than {home}.",
    ),
    Trait(
        "{He} had a {pet} named {petname}.",
        "What was the name of {n}'s {pet}?",
        "The name of {n}'s {pet} was {petname}.",
        "[In the evening|Before bed], {n} told {petname} the {pet} all about it.",
    ),
    Trait(
        "{He} was {age} years old.",
        "How old was {n}?",
        "{n} was {age} years old.",
        "{n} was only {age} years old, but {he} felt very big that day.",
    ),
    Trait(
        "{He} always wore a {col} {wear}.",
        "What did {n} always wear?",
        "{n} always wore a {col} {wear}.",
        "In {his} {col} {wear}, {n} looked like a hero that day.",
    ),
)

_SUBJECT_TO = {"he": ("his", "him"), "she": ("her", "her")}


def _person(rng: Random, prefix: str, fields: dict[str, str], animals: list[str], child: float) -> None:
    girl = rng.random() < 0.5
    he = "she" if girl else "he"
    his, him = _SUBJECT_TO[he]
    fields |= {
        prefix + "n": pick(rng, words.GIRLS if girl else words.BOYS, 0.6),
        prefix + "he": he,
        prefix + "his": his,
        prefix + "him": him,
        prefix + "He": he.capitalize(),
        prefix + "His": his.capitalize(),
        prefix + "who": ("girl" if girl else "boy") if rng.random() < child else pick(rng, animals, 0.5),
        prefix + "adj": pick(rng, words.NATURES, 0.7),
    }


def _other(rng: Random, options: list[str], taken: str, exponent: float = 0.5) -> str:
    return pick(rng, [option for option in options if option != taken], exponent)


def draw_scene(rng: Random, plot: Plot) -> tuple[dict[str, str], Trait]:
    """The fields of one story of `plot`, and the trait of its hero."""
    fields: dict[str, str] = {}
    for names, rows in plot.choices.items():
        values = [value.strip() for value in pick(rng, rows, 0.5).split(";")]
        fields |= dict(zip(names.split(","), values, strict=True))
    animals = list(words.ANIMALS)
    _person(rng, "", fields, animals, child=0.45)
    skill = fields[plot.helper] if plot.helper else None
    able = [animal for animal, gift in words.ANIMALS.items() if skill in (None, gift) and animal != fields["who"]]
    taken = fields["n"]
    while True:
        _person(rng, "f", fields, able, child=0.2 if skill is None else 0.0)
        if fields["fn"] != taken and fields["fwho"] != fields["who"]:
            break
    fields["f"] = fields.pop("fn")
    is_child = fields["fwho"] in ("girl", "boy")
    fields["ff"] = fields["f"] if is_child else f"{fields['f']} the {fields['fwho']}"

    toys = list(words.TOYS)
    fields["toy"] = pick(rng, toys, 0.4)
    adjectives, fields["use"] = words.TOYS[fields["toy"]]
    fields["tadj"] = pick(rng, adjectives.split(), 0.8)
    fields["toy2"] = _other(rng, toys, fields["toy"], 0.3)
    fields["fam"], famhe = pick(rng, words.FAMILY, 0.7)
    famhis, famhim = _SUBJECT_TO[famhe]
    fields |= {"famhe": famhe, "famhis": famhis, "famhim": famhim, "famHe": famhe.capitalize()}
    fields["place"] = pick(rng, words.PLACES, 0.6)
    fields["place2"] = _other(rng, words.PLACES, fields["place"])
    fields["hid"] = pick(rng, words.HIDING_PLACES, 0.6)
    fields["beast"] = pick(rng, [a for a in animals if a not in (fields["who"], fields["fwho"], "robot")], 0.4)
    fields["home"] = pick(rng, words.HOMES, 0.6)
    fields["Home"] = capital(fields["home"])
    fields["home2"] = _other(rng, words.HOMES, fields["home"])
    fields["food"], fields["treat"] = pick(rng, words.FOODS, 0.5), pick(rng, words.FOODS, 0.4)
    fields["fruit"] = pick(rng, words.FRUITS, 0.5)
    fields["w"] = pick(rng, words.WEATHER, 0.6)
    fields["col"] = pick(rng, words.COLORS, 0.5)
    fields["col2"] = _other(rng, words.COLORS, fields["col"])
    fields["num"] = pick(rng, words.NUMBERS[2:8], 0.6)
    fields["fam_call"] = fields["fam"].capitalize()
    fields["age"] = pick(rng, ["six", "five", "seven", "four", "eight", "nine"], 0.6)
    fields["pet"] = pick(rng, [pet for pet in words.PETS if pet not in (fields["who"], fields["fwho"])], 0.6)
    fields["petname"] = pick(rng, words.PET_NAMES, 0.4)
    fields["wear"] = pick(rng, words.CLOTHES, 0.5)
    for names in plot.choices:
        fields |= {name: fields[name].format_map(fields) for name in names.split(",")}
    trait = pick(rng, TRAITS, 0.2)
    for name in ("told", "recalled"):
        fields["trait_" + name] = GRAMMAR.write(rng, getattr(trait, name), fields)
    return fields, trait
