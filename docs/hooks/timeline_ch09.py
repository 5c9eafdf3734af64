"""docs/results/<gpu>/ch09_timeline.json → a drawing of a decode step, kernel by kernel, and what can be read off it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.hooks import measured
from docs.hooks.operator_tables import table, time_of
from docs.hooks.plot_style import ACC, OTHER, V, W, drawing, svg
from docs.hooks.tables_ch09 import STEPS

RESULTS = "ch09_timeline"
_NOTHING = (
    "*No timeline is in the repository yet: `python -m chapters.ch09_graph_capture.timeline` on a GPU writes one.*\n"
)
Timeline = dict[str, list[list[Any]]]


def passage(root: Path, number: int) -> str:
    """The figure's Markdown and a table, or how to get them. `number` is the table's."""
    results = measured.stored(root, RESULTS)
    if results is None:
        return _NOTHING
    lines = [
        [f"{step}, {STEPS[step]}", *(str(len(of[kind])) for kind in ("launches", "kernels")), *_cells(of)]
        for step, of in results["timelines"].items()
    ]
    where = results["provenance"]
    heads = ["version", "launches", "kernels", "from first to last", "a kernel runs", "nothing runs", "two run"]
    return f"""\
![A decode step by each version: launches of the host above, kernels of the device below](figures/timeline.svg)

*Figure 4.* One decode step by each version, from its first launch on: above what the host launches, below what the
device runs. One row of {results["context"]:,} tokens, one {where["gpu"]}, recorded by `torch.profiler`.

{table(heads, lines)}
*Table {number}.* The same, counted. The profiler slows launches down: read order and overlap here, times in table 3.
"""


def figures(root: Path) -> dict[str, str]:
    """File name → SVG; empty where nothing was recorded."""
    results = measured.stored(root, RESULTS)
    return {"timeline.svg": draw(results["timelines"])} if results is not None else {}


def shares(kernels: Sequence[Sequence[Any]]) -> tuple[float, float, float]:
    """From the first start to the last end in µs: the whole, the part in which something runs, that in which two do."""
    begin, end = min(one[1] for one in kernels), max(one[2] for one in kernels)
    busy = twice = 0.0
    edges = sorted([(one[1], 1) for one in kernels] + [(one[2], -1) for one in kernels])
    running, last = 0, begin
    for at, change in edges:
        busy += (at - last) * (running >= 1)
        twice += (at - last) * (running >= 2)
        running, last = running + change, at
    return end - begin, busy, twice


def draw(timelines: dict[str, Timeline]) -> str:
    """All versions on one scale of time, a pair of lanes each."""
    fig, ax = drawing(height=0.5 + 0.75 * len(timelines))
    for row, of in enumerate(timelines.values()):
        launches = [(begin, end - begin) for begin, end in of["launches"]]
        kernels = [(begin, end - begin) for _, begin, end in of["kernels"]]
        ax.broken_barh(launches, (row - 0.36, 0.3), color=ACC, lw=0)
        for turn, colour in ((0, V), (1, OTHER)):  # neighbours differ, so that overlaps are seen
            ax.broken_barh(kernels[turn::2], (row + 0.02, 0.3), color=colour, lw=0, alpha=0.85)
        last = max(begin + length for begin, length in kernels)
        ax.text(last, row + 0.17, f"  {time_of(last)}", va="center", color=W, fontsize=9)
    ax.set_yticks(range(len(timelines)), labels=[f"{step}, {STEPS[step]}" for step in timelines], fontsize=9)
    longest = max(one[2] for of in timelines.values() for one in of["kernels"])
    ax.set(xlabel="µs from the first launch", ylim=(len(timelines) - 0.4, -0.6), xlim=(0, longest * 1.12))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _cells(of: Timeline) -> list[str]:
    whole, busy, twice = shares(of["kernels"])
    return [time_of(whole), f"{busy / whole:.0%}", f"{1 - busy / whole:.0%}", f"{twice / whole:.0%}"]
