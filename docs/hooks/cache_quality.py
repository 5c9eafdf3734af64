"""docs/results/<gpu>/ch10_quality.json → what a quantised cache changes in a model's answers: a table.

`apart` of docs/hooks/plots_ch10.py takes the passage over. `python -m chapters.ch10_quantized_kv.cache_gate` writes the
file; its package says what each key holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.hooks import measured
from docs.hooks.operator_tables import Results, table
from docs.hooks.quality_gate import choices, errors

NAME = "ch10_quality"
_NOTHING = (
    "*No judgement of caches is in the repository yet: `python -m chapters.ch10_quantized_kv.cache_gate` with "
    f"`--output docs/results/cpu/{NAME}.json` writes one.*\n"
)
_FORMATS = {"fp8": "FP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4"}


def passage(root: Path, number: int) -> str:
    """The table with this number on its page, or what is missing."""
    results = measured.stored(root, NAME)
    return render(results, number) if results is not None and results["judged"] else _NOTHING


def render(results: Results, number: int) -> str:
    """A line for the noise of bf16, and one for each cache."""
    plain = results["model"]["bf16_bytes"]
    lines = [["bf16 rounding", "1", *_figures(results["rounding"]), ""]]
    lines += [
        [
            f"{_FORMATS.get(arm['format'], arm['format'])}{', transformed' if arm['hadamard'] else ''}",
            f"{arm['bytes'] / plain:.2f}",
            *_figures(arm),
            "passed" if arm["passed"] else "**not passed**",
        ]
        for arm in results["caches"]
    ]
    heads = ["cache", "÷ bf16", "flips", "same top 1", "error of a logit: mean, max", "KL, nats", "perplexity", "found"]
    where, texts, needles, criteria = (results[key] for key in ("provenance", "texts", "needles", "criteria"))
    shortest, longest = needles["context"]
    machine = f"{where['gpu'] or 'a CPU'}, commit `{where['commit'][:12]}`, {where['date'][:10]}"
    read = f"{texts['count']} × {texts['tokens']} tokens of `{texts['file']}`"
    return f"""\
{table([*heads, ""], lines)}
*Table {number}.* The model {results["model"]["name"]} with each cache against itself in fp32,
on {read}, {machine}. In brackets the 95 % interval. *Found*: of the answers that the reference finds,
{needles["asked"]} questions about what was said {shortest} to {longest} tokens before. A cache passes by chapter 8's
rules, {criteria["agreement"]:.0%} of choices and no wide flip, and with {criteria["recall"]:.0%} of the answers.
"""


def _figures(arm: dict[str, Any]) -> list[str]:
    recall = arm["recall"]
    return [
        *choices(arm),
        *errors(arm),
        f"{arm['perplexity']['change']:+.2%}",
        f"{recall['found']} of {recall['asked']}",
    ]
