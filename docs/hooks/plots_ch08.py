"""What chapter 8 shows of docs/results/<gpu>/ch08_w8a16_head.json, and what its quality gate said."""

from __future__ import annotations

from pathlib import Path

from chapters.ch08_w8a16_head.benchmark import BATCHES, SIZES
from chapters.ch08_w8a16_head.quality_gate.agreement import interval
from chapters.ch08_w8a16_head.quality_gate.gate import AGREEMENT
from chapters.ch08_w8a16_head.targets import GROUP, K, N, find
from docs.hooks import profiles, quality_gate, tuning
from docs.hooks.operator_tables import Results, time_of
from docs.hooks.plot_style import ACC, OTHER, Q, V, W, drawing, svg
from docs.hooks.plot_style import K as ORANGE
from docs.hooks.tables_ch08 import IDS, LOGITS, MODELS, STEPS, by_batch, step_cases, texts
from qwen3_ref import QWEN3_0_6B, cost

__all__ = ["apart", "counted", "plots", "texts"]

_CONTEXTS = (128, 1024, 8192, 32768)
_LOGITS_COLOURS = (V, Q, ORANGE)
_IDS_COLOURS = (V, OTHER, W, ORANGE)
_PUBLISHED = ((159, 160, "the head: 1 flip of 160"), (154, 160, "all layers: 6 flips of 160"))
_MORE = ((1590, 1600, "10 flips of 1,600"), (15900, 16000, "100 flips of 16,000"))


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"one-head.svg": _one_head(results), "ladder.svg": _ladder(results), "gain.svg": _gain(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what follows from shapes and definitions alone."""
    return {"step-bytes.svg": _step_bytes(), "agreement.svg": _agreement()}


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from the quality gate, the profiler and the tuning."""
    shapes = [(batch, k) for k in (1024, 2560) for batch in BATCHES]
    module = "chapters.ch08_w8a16_head"
    return quality_gate.passages(root, tables=(2, 3)) | {
        "profile": profiles.passage("ch08", f"{module}.profiled", root, table=10),
        "tuning": tuning.passage(root, "ch08_tuning", f"{module}.tuning", "w8a16_linear", ("batch", "k"), shapes),
    }


def _one_head(results: Results) -> str:
    """Bars for one row of x. Left: all logits. Right: the id of the largest."""
    fig, whole = drawing(height=2.2)
    whole.remove()
    for place, (kinds, colours) in enumerate(((LOGITS, _LOGITS_COLOURS), (IDS, _IDS_COLOURS))):
        ax = fig.add_subplot(1, 2, place + 1)
        found = [
            (name, find(results, *kind), colour) for (kind, name), colour in zip(kinds.items(), colours, strict=True)
        ]
        bars = [(name, case["us"]["median"], colour) for name, case, colour in found if case]
        longest = max((us for _, us, _ in bars), default=1.0)
        for i, (_, us, colour) in enumerate(bars):
            ax.barh(i, us, color=colour, height=0.62)
            ax.text(us + longest * 0.03, i, time_of(us), va="center", color=colour, fontsize=9)
        ax.set_yticks(range(len(bars)), labels=[name for name, _, _ in bars], fontsize=9)
        ax.set(xlim=(0, longest * 1.4), xlabel=("µs, all logits", "µs, the largest one's id")[place])
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
    return svg(fig)


def _ladder(results: Results) -> str:
    """Time of each version against the number of rows of x, and the floor."""
    fig, ax = drawing(height=3.2)
    for step, colour in zip(STEPS, (ACC, ORANGE, OTHER, V), strict=True):
        cases = step_cases(results, step)
        if cases:
            times = [case["us"]["median"] for case in cases.values()]
            ax.plot(list(cases), times, "o-", color=colour, ms=4, label=step)
    floors = step_cases(results, "kernels/cuda")
    ax.plot(list(floors), [case["floor_us"] for case in floors.values()], "--", color=W, lw=1, label="floor")
    ax.set(xlabel="rows of x, int8 weights, cold", ylabel="µs", ylim=(0, None))
    ax.set_xticks(BATCHES)
    ax.legend(frameon=False, labelcolor="linecolor", fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(fig)


def _gain(results: Results) -> str:
    """Time of bf16 ÷ time of int8 against the number of rows, for each model's head."""
    fig, ax = drawing(height=3)
    for k, colour in zip(SIZES, (V, Q, OTHER), strict=True):
        ours, bf16 = by_batch(results, "w8a16_linear", "ours", k), by_batch(results, "bf16_linear", "cublas", k)
        rows = sorted(ours.keys() & bf16.keys())
        if rows:
            ratios = [bf16[n]["us"]["median"] / ours[n]["us"]["median"] for n in rows]
            ax.plot(rows, ratios, "o-", color=colour, ms=4, label=MODELS[k])
    ax.axhline(1, color=W, lw=0.8)
    ax.axhline(2 / (1 + 4 / GROUP), color=W, ls="--", lw=1)
    ax.set(xlabel="rows of x", ylabel="bf16 ÷ int8", ylim=(0, 2.2))
    ax.set_xticks(BATCHES)
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        ax.legend(frameon=False, labelcolor="linecolor", fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(fig)


def _step_bytes() -> str:
    """What a decode step reads with either head, by context, from the cost model."""
    mebi = 2.0**20
    layers, head = (f(QWEN3_0_6B) / mebi for f in (cost.layer_weight_bytes, cost.head_weight_bytes))
    small = N * (K + 4 * K // GROUP) / mebi
    fig, ax = drawing(height=3.1)
    for place, context in enumerate(_CONTEXTS):
        cache = context * cost.kv_bytes_per_token(QWEN3_0_6B) / mebi
        for row, (size, colour) in enumerate(((head, ACC), (small, V))):
            at, left = place * 1.25 + row * 0.45, 0.0
            for part, tone, alpha in ((layers, W, 0.55), (cache, ORANGE, 0.7), (size, colour, 0.95)):
                ax.barh(at, part, left=left, height=0.38, color=tone, alpha=alpha)
                left += part
            gain = f"{left:,.0f}" + (f": ÷ {(layers + cache + head) / left:.2f}" if row else "")
            ax.text(left + 40, at, gain, va="center", fontsize=8, color=colour)
    for text, at, colour in (("layers", layers / 2, W), ("head", layers + 14 + head / 2, ACC)):
        ax.text(at, -0.32, text, ha="center", va="bottom", fontsize=9, color=colour)
    ax.text(layers + 1792, 3 * 1.25 - 0.32, "K and V", ha="center", va="bottom", fontsize=9, color=ORANGE)
    ax.set_yticks([place * 1.25 + 0.22 for place in range(4)], labels=[f"{n:,} tokens" for n in _CONTEXTS], fontsize=9)
    ax.set(xlabel="MiB that a decode step reads", xlim=(0, 5900), ylim=(4.5, -0.75))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _agreement() -> str:
    """95 % intervals of the two published shares, and of the higher one on more tokens."""
    fig, ax = drawing(height=2.5)
    rows = [*((*one, ACC) for one in _PUBLISHED), *((*one, V) for one in _MORE)]
    for at, (agreed, tokens, name, colour) in enumerate(rows):
        low, high = (100 * share for share in interval(agreed, tokens))
        ax.plot([low, high], [at, at], color=colour, lw=2, solid_capstyle="butt")
        ax.plot(100 * agreed / tokens, at, "o", color=colour, ms=6)
        ax.text(91.3, at, name, va="center", color=colour, fontsize=9, ha="right")
    ax.axvline(100 * AGREEMENT, color=W, ls="--", lw=1)
    ax.text(100 * AGREEMENT, -0.62, "the gate", ha="center", va="bottom", color=W, fontsize=9)
    ax.set(
        xlabel="same top 1, %, and the 95 % interval of the true share", xlim=(91.6, 100.2), ylim=(3.6, -0.6), yticks=[]
    )
    ax.spines["left"].set_visible(False)
    return svg(fig)
