"""What chapter 10 shows of docs/results/<gpu>/ch10_quantized_kv.json, of the formats, and of the tiny model's keys."""

from __future__ import annotations

import json
from pathlib import Path

from chapters.ch10_quantized_kv.figures import cache_layouts, outliers
from docs.hooks import cache_quality, measured, operator_plots, profiles, tuning
from docs.hooks.operator_tables import Results, table
from docs.hooks.plot_style import OTHER, K, Q, V, W, drawing, name_lines, svg
from docs.hooks.tables_ch10 import BEST, FP8, OP, SHOWN, of_format, reader, shapes, texts
from qwen3_ref import QWEN3_0_6B, cost

__all__ = ["apart", "counted", "plots", "texts"]

_MODULE = "chapters.ch10_quantized_kv"
_CONTEXTS = (1024, 8192, 32768)
_TUNED_TOKENS = (1, 8, 64, 128, 512, 1024, 8192, 32768)
# Bytes that each stage reads and writes of a head of 128 in bf16, as FP8 with groups of 32: 128 codes and 4 scales.
_HEAD, _CODES = 256, 132
_STAGES = (
    ("norm", 2 * _HEAD, W),
    ("rotation", 2 * _HEAD, OTHER),
    ("Hadamard", 2 * _HEAD, Q),
    ("codes", _HEAD + _CODES, V),
    ("store", 2 * _CODES, K),
)


def plots(results: Results) -> dict[str, str]:
    """File name → SVG."""
    own = of_format(results, FP8)
    ladder = {"ladder.svg": operator_plots.ladder(own, SHOWN, OP)} if SHOWN.series(own, OP, "ours") else {}
    return {"readers.svg": _readers(results)} | ladder


def counted() -> dict[str, str]:
    """File name → SVG of what follows from shapes and formats, and from the tiny checkpoint's keys."""
    found = json.loads(outliers.FILE.read_text(encoding="utf-8"))
    return {
        "step-bytes.svg": _step_bytes(),
        "fused-bytes.svg": _fused_bytes(),
        "outliers.svg": _outliers(found),
        "scores.svg": _scores(found),
    }


def apart(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown, from the formats, the profiler and the tuning."""
    return {
        "layouts": _layouts(),
        "quality": cache_quality.passage(root, 4),
        "profile": profiles.passage("ch10", f"{_MODULE}.profiled", root, table=8),
        "tuning": _tuning(root),
    }


def _tuning(root: Path) -> str:
    """Of the writer in FP8: both formats have the same numbers of tokens."""
    of = (OP, ("tokens",), [(tokens,) for tokens in _TUNED_TOKENS])
    results = measured.stored(root, "ch10_tuning")
    if results is None:
        return tuning.passage(root, "ch10_tuning", f"{_MODULE}.tuning", *of)
    return tuning.render(of_format(results, FP8), *of)


def _layouts() -> str:
    """What each format takes, in both layouts, counted."""
    plain = cost.kv_bytes_per_token(QWEN3_0_6B)
    lines = [["bf16", "256", "–", f"{plain / 1024:.2f} KiB", "1", f"{plain * 8192 / 2**20:,.0f} MiB"]]
    for one in cache_layouts.content()["formats"]:
        padded = one["layout"] == "token_interleaved"
        each = one["data_row_stride"] if padded else one["data_bytes"] + one["scale_bytes"]
        size = one["token_bytes"]
        lines.append(
            [
                f"{one['name']}, {'token by token' if padded else 'codes, then scales'}",
                f"{one['data_bytes']} + {one['scale_bytes']}",
                f"{each}",
                f"{size / 1024:.2f} KiB",
                f"{size / plain:.2f}",
                f"{size * 8192 / 2**20:,.0f} MiB",
            ]
        )
    heads = ["format, layout", "codes + scales", "with padding", "a token, 28 layers", "÷ bf16", "8,192 tokens"]
    return f"""\
{table(heads, lines)}
*Table 2.* Bytes of a head, and of all of a token: K and V of 28 layers with 8 heads. FP8 has groups of 32 with UE8M0,
or one fp32 scale for all 128; NVFP4 groups of 16 with E4M3; MXFP4 groups of 32 with UE8M0. Records begin at multiples
of 16 bytes.
"""


def _readers(results: Results) -> str:
    """Time of attention against the context, by cache; dashed the floors."""
    fig, ax = drawing(height=3.2)
    contexts = [context for batch, context in shapes(results) if batch == 1]
    ends: list[tuple[float, float, str, str]] = []
    for name, colour, words in (("bf16", W, "bf16"), *zip(BEST, (K, V), BEST.values(), strict=True)):
        cases = {context: case for context in contexts if (case := reader(results, name, context))}
        if not cases:
            continue
        ax.loglog(list(cases), [case["us"]["median"] for case in cases.values()], "o-", color=colour, ms=4)
        ax.loglog(list(cases), [case["floor_us"] for case in cases.values()], "--", color=colour, lw=1)
        ends.append((max(cases), cases[max(cases)]["us"]["median"], words, colour))
    low, high = ax.get_ylim()
    marks = [us for us in (1, 2, 5, 10, 20, 50, 100, 200) if low <= us <= high]
    ax.set_yticks(marks, labels=[f"{us:g}" for us in marks])
    if contexts:
        ax.set_xticks(contexts, labels=[f"{context:,}" for context in contexts])
        ax.set(xlim=(min(contexts) * 0.75, max(contexts) * 2.6))
    ax.set(xlabel="tokens of context, cold; dashed: the floor", ylabel="µs")
    ax.minorticks_off()
    name_lines(ax, ends)
    return svg(fig)


def _step_bytes() -> str:
    """What a decode step reads with each cache, by context, from the cost model and the formats."""
    mebi = 2.0**20
    weights = (cost.layer_weight_bytes(QWEN3_0_6B) + cost.head_weight_bytes(QWEN3_0_6B)) / mebi
    plain = cost.kv_bytes_per_token(QWEN3_0_6B) / mebi
    ways = [("bf16", 1.0, W)]
    ways += [
        (name, cache_layouts.token_bytes(cache_layouts.form_of(name, "block_wide")) / mebi / plain, colour)
        for name, colour in (("FP8", K), ("NVFP4", V))
    ]
    fig, ax = drawing(height=3.3)
    for place, context in enumerate(_CONTEXTS):
        for row, (name, share, colour) in enumerate(ways):
            at, cache = place * 1.6 + row * 0.45, share * plain * context
            ax.barh(at, weights, height=0.38, color=W, alpha=0.4)
            ax.barh(at, cache, left=weights, height=0.38, color=colour, alpha=0.9)
            gain = (weights + plain * context) / (weights + cache)
            words = f"{name}: {weights + cache:,.0f}" + (f", ÷ {gain:.2f}" if row else "")
            ax.text(weights + cache + 40, at, words, va="center", fontsize=8, color=colour)
    ax.text(weights / 2, -0.34, "weights", ha="center", va="bottom", fontsize=9, color=W)
    ax.set_yticks([place * 1.6 + 0.45 for place in range(3)], labels=[f"{n:,} tokens" for n in _CONTEXTS], fontsize=9)
    ax.set(xlabel="MiB that a decode step reads", xlim=(0, 5900), ylim=(4.5, -0.8))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _fused_bytes() -> str:
    """Bytes of traffic of a head of K: five launches, and one."""
    fig, ax = drawing(height=1.9)
    ways = [("five launches", _STAGES), ("one launch", (("in", _HEAD, W), ("out", _CODES, K)))]
    for row, (_, parts) in enumerate(ways):
        left = 0
        for name, size, colour in parts:
            ax.barh(row, size - 8, left=left, color=colour, alpha=0.85, height=0.5)
            ax.text(left + size / 2, row - 0.31, name, ha="center", va="bottom", color=colour, fontsize=9)
            left += size
        ax.text(left + 15, row, f"{left:,} bytes", va="center", fontsize=9)
    ax.set_yticks(range(len(ways)), labels=[name for name, _ in ways])
    ax.set(xlabel="bytes for each head of K, bf16 to FP8", xlim=(0, 2560), ylim=(1.4, -0.75))
    ax.tick_params(axis="y", length=0)
    return svg(fig)


def _outliers(found: Results) -> str:
    """Root mean square of each element of the keys of a layer, as they are and transformed."""
    fig, whole = drawing(height=2.5)
    whole.remove()
    most = max(found["channels"]["rms"][0])
    for place, (rms, words, colour) in enumerate(
        zip(found["channels"]["rms"], ("keys as they are", "transformed"), (K, V), strict=True)
    ):
        ax = fig.add_subplot(1, 2, place + 1)
        ax.bar(range(len(rms)), rms, width=1.0, color=colour)
        ax.set_title(words, fontsize=10, color=colour)
        ax.set(xlabel="element of a head", ylim=(0, most * 1.05), xlim=(-1, len(rms)), xticks=[0, 32, 64, 96, 128])
        if place == 0:
            ax.set(ylabel="rms over tokens")
        else:
            ax.set_yticklabels([])
    return svg(fig)


def _scores(found: Results) -> str:
    """Left: largest ÷ rms of a key, by layer. Right: what quantised keys change in a score, by format."""
    fig, whole = drawing(height=2.9)
    whole.remove()
    left, right = fig.subplots(1, 2, width_ratios=(2, 3))
    layers = found["layers"]
    for side, (words, colour) in enumerate((("as they are", K), ("transformed", V))):
        peaks = [layer["peak"][side] for layer in layers]
        left.plot(range(len(layers)), peaks, "o-", color=colour, ms=4)
        left.text(len(layers) - 0.8, peaks[-1], words, color=colour, va="center", fontsize=9)
    left.set(xlabel="layer", ylabel="largest ÷ rms of a key", ylim=(0, 6.4), xlim=(-0.4, len(layers) + 3.2))
    left.set_xticks(range(len(layers)))
    names = list(layers[0]["errors"])
    for place, name in enumerate(names):
        for layer_number, layer in enumerate(layers):
            for side, colour in enumerate((K, V)):
                at = place * 8.5 + layer_number * 1.2 + side * 0.5
                right.bar(at, layer["errors"][name][side], width=0.46, color=colour)
        right.text(place * 8.5 + 3.2, -0.02, name, ha="center", va="top", fontsize=9)
    right.set(ylabel="rms error of a score", xticks=[], ylim=(0, None))
    right.spines["bottom"].set_visible(False)
    return svg(fig)
