"""What chapter 5 shows of docs/results/<gpu>/ch05_grouped_attention.json: figures and sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from docs.hooks.operator_tables import Case, Results, time_of
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, name_lines, svg
from docs.hooks.tables_ch05 import MANY, PEERS, SHORT, STEPS, blocks_of, find, series, step_case, texts
from qwen3_ref import QWEN3_0_6B, cost

__all__ = ["counted", "plots", "texts"]

_COLOURS = {"ours": V, "sdpa": K, "sdpa_cudnn": OTHER, "vllm_v1": Q}
_H200_SMS = 132  # of its data sheet
_US = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

Line = tuple[str, Sequence[float], Sequence[float], str]  # name, x, y, colour


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    return {"one-step.svg": _one_step(results), "ladder.svg": _ladder(results), "idle.svg": _idle(results)}


def counted() -> dict[str, str]:
    """File name → SVG of what follows from shapes alone."""
    return {"step-bytes.svg": _step_bytes(), "busy-sms.svg": _busy_sms()}


def _one_step(results: Results) -> str:
    """Bars for one short context and for many: the floor, ours, the others, and head by head."""
    fig, whole = drawing(height=2.7)
    whole.remove()
    for place, where in enumerate((SHORT, MANY)):
        ax = fig.add_subplot(1, 2, place + 1)
        found = {"ours": find(results, *where)} | {name: find(results, *where, variant=name) for name in PEERS}
        bars = [((PEERS | {"ours": "ours"})[n], c["us"]["median"], _COLOURS[n]) for n, c in found.items() if c]
        apart = step_case(results, "v1", where)
        bars += [("head by head, v1", apart["us"]["median"], ACC)] if apart else []
        bars[:0] = [("floor", c["floor_us"], W) for c in found.values() if c][:1]
        longest = max((us for _, us, _ in bars), default=1.0)
        for i, (_, us, colour) in enumerate(bars):
            ax.barh(i, us, color=colour, height=0.62)
            ax.text(us + longest * 0.03, i, time_of(us), va="center", color=colour, fontsize=9)
        ax.set_yticks(range(len(bars)), labels=[name for name, _, _ in bars], fontsize=9)
        ax.set(xlim=(0, longest * 1.35), xlabel=f"µs, {where[1]} × {where[0]:,} tokens")
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
    return svg(fig)


def _ladder(results: Results) -> str:
    """Time of each version against the length of one context, and the floor."""
    fig, ax = drawing(height=3.5)
    lines = []
    for step, colour in zip(STEPS, (ACC, K, OTHER, Q, V), strict=True):
        cases = series(results, step=step if step.startswith("v") else None)
        lines += [_times(step, cases, colour)] if cases else []
    _against_context(ax, lines, series(results), room=3.5)
    return svg(fig)


def _idle(results: Results) -> str:
    """Left: ours and the others on one sequence. Right: bandwidth against the number of blocks."""
    fig, left = drawing(height=3.4)
    left.remove()
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    names = {"ours": "ours"} | PEERS
    lines = [_times(title, cases, _COLOURS[n]) for n, title in names.items() if (cases := series(results, n))]
    _against_context(left, lines, series(results), room=14)
    cases = series(results, context=MANY[0])
    blocks = [blocks_of(case) for case in cases]
    most = results["ceilings"]["read_gbps"]
    right.plot(blocks, [case["gbps"] for case in cases], "o-", color=V, ms=4)
    right.axhline(most, color=W, ls="--", lw=1)
    right.axvline(results["provenance"]["sms"], color=W, ls=":", lw=1)
    right.set_xscale("log", base=2)
    right.set_xticks(blocks, labels=[str(n) for n in blocks])
    right.set(xlabel="blocks: KV heads × sequences", ylabel="GB/s", ylim=(0, most * 1.12))
    right.minorticks_off()
    return svg(fig)


def _times(name: str, cases: list[Case], colour: str) -> Line:
    return name, [c["shape"]["context"] for c in cases], [c["us"]["median"] for c in cases], colour


def _against_context(ax: Axes, lines: list[Line], ours: list[Case], room: float) -> None:
    """Times over contexts, both logarithmic, with the floor and a name at the end of each line.

    `room`: how many times as far as the contexts the axis reaches, for the names.
    """
    for _, x, y, colour in lines:
        ax.loglog(x, y, "o-", color=colour, ms=4)
    contexts, floors = ([c["shape"]["context"] for c in ours], [c["floor_us"] for c in ours])
    ax.loglog(contexts, floors, "--", color=W, lw=1)
    crowded = contexts[1::2] if len(contexts) > 5 else []
    ax.set_xticks(contexts, labels=["" if n in crowded else f"{n:,}" for n in contexts], fontsize=9)
    ax.set_xlabel("tokens", loc="left")
    ax.set(xlim=(min(contexts) * 0.8, max(contexts) * room), ylabel="µs")
    low, high = ax.get_ylim()
    marks = [us for us in _US if low <= us <= high]
    ax.set_yticks(marks, labels=[f"{us:g}" for us in marks])
    ax.minorticks_off()
    name_lines(ax, ((x[-1], y[-1], name, colour) for name, x, y, colour in [*lines, ("floor", contexts, floors, W)]))


def _step_bytes() -> str:
    """What one decode step of Qwen3-0.6B reads: weights, and K and V once or once for each query head."""
    mebi = 2.0**20
    weights = (cost.layer_weight_bytes(QWEN3_0_6B) + cost.head_weight_bytes(QWEN3_0_6B)) / mebi
    once = cost.kv_bytes_per_token(QWEN3_0_6B) / mebi
    contexts = np.arange(0, QWEN3_0_6B.max_position_embeddings + 1, 128)
    fig, ax = drawing(height=3)
    lines = (
        ("weights", np.full(len(contexts), weights), W),
        ("K and V, once", contexts * once, K),
        ("K and V for each\nquery head", contexts * once * QWEN3_0_6B.group_size, ACC),
    )
    for name, y, colour in lines:
        ax.plot(contexts, y, color=colour, lw=2)
        ax.annotate(name, (float(contexts[-1]), float(y[-1])), xytext=(6, 0), textcoords="offset points", color=colour,
                    va="center", fontsize=9)  # fmt: skip
    for factor, colour, offset, side in (
        (once, K, (7, -9), "left"),
        (once * QWEN3_0_6B.group_size, ACC, (-3, 8), "right"),
    ):
        point = (weights / factor, weights)
        ax.plot(*point, "o", color=colour, ms=5)
        ax.annotate(f"{point[0]:,.0f}", point, xytext=offset, textcoords="offset points", color=colour, ha=side,
                    fontsize=9)  # fmt: skip
    ax.set(xlabel="tokens of context", ylabel="MiB read in a decode step", xlim=(0, 52000), ylim=(0, None))
    ax.set_xticks([0, 8192, 16384, 24576, 32768, 40960], labels=["0", "8,192", "16,384", "24,576", "32,768", "40,960"])
    ax.set_yticks([0, 2048, 4096, 6144, 8192], labels=["0", "2,048", "4,096", "6,144", "8,192"])
    return svg(fig)


def _busy_sms() -> str:
    """The SMs of an H200, and those that the blocks of one sequence occupy."""
    fig, ax = drawing(height=1.55)
    columns = 33
    for sm in range(_H200_SMS):
        row, column = divmod(sm, columns)
        busy = sm < QWEN3_0_6B.num_key_value_heads
        ax.barh(row, 0.8, left=column, height=0.78, color=K if busy else W, alpha=0.95 if busy else 0.22)
    idle = _H200_SMS - QWEN3_0_6B.num_key_value_heads
    ax.text(0, -0.75, f"{QWEN3_0_6B.num_key_value_heads} blocks, one for each KV head", color=K, fontsize=9)
    ax.text(columns - 0.2, -0.75, f"{idle} SMs without work", color=W, fontsize=9, ha="right")
    ax.set(xlim=(-0.2, columns), ylim=(3.6, -1.3))
    ax.axis("off")
    return svg(fig)
