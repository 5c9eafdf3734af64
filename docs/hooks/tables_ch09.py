"""The passages of chapter 9 that hold measured numbers: decode steps of Qwen3-0.6B, of one row unless they say so."""

from __future__ import annotations

from chapters.ch09_graph_capture.benchmark import CONTEXTS, ROWS
from chapters.ch09_graph_capture.benchmark import STEPS as COUNT
from chapters.ch09_graph_capture.targets import find, judge
from docs.hooks.operator_tables import Case, Results, counted, table, targets_table, time_of

STEPS = {
    "v1": "the host in the loop",
    "v2": "static buffers",
    "v3": "one graph",
    "v4": "dependent launches",
    "v5": "four steps in a row",
}
MIDDLE = 1024  # the context of passages that show one


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "rows": _rows(results),
        "targets": _targets(results),
    }


def by_step(results: Results, context: int, rows: int = 1) -> dict[str, Case]:
    """Step of the ladder → its case, of those that were measured."""
    found = {step: find(results, step, context, rows) for step in STEPS}
    return {step: case for step, case in found.items() if case is not None}


def _us(case: Case | None) -> str:
    return time_of(case["us"]["median"]) if case else "–"


def _times(of: Case | None, ours: Case | None) -> str:
    """How many times as fast ours is."""
    return f"{of['us']['median'] / ours['us']['median']:.2f} ×" if of and ours else "–"


def _question(results: Results) -> str:
    cases = by_step(results, MIDDLE)
    told = ""
    if "v1" in cases:
        first = cases["v1"]
        told = (
            f" With the host in the loop a step takes {_us(first)}, where its bytes need {time_of(first['floor_us'])}: "
            f"{first['floor_fraction']:.0%} of the floor."
        )
    return f"""\
![Time of a decode step by every version of the ladder, and the floor](figures/steps.svg)

*Figure 1.* One decode step of Qwen3-0.6B, {MIDDLE:,} tokens of context, host included, on one
{results["provenance"]["gpu"]}. Dashed: what its bytes need.{told}
"""


def _ladder(results: Results) -> str:
    cases = {context: by_step(results, context) for context in CONTEXTS}
    lines = []
    for step, title in STEPS.items():
        of = {context: found.get(step) for context, found in cases.items()}
        if any(of.values()):
            share = of[MIDDLE]
            reached = [f"{1e6 / share['us']['median']:,.0f}", f"{share['floor_fraction']:.0%}"] if share else ["–", "–"]
            lines.append([f"{step}, {title}", *(_us(case) for case in of.values()), *reached])
    floors = [next((time_of(case["floor_us"]) for case in found.values()), "–") for found in cases.values()]
    lines.append(["floor", *floors, "", ""])
    where = results["provenance"]
    heads = [counted(context, "tokens") for context in CONTEXTS]
    return f"""\
{table(["version", *heads, "steps a second", "of the floor"], lines)}
*Table 3.* A decode step by each version, one row, bfloat16, on one {where["gpu"]}, commit `{where["commit"][:12]}`,
{where["date"][:10]}. Medians, from a clock of the host over {COUNT} steps in a row. The last two columns are for
{MIDDLE:,} tokens.
"""


def _rows(results: Results) -> str:
    lines = []
    for rows in ROWS:
        of = by_step(results, MIDDLE, rows)
        last = of.get("v5")
        rate = f"{rows * 1e6 / last['us']['median']:,.0f}" if last else "–"
        cells = [_us(of.get(step)) for step in STEPS]
        lines.append([counted(rows), *cells, _times(of.get("v1"), last), _times(of.get("v3"), last), rate])
    return f"""\
{table(["", *STEPS, "v1 ÷ v5", "v3 ÷ v5", "tok/s of v5"], lines)}
*Table 5.* Up to eight rows of {MIDDLE:,} tokens in one step.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 7.* What was aimed at before anything was measured, and what came out.
"""
