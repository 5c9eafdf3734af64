"""What a decode step's time consists of, put together from three results: layers, heads, and whole steps."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from chapters.ch06_split_attention import in_a_layer
from chapters.ch09_graph_capture.benchmark import CHAPTER, CONTEXTS, STEPS
from chapters.ch09_graph_capture.targets import find
from docs.hooks import measured
from docs.hooks.operator_tables import Results, table, time_of
from docs.hooks.plot_style import ACC, OTHER, K, V, W, drawing, svg
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.benchmarking import targets

HEADS = "ch08_w8a16_head"
_NOTHING = "*Not all of a step's parts have been measured yet.*\n"


class Part(NamedTuple):
    """A part of a step: µs, and what its bytes need."""

    name: str
    us: float
    floor_us: float


def parts_of_steps(root: Path) -> dict[int, tuple[Part, ...]]:
    """Context → the parts of a step by the last version of the ladder, one row; without what was not measured.

    Attention is that of the context nearest to the steps' mean. The last part is what the others leave.
    """
    steps, layers, heads = (measured.stored(root, name) for name in (CHAPTER, in_a_layer.RESULTS, HEADS))
    if steps is None or layers is None or heads is None:
        return {}
    all_parts = {context: _parts(steps, layers, heads, context) for context in CONTEXTS}
    return {context: parts for context, parts in all_parts.items() if parts}


def _parts(steps: Results, layers: Results, heads: Results, context: int) -> tuple[Part, ...]:
    step = find(steps, "v5", context)
    sizes: dict[str, int | str] = {"batch": 1, "k": QWEN3_0_6B.hidden_size, "n": QWEN3_0_6B.vocab_size}
    head = targets.find(heads, "head_argmax", "ours", sizes)
    products = {c["shape"]["context"]: c for c in layers["cases"] if c["variant"] == "without attention"}
    mean = context + STEPS // 2
    nearest = min(products, key=lambda one: (abs(one - mean), -one), default=0)
    attention = in_a_layer.marginal_us(layers, nearest)
    if step is None or head is None or attention is None:
        return ()
    count, layer = QWEN3_0_6B.num_hidden_layers, products[nearest]
    keys = cost.decode_cost(QWEN3_0_6B, mean).kv_read_bytes
    found = [
        Part("products of 28 layers", count * layer["us"]["median"], count * layer["floor_us"]),
        Part("attention of 28 layers", count * attention[1], keys / float(steps["ceilings"]["read_gbps"]) / 1e3),
        Part("head", head["us"]["median"], head["floor_us"]),
    ]
    rest = step["us"]["median"] - sum(part.us for part in found)
    return (*found, Part("between two steps", rest, 0.0))


def passage(root: Path, figure: int, number: int) -> str:
    """The figure's Markdown and its table."""
    all_parts = parts_of_steps(root)
    if not all_parts:
        return _NOTHING
    names = [part.name for part in next(iter(all_parts.values()))]
    lines = [
        [name, *(f"{time_of(parts[i].us)} ({_over(parts[i])})" for parts in all_parts.values())]
        for i, name in enumerate(names)
    ]
    sums = [Part("", sum(p.us for p in parts), sum(p.floor_us for p in parts)) for parts in all_parts.values()]
    lines.append(["a step", *(f"{time_of(one.us)} ({_over(one)})" for one in sums)])
    return f"""\
![A decode step at three contexts: products, attention, head, and what lies between steps](figures/step-parts.svg)

*Figure {figure}.* What a step of v5 consists of, one row; pale, what the bytes of each part need.

{table(["", *(f"{context:,} tokens" for context in all_parts)], lines)}
*Table {number}.* The same, and in brackets how many µs are above what the bytes need at the measured bandwidth.
Layers are [chapter 6's](../ch06_split_attention/README.md), the head is [chapter 8's](../ch08_w8a16_head/README.md),
each measured for itself by its fastest plan; the last part is what they leave of this chapter's step, whose one plan
may be slower.
"""


def _over(part: Part) -> str:
    return f"+{part.us - part.floor_us:.0f}" if part.floor_us else "all"


def figures(root: Path) -> dict[str, str]:
    """File name → SVG; empty where a part is missing."""
    all_parts = parts_of_steps(root)
    return {"step-parts.svg": draw(all_parts)} if all_parts else {}


def draw(all_parts: dict[int, tuple[Part, ...]]) -> str:
    """A bar for each context; of each part the pale piece is its floor."""
    fig, ax = drawing(height=0.9 + 0.6 * len(all_parts))
    colours = (K, V, ACC, OTHER)
    longest = max(sum(part.us for part in parts) for parts in all_parts.values())
    for row, parts in enumerate(all_parts.values()):
        at = 0.0
        for part, colour in zip(parts, colours, strict=True):
            ax.barh(row, part.us, left=at, color=colour, height=0.6, alpha=0.9)
            ax.barh(row, part.floor_us, left=at, color="white", height=0.6, alpha=0.45, lw=0)
            at += part.us
        ax.text(at + longest * 0.01, row, time_of(at), va="center", color=W, fontsize=9)
    for part, colour in zip(next(iter(all_parts.values())), colours, strict=True):
        ax.plot([], [], "s", color=colour, label=part.name)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8, frameon=False, handletextpad=0.2)
    ax.set_yticks(range(len(all_parts)), labels=[f"{context:,} tokens" for context in all_parts], fontsize=9)
    ax.set(xlim=(0, longest * 1.13), xlabel="µs of a step")
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)
