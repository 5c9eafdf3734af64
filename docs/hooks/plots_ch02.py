"""What chapter 2 shows of its measurements: figures and sentences from docs/results/<gpu>/ch02_rms_norm.json."""

from __future__ import annotations

from pathlib import Path

from docs.hooks import operator_plots, profiles, tuning
from docs.hooks.operator_tables import Results
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg
from docs.hooks.tables_ch02 import SHOWN, texts

__all__ = ["apart", "counted", "plots", "texts"]


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    others = {
        "ours_unfused": ("add, then our rms_norm", OTHER),
        "torch_compile": ("torch.compile", K),
        "vllm": ("vLLM, fused", Q),
    }
    return {
        "one-norm.svg": operator_plots.side_by_side(results, SHOWN, "add_rms_norm"),
        "ladder.svg": operator_plots.ladder(results, SHOWN, "rms_norm"),
        "floor.svg": operator_plots.floor(results, SHOWN, "rms_norm"),
        "fusion.svg": operator_plots.ratios(results, SHOWN, "add_rms_norm", others, "ours, fused"),
    }


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"row-traffic.svg": _row_traffic()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from what the profiler read and from the tuning."""
    return {
        "profile": profiles.passage("ch02", "chapters.ch02_rms_norm.profiled", root),
        "tuning": tuning.passage(
            root, "ch02_tuning", "chapters.ch02_rms_norm.tuning", "rms_norm", ("rows", "hidden"), _tuning_shapes()
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
