"""What chapter 9 shows of docs/results/<gpu>/ch09_graph_capture.json, of the timeline, and of its cost model."""

from __future__ import annotations

from pathlib import Path

from chapters.ch09_graph_capture.cost_model import DEPENDENT_US, GRAPH_US, HOST_US, READ_GBPS, launches
from docs.hooks import step_parts, timeline_ch09
from docs.hooks.operator_tables import Results, time_of
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg
from docs.hooks.tables_ch09 import MIDDLE, STEPS, by_step, texts
from qwen3_ref import QWEN3_0_6B, cost

__all__ = ["apart", "counted", "drawn", "plots", "texts"]


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"steps.svg": _steps(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what follows from the cost model."""
    return {"launch-wall.svg": _launch_wall()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from the profiler, and from results of other chapters."""
    return {"timeline": timeline_ch09.passage(root, 4), "parts": step_parts.passage(root, 5, 6)}


def drawn(root: Path) -> dict[str, str]:
    """File name → SVG, from the same."""
    return timeline_ch09.figures(root) | step_parts.figures(root)


def _steps(results: Results) -> str:
    """Bars of one step at the middle context; the floor."""
    fig, ax = drawing(height=2.6)
    cases = by_step(results, MIDDLE)
    longest = max((case["us"]["median"] for case in cases.values()), default=1.0)
    for at, (step, colour) in enumerate(zip(STEPS, (ACC, K, OTHER, V, Q), strict=True)):
        if step in cases:
            us = cases[step]["us"]["median"]
            ax.barh(at, us, color=colour, height=0.62)
            ax.text(us + longest * 0.02, at, time_of(us), va="center", color=colour, fontsize=9)
    for case in list(cases.values())[:1]:
        ax.axvline(case["floor_us"], color=W, ls="--", lw=1)
    ax.set_yticks(range(len(STEPS)), labels=[f"{step}, {title}" for step, title in STEPS.items()], fontsize=9)
    ax.set(xlim=(0, longest * 1.2), xlabel="µs for one step")
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)


def _launch_wall() -> str:
    """What launches cost beside what bytes need, from the cost model."""
    count, low, high = launches(QWEN3_0_6B), *HOST_US
    floor = cost.decode_cost(QWEN3_0_6B, MIDDLE).bytes / READ_GBPS / 1e3
    bars = (
        ("bytes", floor, 0.0, W),
        ("launched one by one", low * count, (high - low) * count, ACC),
        ("in a graph", GRAPH_US * count, 0.0, Q),
        ("dependent", DEPENDENT_US * count, 0.0, V),
    )
    fig, ax = drawing(height=2.2)
    for at, (_, sure, perhaps, colour) in enumerate(bars):
        ax.barh(at, sure, color=colour, height=0.6)
        ax.barh(at, perhaps, left=sure, color=colour, height=0.6, alpha=0.35)
        text = f"{sure:,.0f} µs" + (f" to {sure + perhaps:,.0f} µs" if perhaps else "")
        ax.text(sure + perhaps + 8, at, text, va="center", color=colour, fontsize=9)
    ax.set_yticks(range(len(bars)), labels=[name for name, *_ in bars], fontsize=9)
    ax.set(xlabel=f"µs for the bytes of a step, and for {count} kernels that compute nothing", xlim=(0, 860))
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)
