"""What chapter 3 shows of its measurements: figures and sentences from docs/results/<gpu>/ch03_swiglu.json."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from docs.hooks import operator_plots, profiles, tuning
from docs.hooks.operator_tables import Results
from docs.hooks.plot_style import ACC, OTHER, V, W, drawing, svg
from docs.hooks.tables_ch03 import OP, SHOWN, SIZE, texts

__all__ = ["apart", "counted", "plots", "texts"]

_TUNED_ROWS = (1, 128, 512, 1024, 8192, 32768)  # where the choice of a block turns


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {
        "one-product.svg": operator_plots.side_by_side(results, SHOWN, OP),
        "ladder.svg": operator_plots.ladder(results, SHOWN, OP),
        "floor.svg": operator_plots.floor(results, SHOWN, OP),
    }


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"silu.svg": _silu(), "element-traffic.svg": _element_traffic()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from what the profiler read and from the tuning."""
    shapes = [(rows, SIZE) for rows in _TUNED_ROWS]
    return {
        "profile": profiles.passage("ch03", "chapters.ch03_swiglu.profiled", root, table=5),
        "tuning": tuning.passage(root, "ch03_tuning", "chapters.ch03_swiglu.tuning", OP, ("rows", "size"), shapes),
    }


def _silu() -> str:
    """Left: SiLU, its slope and ReLU. Right: what float32 makes of it far below zero, in two ways of writing it."""
    fig, left = drawing(height=2.9)
    left.remove()
    left, right = fig.subplots(1, 2, width_ratios=(1, 1))
    z = np.linspace(-6, 4, 201)
    sigmoid = 1 / (1 + np.exp(-z))
    left.axhline(0, color=W, lw=0.6)
    left.plot(z, np.maximum(z, 0), "--", color=W, lw=1)
    left.plot(z, z * sigmoid, color=V, lw=2)
    left.plot(z, sigmoid * (1 + z * (1 - sigmoid)), color=OTHER, lw=1.3)
    left.text(2.2, 1.55, "SiLU", color=V, ha="left", va="top")
    left.text(-0.3, 0.75, "its slope", color=OTHER, ha="right")
    left.text(3.1, 3.35, "ReLU", color=W, ha="right")
    left.set(xlabel="gate", ylim=(-0.5, 4.1))

    far = np.linspace(-108, -60, 481, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        power = np.exp(-np.abs(far))
        stable = np.abs(far * power / (1 + power))
        plain = np.abs(far / (1 + np.exp(-far)))
    ends = far[plain > 0].min()
    right.semilogy(far[stable > 0], stable[stable > 0], color=V, lw=2)
    right.semilogy(far[plain > 0], plain[plain > 0], color=ACC, lw=2, ls=(0, (2, 2)))
    right.axvline(ends, color=ACC, lw=0.8, ls=":")
    right.text(ends + 1.5, 1e-43, f"z / (1 + exp(−z))\nis −0 below {ends:.1f}".replace("-", "−"), color=ACC, fontsize=9)
    right.text(ends - 1.5, 1e-33, "from\nexp(−|z|)", color=V, ha="right", fontsize=9)
    right.set(xlabel="gate", ylabel="|SiLU| in fp32")
    right.minorticks_off()
    return svg(fig)


def _element_traffic() -> str:
    """Bytes of bf16 traffic for each element of the result, from the operations' definitions."""
    ways = [
        ("PyTorch, op by op", [(2, OTHER, 0.9), (2, ACC, 0.8), (2, ACC, 0.8), (2, W, 0.9), (2, V, 0.9)]),
        ("one kernel", [(2, OTHER, 0.9), (2, W, 0.9), (2, V, 0.9)]),
    ]
    names = (("gate", "silu(gate)", "silu(gate)", "up", "out"), ("gate", "up", "out"))
    fig, ax = drawing(height=2.1)
    places = (0, 1.5)
    for row, (_, parts) in zip(places, ways, strict=True):
        left = 0
        for (size, colour, alpha), name in zip(parts, names[row > 0], strict=True):
            ax.barh(row, size - 0.06, left=left, color=colour, alpha=alpha, height=0.5)
            ax.text(left + size / 2, row - 0.32, name, ha="center", va="bottom", color=colour, fontsize=9)
            left += size
        ax.text(left + 0.15, row, f"{left} bytes", va="center", fontsize=9)
    for middle, words in ((3, "written"), (5, "and read again")):
        ax.text(middle, 0.32, words, ha="center", va="top", color=ACC, fontsize=9)
    ax.set_yticks(places, labels=[name for name, _ in ways])
    ax.set(xlabel="bytes for each element of the result, bfloat16", xlim=(0, 11.6), ylim=(1.9, -0.8))
    ax.tick_params(axis="y", length=0)
    return svg(fig)
