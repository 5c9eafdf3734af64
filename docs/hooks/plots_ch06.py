"""What chapter 6 shows of its measurements: figures and sentences from docs/results/<gpu>/ch06_split_attention.json."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from docs.hooks import in_a_layer, partition_plans, profiles, tuning
from docs.hooks.operator_plots import counts_of, name_ends
from docs.hooks.operator_tables import Case, Results
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg
from docs.hooks.tables_ch06 import OP, SHORTER, SHOWN, texts, with_heads

__all__ = ["apart", "counted", "drawn", "plots", "texts"]

SMS, KV_HEADS, PARTITIONS = 132, 8, 16  # of an H200, of Qwen3-0.6B, and how often 8 goes into 132
PEER_COLOURS = {"ours": V, "sdpa": OTHER, "sdpa_cudnn": Q, "flashinfer": K, "vllm_v1": ACC}
WAY_COLOURS = {
    "ours_grouped": ("a block a KV head", ACC, "o-"),
    "ours_two_launches": ("two launches", OTHER, "o:"),
    "ours_cluster": ("a cluster", Q, "o:"),
    "ours_long_graph": ("captured for 32,768", K, "o:"),
    "ours": ("by the table", V, "o-"),
}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    own = with_heads(results)
    return {"one-block.svg": _one_block(own), "crossover.svg": _crossover(own), "floor.svg": _floor(own)}


def counted() -> dict[str, str]:
    """File name → SVG of what follows from definitions and shapes alone."""
    return {"idle-sms.svg": _idle_sms(), "mapping.svg": _mapping(), "cluster.svg": _cluster()}


def drawn(root: Path) -> dict[str, str]:
    """File name → SVG from other files than the benchmark's."""
    return partition_plans.figures(root)


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from the plans, the tuning, the layer and the profiler."""
    shapes = [(context,) for context in SHORTER]
    module = "chapters.ch06_split_attention"
    return partition_plans.passages(root) | {
        "tuning": tuning.passage(root, "ch06_tuning", f"{module}.tuning", OP, ("context",), shapes),
        "layer": in_a_layer.passage(root, table=10),
        "profile": profiles.passage("ch06", f"{module}.profiled", root, table=11),
    }


def _lines(ax: Axes, cases: list[Case]) -> None:
    """Axes of µs against the context, with room at the right for the names of lines; and the floor."""
    contexts = counts_of(cases, SHOWN)
    ax.loglog(contexts, [c["floor_us"] for c in cases], "--", color=W, lw=1)
    ax.text(contexts[0], cases[0]["floor_us"] * 1.1, "floor", color=W, va="bottom", fontsize=9)
    _contexts(ax, contexts)
    low, high = ax.get_ylim()
    marks = [us for us in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= us <= high]
    ax.set_yticks(marks, labels=[f"{us:g}" for us in marks])
    ax.set(ylabel="µs")
    ax.minorticks_off()


def _contexts(ax: Axes, contexts: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(contexts, labels=[f"{context:,}" for context in contexts])
    ax.tick_params(axis="x", labelsize=8)
    ax.minorticks_off()
    ax.set(xlim=(min(contexts) * 0.75, max(contexts) * 9))
    ax.set_xlabel("tokens of context, one sequence, bfloat16, cold", loc="left")


def _one_block(results: Results) -> str:
    """Chapter 5's kernel alone, and how far it is from the floor."""
    fig, ax = drawing(height=2.9)
    cases = SHOWN.series(results, OP, "ours_grouped")
    us = [c["us"]["median"] for c in cases]
    ax.loglog(counts_of(cases, SHOWN), us, "o-", color=ACC, ms=4)
    ax.fill_between(counts_of(cases, SHOWN), [c["floor_us"] for c in cases], us, color=ACC, alpha=0.1, lw=0)
    _lines(ax, cases)
    last = cases[-1]
    times = f"{last['us']['median'] / last['floor_us']:.0f} × the floor"
    end = (SHOWN.of(last), last["us"]["median"])
    ax.annotate(times, end, xytext=(8, 0), textcoords="offset points", va="center", color=ACC, fontsize=9)
    return svg(fig)


def _crossover(results: Results) -> str:
    """Every way to compute the same, against the context."""
    fig, ax = drawing(height=3.6)
    ends = []
    for name, (title, colour, line) in WAY_COLOURS.items():
        cases = SHOWN.series(results, OP, name)
        if cases:
            ax.loglog(counts_of(cases, SHOWN), [c["us"]["median"] for c in cases], line, color=colour, ms=4)
            ends.append((title, cases, colour))
    _lines(ax, max((cases for _, cases, _ in ends), key=len))
    name_ends(ax, ends, lambda c: c["us"]["median"], SHOWN)
    return svg(fig)


def _floor(results: Results) -> str:
    """Which fraction of the floor ours and the peers reach, against the context."""
    fig, ax = drawing(height=3.3)
    ends = []
    for name, title in SHOWN.peers.items():
        cases = SHOWN.series(results, OP, name)
        if cases:
            percent = [100 * c["floor_fraction"] for c in cases]
            ax.plot(counts_of(cases, SHOWN), percent, "o-", color=PEER_COLOURS[name], ms=4)
            ends.append((title, cases, PEER_COLOURS[name]))
    ax.axhline(100, color=W, ls="--", lw=1)
    ax.set(ylabel="% of the floor", ylim=(0, 105))
    _contexts(ax, sorted({context for _, cases, _ in ends for context in counts_of(cases, SHOWN)}))
    name_ends(ax, ends, lambda c: 100 * c["floor_fraction"], SHOWN)
    return svg(fig)


def _idle_sms() -> str:
    """132 squares, twice: one block for each KV head, and one for each of 16 partitions of each."""
    fig, whole = drawing(height=1.9)
    whole.remove()
    columns = 22
    for place, (busy, words) in enumerate(
        ((KV_HEADS, "a block a KV head"), (KV_HEADS * PARTITIONS, f"{PARTITIONS} partitions a KV head"))
    ):
        ax = fig.add_subplot(1, 2, place + 1)
        for sm in range(SMS):
            corner = sm % columns, sm // columns
            on = sm < busy
            colour = V if on else W
            ax.add_patch(Rectangle(corner, 0.8, 0.8, facecolor=colour, edgecolor="none", alpha=0.9 if on else 0.25))
        ax.set(xlim=(-0.2, columns), ylim=(SMS / columns, -0.2), aspect="equal")
        ax.set_title(f"{words}: {busy} of {SMS} SMs", fontsize=10)
        ax.axis("off")
    return svg(fig)


def _mapping() -> str:
    """From the context of one KV head to the result: partitions, blocks, partials, and the block that merges."""
    fig, ax = drawing(height=3.3)
    parts, width, top = 4, 1.5, 0.2
    for p in range(parts):
        left = p * (width + 0.15)
        live = p < parts - 1
        alpha = 0.85 if live else 0.15
        tokens = width if p < parts - 2 else width * 0.55
        if live:
            ax.add_patch(Rectangle((left, top), tokens, 0.4, facecolor=K, alpha=0.75, lw=0))
            ax.add_patch(Rectangle((left, top + 0.45), tokens, 0.4, facecolor=V, alpha=0.75, lw=0))
        ax.text(left, top - 0.12, f"partition {p}", fontsize=9, va="bottom")
        ax.add_patch(Rectangle((left, 1.6), width, 0.75, facecolor=OTHER, alpha=0.15 * alpha / 0.85, lw=0))
        ax.add_patch(Rectangle((left, 1.6), width, 0.75, fill=False, edgecolor=OTHER, lw=1.2, alpha=alpha))
        words = f"block ({p}, h, s)" if live else "no token:\nleaves at once"
        ax.text(left + width / 2, 1.975, words, ha="center", va="center", color=OTHER if live else W, fontsize=9)
        if live:
            _arrow(ax, (left + tokens / 2, 1.1), (left + tokens / 2, 1.55))
            ax.add_patch(Rectangle((left, 3.05), width, 0.45, facecolor=ACC, alpha=0.15, edgecolor=ACC, lw=1.2))
            ax.text(left + width / 2, 3.275, "m, ℓ, o", ha="center", va="center", color=ACC, fontsize=9)
            _arrow(ax, (left + width / 2, 2.4), (left + width / 2, 3.0))
    ax.text(6.75, 0.4, "K", color=K, va="center")
    ax.text(6.75, 0.85, "V", color=V, va="center")
    ax.text(6.75, 1.975, "attend", va="center", fontsize=9)
    ax.text(5.0, 3.275, "workspace, fp32", va="center", fontsize=9)
    last = 1  # any: blocks end in any order
    middle = last * (width + 0.15) + width / 2
    for p in range(parts - 1):
        _arrow(ax, (p * (width + 0.15) + width / 2, 3.55), (middle, 4.15))
    ax.add_patch(Rectangle((middle - 1.2, 4.2), 2.4, 0.5, fill=False, edgecolor=OTHER, lw=1.2))
    ax.text(middle, 4.45, "the block that ends last", ha="center", va="center", color=OTHER, fontsize=9)
    _arrow(ax, (middle + 1.2, 4.45), (middle + 2.0, 4.45))
    ax.text(middle + 2.1, 4.45, "out, rounded once", va="center", fontsize=9)
    ax.set(xlim=(-0.1, 7.6), ylim=(4.9, -0.3))
    ax.axis("off")
    return svg(fig)


def _cluster() -> str:
    """Blocks of a cluster: each one's partials in shares, sent to the block that merges that share."""
    fig, ax = drawing(height=3.5)
    blocks, live, width, gap = 4, 3, 1.5, 0.15
    part = width / live
    colours = (Q, OTHER, V)  # of the shares
    ax.add_patch(Rectangle((-0.12, -0.12), blocks * (width + gap) + 0.1, 3.35, fill=False, edgecolor=W, lw=1, ls="--"))
    ax.text(blocks * (width + gap) + 0.1, 0.05, "a cluster", color=W, va="center", fontsize=9)
    for p in range(blocks):
        left = p * (width + gap)
        if p >= live:
            ax.add_patch(Rectangle((left, 0.2), width, 2.65, fill=False, edgecolor=OTHER, lw=1.2, alpha=0.2))
            ax.text(
                left + width / 2, 1.5, "no token:\narrives, and leaves", ha="center", va="center", color=W, fontsize=8
            )
            continue
        ax.text(left, 0.12, f"block {p}", fontsize=9, va="bottom")
        for share, colour in enumerate(colours):
            start = left + share * part
            ax.add_patch(Rectangle((start, 0.2), part, 0.5, facecolor=colour, alpha=0.25, edgecolor=colour, lw=1))
            slot = share * (width + gap) + p * part  # where block `share` is sent it
            ax.add_patch(Rectangle((slot, 2.35), part, 0.5, facecolor=colour, alpha=0.25, edgecolor=colour, lw=1))
            ax.text(slot + part / 2, 2.6, str(p), ha="center", va="center", color=colour, fontsize=8)
            line = {"arrowstyle": "->", "color": colour, "lw": 1.0, "alpha": 0.9}
            ax.annotate("", (slot + part / 2, 2.32), (start + part / 2, 0.73), arrowprops=line)
        _arrow(ax, (left + width / 2, 3.05), (left + width / 2, 3.6))
        ax.add_patch(Rectangle((left, 3.65), width, 0.4, facecolor=colours[p], alpha=0.6, lw=0))
    right = blocks * (width + gap) + 0.1
    ax.text(right, 0.45, "m, ℓ, o", color=ACC, va="center", fontsize=9)
    ax.text(right, 2.6, "inbox", va="center", fontsize=9)
    ax.plot([-0.12, blocks * (width + gap) - 0.02], [3.0, 3.0], color=ACC, lw=1.2)
    ax.text(right, 3.0, "barrier", color=ACC, va="center", fontsize=9)
    ax.text(live * (width + gap), 3.85, "out: a share each, rounded once", va="center", fontsize=9)
    ax.set(xlim=(-0.2, 8.0), ylim=(4.2, -0.3))
    ax.axis("off")
    return svg(fig)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": W, "lw": 1.1})
