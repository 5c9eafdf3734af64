"""Plots of a chapter whose benchmark compares one operator at several sizes, in the colours of who is who."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from matplotlib.axes import Axes

from docs.hooks.operator_tables import COPY, Case, Results, Shown, counted, time_of
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, name_lines, svg

COLOURS = {
    COPY: W,
    "ours": V,
    "vllm": Q,
    "torch_compile": K,
    "torch_rms_norm": OTHER,
    "torch_eager": ACC,
}
_US = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

End = tuple[str, list[Case], str]  # a line's name, its cases, its colour


def side_by_side(results: Results, shown: Shown, op: str) -> str:
    """Bars for one row or token and for many: the floor, ours, the others."""
    fig, whole = drawing(height=2.6)
    whole.remove()
    for place, count in enumerate((1, shown.many(results, op))):
        ax = fig.add_subplot(1, 2, place + 1)
        cases = {name: shown.at(results, op, name, count) for name in shown.peers}
        bars = [(shown.peers[name], case["us"]["median"], COLOURS[name]) for name, case in cases.items() if case]
        bars.insert(0, ("floor", next(case["floor_us"] for case in cases.values() if case), W))
        longest = max(us for _, us, _ in bars)
        for i, (_, us, colour) in enumerate(bars):
            ax.barh(i, us, color=colour, height=0.62)
            ax.text(us + longest * 0.03, i, time_of(us), va="center", color=colour, fontsize=9)
        ax.set_yticks(range(len(bars)), labels=[name for name, _, _ in bars] if place == 0 else [""] * len(bars))
        ax.set(xlim=(0, longest * 1.3), xlabel=f"µs for {counted(count, shown.count)}")
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
    return svg(fig)


def ladder(results: Results, shown: Shown, op: str) -> str:
    """Time of each step against the number of rows or tokens, and the floor."""
    fig, ax = drawing(height=3.6)
    steps = shown.ladder_of(results, op)
    colours = [*(ACC, K, OTHER, Q, W)[: len(steps) - 1], V]
    ends = [(step, cases, colour) for (step, cases), colour in zip(steps.items(), colours, strict=False)]
    for _, cases, colour in ends:
        ax.loglog(counts_of(cases, shown), [c["us"]["median"] for c in cases], "o-", color=colour, ms=4)
    last = ends[-1][1]
    counts = counts_of(last, shown)
    ax.loglog(counts, [c["floor_us"] for c in last], "--", color=W, lw=1)
    ax.text(counts[0], last[0]["floor_us"] * 1.06, "floor", color=W, va="bottom", fontsize=9)
    low, high = ax.get_ylim()
    marks = [us for us in _US if low <= us <= high]
    ax.set_yticks(marks, labels=[f"{us:g}" for us in marks])
    ax.set(ylabel="µs")
    count_axis(ax, counts, shown)
    name_ends(ax, ends, lambda c: c["us"]["median"], shown)
    return svg(fig)


def floor(results: Results, shown: Shown, op: str) -> str:
    """Which fraction of the floor each variant reaches, against the number of rows or tokens."""
    fig, ax = drawing(height=3.3)
    ends = []
    for name, title in ({COPY: "a copy of the same bytes"} | shown.peers).items():
        cases = shown.series(results, op, name)
        if cases:
            line = "o:" if name == COPY else "o-"
            percent = [100 * c["floor_fraction"] for c in cases]
            ax.plot(counts_of(cases, shown), percent, line, color=COLOURS[name], ms=4)
            ends.append((title, cases, COLOURS[name]))
    ax.axhline(100, color=W, ls="--", lw=1)
    ax.set(ylabel="% of the floor", ylim=(0, 108))
    count_axis(ax, sorted({count for _, cases, _ in ends for count in counts_of(cases, shown)}), shown)
    name_ends(ax, ends, lambda c: 100 * c["floor_fraction"], shown)
    return svg(fig)


def ratios(results: Results, shown: Shown, op: str, others: dict[str, tuple[str, str]], words: str) -> str:
    """Time of others ÷ time of ours, against the number of rows or tokens. `others`: variant → title and colour."""
    fig, ax = drawing(height=3)
    ours = {shown.of(c): c["us"]["median"] for c in shown.series(results, op, "ours")}
    ends = []
    for name, (title, colour) in others.items():
        cases = [
            c | {"ratio": c["us"]["median"] / ours[shown.of(c)]}
            for c in shown.series(results, op, name)
            if shown.of(c) in ours
        ]
        if cases:
            ax.plot(counts_of(cases, shown), [c["ratio"] for c in cases], "o-", color=colour, ms=4)
            ends.append((title, cases, colour))
    ax.axhline(1, color=V, ls="--", lw=1)
    ax.text(min(ours), 1.02, words, color=V, va="bottom", ha="left", fontsize=9)
    ax.set(ylabel=f"time ÷ {words}")
    count_axis(ax, sorted(ours), shown)
    name_ends(ax, ends, lambda c: c["ratio"], shown)
    return svg(fig)


def counts_of(cases: list[Case], shown: Shown) -> list[int]:
    return [shown.of(case) for case in cases]


def count_axis(ax: Axes, counts: list[int], shown: Shown) -> None:
    """Rows or tokens on a logarithmic axis, with room at the right for the names of the lines."""
    ax.set_xscale("log", base=2)
    crowded = {a for a, b in itertools.pairwise(counts) if b < 3 * a}
    ax.set_xticks(counts, labels=["" if count in crowded else f"{count:,}" for count in counts])
    wide = f" of {shown.main:,} numbers" if shown.width else ""
    ax.set(xlabel=f"{shown.count}{wide}, bfloat16, cold", xlim=(min(counts) * 0.7, max(counts) * 24))
    ax.minorticks_off()


def name_ends(ax: Axes, ends: list[End], height: Callable[[Case], float], shown: Shown) -> None:
    """The name of each line at the right, apart from other names. Comes last: it needs the axes as they stay."""
    right = max((shown.of(cases[-1]) for _, cases, _ in ends), default=0)
    name_lines(ax, ((right, height(cases[-1]), name, colour) for name, cases, colour in ends))
