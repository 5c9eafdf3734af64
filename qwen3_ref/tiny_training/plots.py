"""All plots, and how a plot becomes a story."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from qwen3_ref.tiny_training.grammar import fill, pick
from qwen3_ref.tiny_training.plots_days import SPECIAL_DAYS
from qwen3_ref.tiny_training.plots_friends import FRIENDS
from qwen3_ref.tiny_training.plots_learning import LEARNING
from qwen3_ref.tiny_training.plots_lost_and_found import LOST_AND_FOUND
from qwen3_ref.tiny_training.plots_making import MAKING
from qwen3_ref.tiny_training.scene import GRAMMAR, Plot, Trait, draw_scene

PLOTS: tuple[Plot, ...] = (*LOST_AND_FOUND, *FRIENDS, *LEARNING, *MAKING, *SPECIAL_DAYS)

_PARAGRAPHS = {plot.name: [" ".join(part.split()) for part in plot.text.strip().split("\n\n")] for plot in PLOTS}
_ABOUT = (
    "about a {who}",
    "about a {adj} {who}",
    "about a {who} named {n}",
    "about a {who} and a {fwho}",
    "about {n} and {f}",
    "about {n} the {who}",
)
_JOIN = 0.3  # how often a paragraph goes on without a blank line


@dataclass(frozen=True)
class Story:
    """One story that has been written.

    Attributes:
        text: paragraphs, separated by blank lines.
        subject: what to ask for to get it: "about …".
        plot, trait, fields: what it was written from.
    """

    text: str
    subject: str
    plot: Plot
    trait: Trait
    fields: Mapping[str, str]

    # Written out when they are asked for: most documents need neither.
    @property
    def plan(self) -> str:
        """What happens, in a few short sentences."""
        return fill(self.plot.plan, self.fields)

    @property
    def questions(self) -> tuple[tuple[str, str], ...]:
        """Every question about the story with its answer."""
        pairs = (*self.plot.questions, (self.trait.question, self.trait.answer))
        return tuple((fill(question, self.fields), fill(answer, self.fields)) for question, answer in pairs)


def write_story(rng: Random, plot: Plot | None = None) -> Story:
    """A story of `plot`, or of a plot drawn at random."""
    plot = plot or pick(rng, PLOTS, 0.15)
    fields, trait = draw_scene(rng, plot)
    text = ""
    for paragraph in _PARAGRAPHS[plot.name]:
        gap = "" if not text else " " if rng.random() < _JOIN else "\n\n"
        text += gap + GRAMMAR.write(rng, paragraph, fields)
    about = _ABOUT if rng.random() < 0.3 else plot.about
    return Story(text, GRAMMAR.write(rng, pick(rng, about, 0.4), fields), plot, trait, fields)
