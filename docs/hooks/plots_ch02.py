"""What chapter 2 shows of its measurements: figures and sentences from docs/results/<gpu>/ch02_rms_norm.json."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes

from docs.hooks import profiles, tuning
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg
from docs.hooks.tables_ch02 import (
    COPY,
    HIDDEN,
    PEERS,
    Case,
    Results,
    find,
    ladder_of,
    many_rows,
    series,
    texts,
    time_of,
)

__all__ = ["apart", "counted", "plots", "texts"]

_COLOURS = {COPY: W, "ours": V, "vllm": Q, "torch_compile": K, "torch_rms_norm": OTHER, "torch_eager": ACC}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {
        "one-norm.svg": _one_norm(results),
        "ladder.svg": _ladder(results),
        "floor.svg": _floor(results),
        "fusion.svg": _fusion(results),
    }


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"row-traffic.svg": _row_traffic()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from what the profiler read and from the tuning."""
    return {
        "profile": profiles.passage("ch02", "chapters.ch02_rms_norm.profiled", root),
        "tuning": tuning.passage(
            root, "ch02_tuning", "chapters.ch02_rms_norm.tuning", "rms_norm", "hidden", _tuning_shapes()
        ),
    }


def _tuning_shapes() -> list[tuple[int, int]]:
    """Rows and hidden sizes where the choice of a block turns."""
    return [*((rows, 1024) for rows in (1, 1024, 4096, 8192, 32768)), *((rows, 4096) for rows in (1, 512, 1024, 8192))]


def _row_traffic() -> str:
    """Bytes of bf16 traffic for each element of a row, from the operations' definitions.

    PyTorch op by op is the formula of Hugging Face, each operation with its own reads and writes: to float32 (2 + 4),
    pow (4 + 4), mean (4), times rsqrt (4 + 4), to bfloat16 (4 + 2), times weight (2 + 2).
    """
    add, x, again, out = (6, W, 0.9), (2, OTHER, 0.9), (2, OTHER, 0.4), (2, V, 0.9)
    ways = [
        ("PyTorch, op by op", [add, (36, ACC, 0.8)], ""),
        ("add, then v1 to v3", [add, x, again, out], ": x twice, the second time from a cache if it is still there"),
        ("add, then v4", [add, x, out], ": x once, kept in registers"),
        ("v5, fused", [x, x, out, out], ": x and residual in, both outputs out"),
    ]
    fig, ax = drawing(height=2.3)
    for row, (_, parts, words) in enumerate(ways):
        left = 0
        for size, colour, alpha in parts:
            ax.barh(row, size - 0.12, left=left, color=colour, alpha=alpha, height=0.6)
            left += size
        ax.text(left + 0.5, row, f"{left} bytes{words}", va="center", fontsize=9)
    ax.text(3, -0.42, "add", ha="center", va="bottom", color=W, fontsize=9)
    ax.text(24, -0.42, "the norm: six operations, each in and out", ha="center", va="bottom", color=ACC, fontsize=9)
    ax.set_yticks(range(len(ways)), labels=[name for name, _, _ in ways])
    ax.set(xlabel="bytes for each element of a row, bfloat16", xlim=(0, 50), ylim=(3.5, -0.9))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _one_norm(results: Results) -> str:
    fig, whole = drawing(height=2.6)
    whole.remove()
    for place, rows in enumerate((1, many_rows(results))):
        ax = fig.add_subplot(1, 2, place + 1)
        cases = {name: find(results, "add_rms_norm", name, rows=rows) for name in PEERS}
        bars = [(PEERS[name], case["us"]["median"], _COLOURS[name]) for name, case in cases.items() if case]
        bars.insert(0, ("floor", next(case["floor_us"] for case in cases.values() if case), W))
        longest = max(us for _, us, _ in bars)
        for i, (_, us, colour) in enumerate(bars):
            ax.barh(i, us, color=colour, height=0.62)
            ax.text(us + longest * 0.03, i, time_of(us), va="center", color=colour, fontsize=9)
        ax.set_yticks(range(len(bars)), labels=[name for name, _, _ in bars] if place == 0 else [""] * len(bars))
        ax.set(xlim=(0, longest * 1.3), xlabel=f"µs for {rows:,} row{'s' * (rows > 1)}")
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
    return svg(fig)


def _ladder(results: Results) -> str:
    fig, ax = drawing(height=3.6)
    ends = []
    for (step, cases), colour in zip(ladder_of(results).items(), (ACC, K, OTHER, Q, V), strict=False):
        ax.loglog(_rows(cases), [c["us"]["median"] for c in cases], "o-", color=colour, ms=4)
        ends.append((step, cases, colour))
    last = ends[-1][1]
    ax.loglog(_rows(last), [c["floor_us"] for c in last], "--", color=W, lw=1)
    ax.text(_rows(last)[0], last[0]["floor_us"] * 1.06, "floor", color=W, va="bottom", fontsize=9)
    low, high = ax.get_ylim()
    marks = [us for us in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if low <= us <= high]
    ax.set_yticks(marks, labels=[f"{us:g}" for us in marks])
    ax.set(ylabel="µs")
    _row_axis(ax, _rows(last))
    _name_ends(ax, ends, lambda c: c["us"]["median"])
    return svg(fig)


def _floor(results: Results) -> str:
    fig, ax = drawing(height=3.3)
    ends = []
    for name, title in ({COPY: "a copy of the same bytes"} | PEERS).items():
        cases = series(results, "rms_norm", name)
        if cases:
            line = "o:" if name == COPY else "o-"
            ax.plot(_rows(cases), [100 * c["floor_fraction"] for c in cases], line, color=_COLOURS[name], ms=4)
            ends.append((title, cases, _COLOURS[name]))
    ax.axhline(100, color=W, ls="--", lw=1)
    ax.set(ylabel="% of the floor", ylim=(0, 108))
    _row_axis(ax, sorted({rows for _, cases, _ in ends for rows in _rows(cases)}))
    _name_ends(ax, ends, lambda c: 100 * c["floor_fraction"])
    return svg(fig)


def _fusion(results: Results) -> str:
    fig, ax = drawing(height=3)
    ours = {c["shape"]["rows"]: c["us"]["median"] for c in series(results, "add_rms_norm", "ours")}
    ends = []
    for name, title, colour in (
        ("ours_unfused", "add, then our rms_norm", OTHER),
        ("torch_compile", "torch.compile", K),
        ("vllm", "vLLM, fused", Q),
    ):
        cases = [
            c | {"ratio": c["us"]["median"] / ours[c["shape"]["rows"]]}
            for c in series(results, "add_rms_norm", name)
            if c["shape"]["rows"] in ours
        ]
        if cases:
            ax.plot(_rows(cases), [c["ratio"] for c in cases], "o-", color=colour, ms=4)
            ends.append((title, cases, colour))
    ax.axhline(1, color=V, ls="--", lw=1)
    ax.text(min(ours), 1.02, "ours, fused", color=V, va="bottom", ha="left", fontsize=9)
    ax.set(ylabel="time ÷ ours, fused")
    _row_axis(ax, sorted(ours))
    _name_ends(ax, ends, lambda c: c["ratio"])
    return svg(fig)


def _rows(cases: list[Case]) -> list[int]:
    return [int(c["shape"]["rows"]) for c in cases]


def _row_axis(ax: Axes, rows: list[int]) -> None:
    """Rows on a logarithmic axis, with room at the right for the names of the lines."""
    ax.set_xscale("log", base=2)
    crowded = {a for a, b in itertools.pairwise(rows) if b < 3 * a}
    ax.set_xticks(rows, labels=["" if count in crowded else f"{count:,}" for count in rows])
    ax.set(xlabel=f"rows of {HIDDEN:,} numbers, bfloat16, cold", xlim=(min(rows) * 0.7, max(rows) * 24))
    ax.minorticks_off()


def _name_ends(ax: Axes, ends: list[tuple[str, list[Case], str]], height: Callable[[Case], float]) -> None:
    """The name of each line at the right, apart from other names. Comes last: it needs the axes as they stay."""
    fig = ax.get_figure(root=True)
    assert fig is not None
    fig.draw_without_rendering()
    right = max((_rows(cases)[-1] for _, cases, _ in ends), default=0)
    below = -math.inf
    for name, cases, colour in sorted(ends, key=lambda end: height(end[1][-1])):
        end = (right, height(cases[-1]))
        points = float(ax.transData.transform(end)[1]) * 72 / fig.dpi
        below = max(points, below + 11)
        ax.annotate(
            name, end, xytext=(7, below - points), textcoords="offset points", va="center", color=colour, fontsize=9
        )
