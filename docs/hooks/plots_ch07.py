"""What chapter 7 shows of its measurements: figures and sentences from docs/results/<gpu>/ch07_decode_gemv.json."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from chapters.ch07_decode_gemv.candidates import LAYERS
from chapters.ch07_decode_gemv.targets import STACK, find
from docs.hooks import profiles, tuning
from docs.hooks.operator_tables import Results, time_of
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg
from docs.hooks.tables_ch07 import STEPS, TITLES, step_case, texts

__all__ = ["apart", "counted", "plots", "texts"]

MODULE = "chapters.ch07_decode_gemv"
PEER_COLOURS = {
    "ours": ("ours", V),
    "torch_compile": ("torch.compile", K),
    "cublas": ("cuBLAS, the product alone", ACC),
}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"layers.svg": _layers(results), "ladder.svg": _ladder(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions alone."""
    return {"mapping.svg": _mapping(), "chain.svg": _chain(), "queue.svg": _queue()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from the tuning and from the profiler."""
    return {
        "tuning": tuning.passage(root, "ch07_tuning", f"{MODULE}.tuning", "chain", ("layers", "rows"), [(28, 1)]),
        "profile": profiles.passage("ch07", f"{MODULE}.profiled", root, table=8),
    }


def _layers(results: Results) -> str:
    """Bars: which fraction of its floor each implementation reaches on each layer."""
    fig, ax = drawing(height=2.9)
    wide = 0.8 / len(PEER_COLOURS)
    for place, (name, (title, colour)) in enumerate(PEER_COLOURS.items()):
        cases = [find(results, layer, name) for layer in LAYERS]
        found = [(i, 100 * case["floor_fraction"]) for i, case in enumerate(cases) if case]
        where = [i + (place - 1) * wide for i, _ in found]
        ax.bar(where, [percent for _, percent in found], wide * 0.9, color=colour)
        ax.text(-0.4, 137 - 12 * place, title, color=colour, fontsize=9, va="top")
    ax.axhline(100, color=W, ls="--", lw=1)
    ax.set_xticks(range(len(LAYERS)), labels=[f"{TITLES[one.op]}\n{one.k:,} → {one.n:,}" for one in LAYERS])
    ax.set(ylabel="% of the floor", ylim=(0, 140), yticks=(0, 25, 50, 75, 100))
    ax.tick_params(axis="x", length=0)
    return svg(fig)


def _ladder(results: Results) -> str:
    """Bars: a layer of the chain by each version, and the floor."""
    fig, ax = drawing(height=2.4)
    found = [(step or "kernels/cuda", step_case(results, None, step)) for step in STEPS]
    bars = [(name, case["us"]["median"] / STACK.layers) for name, case in found if case]
    floors = [case["floor_us"] / STACK.layers for _, case in found if case]
    rows = [("floor", floors[0], W)] if floors else []
    rows += [(name, us, colour) for (name, us), colour in zip(bars, (ACC, K, OTHER, Q, V), strict=False)]
    for i, (_, us, colour) in enumerate(rows):
        ax.barh(i, us, color=colour, height=0.62)
        ax.text(us, i, f"  {time_of(us)}", va="center", color=colour, fontsize=9)
    ax.set_yticks(range(len(rows)), labels=[name for name, _, _ in rows])
    ax.set(
        xlabel="µs for the four products of a layer, in a chain of 28",
        xlim=(0, 1.2 * max([us for _, us, _ in rows], default=1)),
    )
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = W) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.1})


def _mapping() -> str:
    """A group of rows of W in segments of 256 columns, a warp for each; its lanes; and where the segments meet."""
    fig, ax = drawing(height=3.6)
    segments, wide = 4, 1.5
    ax.text(0, -0.45, "16 rows of W, 1,024 columns", fontsize=9, va="bottom")
    for s in range(segments):
        left = s * (wide + 0.08)
        for row in range(8):
            ax.add_patch(Rectangle((left, row * 0.13), wide, 0.1, facecolor=W, alpha=0.55, lw=0))
        ax.text(left + wide / 2, -0.12, f"warp {s}", ha="center", va="bottom", fontsize=9, color=OTHER)
        for pack in range(8):
            for row in (2, 6):
                at = left + wide * (pack + 0.25) / 8
                ax.add_patch(Rectangle((at, row * 0.13), wide / 32, 0.1, facecolor=V, lw=0))
        _arrow(ax, (left + wide / 2, 1.15), (left + wide / 2, 1.75), ACC)
        ax.add_patch(Rectangle((left + 0.2, 1.8), wide - 0.4, 0.22, facecolor=ACC, alpha=0.25, edgecolor=ACC, lw=1))
        ax.text(left + wide / 2, 1.91, "16 sums", ha="center", va="center", fontsize=9, color=ACC)
        _arrow(ax, (left + wide / 2, 2.07), (segments * (wide + 0.08) / 2, 2.75), W)
    right = segments * (wide + 0.08) + 0.05
    lane = "a lane: every fourth\npack of rows g and g + 8,\n16 loads of 16 bytes"
    ax.text(right, 0.5, lane, fontsize=9, va="center", color=V)
    ax.text(right, 1.45, "Tensor Cores: 16 tiles", fontsize=9, va="center", color=ACC)
    ax.text(right, 2.4, "shared memory", fontsize=9, va="center")
    ax.add_patch(Rectangle((segments * (wide + 0.08) / 2 - 2.1, 2.8), 4.2, 0.3, fill=False, edgecolor=V, lw=1.2))
    middle = segments * (wide + 0.08) / 2
    ax.text(
        middle, 2.95, "segments in order, × 1/rms, SiLU or + residual", ha="center", va="center", fontsize=9, color=V
    )
    ax.text(right, 2.95, "one rounding", fontsize=9, va="center")
    ax.set(xlim=(-0.1, 8.6), ylim=(3.2, -0.7))
    ax.axis("off")
    return svg(fig)


def _chain() -> str:
    """Three dependent kernels in time: one after the other; and each with its weights asked for before it waits."""
    fig, whole = drawing(height=3.3)
    whole.remove()
    names = ("QKV", "O", "gate/up")
    for place, (title, ahead) in enumerate((("one after the other", False), ("weights read ahead", True))):
        ax = fig.add_subplot(2, 1, place + 1)
        begin, ready = 0.0, 0.0
        for i, name in enumerate(names):
            begin = 0.0 if i == 0 else (max(0.0, ready - 1.9) if ahead else ready + 0.35)
            loaded = begin + 1.9
            go = max(loaded, ready)
            ax.add_patch(Rectangle((begin, i), 1.9, 0.62, facecolor=W, alpha=0.3, lw=0))
            if go > loaded:
                ax.add_patch(Rectangle((loaded, i), go - loaded, 0.62, facecolor=W, alpha=0.12, lw=0))
            ax.add_patch(Rectangle((go, i), 0.55, 0.62, facecolor=ACC, alpha=0.7, lw=0))
            ax.text(begin + 0.08, i + 0.31, f"{name}: weights", va="center", fontsize=9)
            ready = go + 0.55
            if i + 1 < len(names):
                ax.plot([ready, ready], [i, i + 1.62], color=ACC, lw=1, ls=":")
        ax.text(ready + 0.1, 2.31, "x, sums, result", color=ACC, va="center", fontsize=9)
        ax.set(xlim=(-0.1, 10.2), ylim=(2.75, -0.25), yticks=[], xticks=[])
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["left", "bottom"]].set_visible(False)
    return svg(fig)


def _queue() -> str:
    """The queue of memory when a kernel asks for x: behind all weights of the next kernel, and behind a few of them."""
    fig, whole = drawing(height=2.6)
    whole.remove()
    ways = (("all weights of the next kernel at once", [9], 0.2), ("a line of each row at a time", [1] * 5, 0.9))
    for place, (title, pieces, gap) in enumerate(ways):
        ax = fig.add_subplot(2, 1, place + 1)
        at = 1.2
        for i, piece in enumerate(pieces):
            ax.add_patch(Rectangle((at, 0), 0.6 * piece, 0.6, facecolor=W, alpha=0.35, lw=0))
            at += 0.6 * piece
            if i == 0:
                ax.add_patch(Rectangle((at + 0.04, 0), 0.3, 0.6, facecolor=Q, alpha=0.9, lw=0))
                ax.text(at + 0.19, 0.3, "x", ha="center", va="center", fontsize=9, color="white")
                at += 0.38
            at += gap
        ax.text(1.5, 0.3, "W", ha="center", va="center", fontsize=9)
        ax.annotate("", (0.1, 0.3), (1.1, 0.3), arrowprops={"arrowstyle": "->", "color": W})
        ax.text(0.1, 0.55, "to the SM", fontsize=9, color=W)
        ax.set(xlim=(0, 8.6), ylim=(-0.15, 0.95), yticks=[], xticks=[])
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["left", "bottom"]].set_visible(False)
    return svg(fig)
