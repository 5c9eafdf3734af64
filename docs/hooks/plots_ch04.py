"""What chapter 4 shows of its measurements: figures and sentences from docs/results/<gpu>/ch04_paged_kv.json."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from docs.hooks import operator_plots, profiles, tuning
from docs.hooks.operator_tables import Results
from docs.hooks.plot_style import ACC, OTHER, K, V, W, drawing, svg
from docs.hooks.tables_ch04 import OP, SHOWN, texts
from qwen3_ref import QWEN3_0_6B, cost

__all__ = ["apart", "counted", "plots", "texts"]

_TUNED_TOKENS = (1, 16, 64, 128, 512, 1024, 8192, 32768)  # where the choice of a block turns
BLOCK_SIZE = 16
# Bytes for each element of a head of K, in bf16, from the operations' definitions: to float32 (2 + 4), pow (4 + 4),
# mean (4), times rsqrt (4 + 4), to bfloat16 (4 + 2), times weight (2 + 2); then four products of half a head (1 + 1
# each), their difference and sum (2 + 1 each), cat (2 + 2); then the write (2 + 2).
PYTORCH = (("norm", 36, ACC), ("rotation", 18, OTHER), ("write", 4, K))


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {
        "one-write.svg": operator_plots.side_by_side(results, SHOWN, OP),
        "ladder.svg": operator_plots.ladder(results, SHOWN, OP),
        "floor.svg": operator_plots.floor(results, SHOWN, OP),
    }


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"head-traffic.svg": _head_traffic(), "cache-memory.svg": _cache_memory()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from what the profiler read and from the tuning."""
    shapes = [(tokens,) for tokens in _TUNED_TOKENS]
    return {
        "profile": profiles.passage("ch04", "chapters.ch04_paged_kv.profiled", root, table=3),
        "tuning": tuning.passage(root, "ch04_tuning", "chapters.ch04_paged_kv.tuning", OP, ("tokens",), shapes),
    }


def _head_traffic() -> str:
    """Bytes of bf16 traffic for each element of a head of K."""
    ways = [
        ("PyTorch, op by op", PYTORCH),
        ("one kernel", (("in", 2, W), ("out", 2, K))),
    ]
    fig, ax = drawing(height=1.9)
    for row, (_, parts) in enumerate(ways):
        left = 0
        for name, size, colour in parts:
            ax.barh(row, size - 0.15, left=left, color=colour, alpha=0.85, height=0.5)
            ax.text(left + size / 2, row - 0.31, name, ha="center", va="bottom", color=colour, fontsize=9)
            left += size
        ax.text(left + 0.6, row, f"{left} bytes", va="center", fontsize=9)
    ax.set_yticks(range(len(ways)), labels=[name for name, _ in ways])
    ax.set(xlabel="bytes for each element of a head of K, bfloat16", xlim=(0, 66), ylim=(1.4, -0.75))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _cache_memory() -> str:
    """Left: what has been copied when a cache has grown token by token. Right: what one holds and does not use."""
    per_token = cost.kv_bytes_per_token(QWEN3_0_6B)
    most = QWEN3_0_6B.max_position_embeddings
    tokens = np.arange(BLOCK_SIZE, most + 1)
    capacity = 2 ** np.ceil(np.log2(tokens))  # doubled when full
    grown = np.concatenate([[0], np.where(np.diff(capacity) > 0, capacity[:-1], 0)])
    moved = {
        "a longer tensor\nfor each token": (np.cumsum(tokens - 1.0), ACC, (6, 0)),
        "doubled when full": (np.cumsum(grown), OTHER, (6, 0)),
    }
    unused = {
        "as long as the model allows": (most - tokens, ACC, (-97, 44)),
        "doubled when full": (np.minimum(capacity, most) - tokens, OTHER, (8, 0)),
        f"blocks of {BLOCK_SIZE}: at most": (np.full(len(tokens), BLOCK_SIZE - 1), V, (6, 0)),
    }
    fig, left = drawing(height=3)
    left.remove()
    left, right = fig.subplots(1, 2)
    shown = np.unique(np.round(np.geomspace(1, len(tokens), 160)).astype(int)) - 1
    for ax, lines, factor in ((left, moved, 2.0 * per_token), (right, unused, 1.0 * per_token)):
        for name, (values, colour, offset) in lines.items():
            at = shown[values[shown] > 0]
            ax.plot(tokens[at], values[at] * factor, color=colour, lw=1.6)
            end = (float(tokens[at[-1]]), float(values[at[-1]]) * factor)
            ax.annotate(name, end, xytext=offset, textcoords="offset points", va="center", color=colour, fontsize=9)
        ax.set(xscale="log", yscale="log", xlim=(16, most * 16), ylim=(1e5, 1e15 if ax is left else 3e10))
        ax.set_xticks([16, 256, 4096, 40960], labels=["16", "256", "4,096", "40,960"])
        ax.set_xlabel("tokens of one sequence", loc="left")
        ax.minorticks_off()
    left.set_yticks([2.0**p for p in (20, 30, 40)], labels=["1 MiB", "1 GiB", "1 TiB"])
    right.set_yticks([2.0**p for p in (20, 30)], labels=["1 MiB", "1 GiB"])
    left.set_title("bytes moved to grow", loc="left", fontsize=10)
    left.text(20, 2e5, "blocks: nothing is moved", color=V, fontsize=9)
    right.set_title("bytes held and not used", loc="left", fontsize=10)
    return svg(fig)
