"""docs/results/<gpu>/drop_in_*.json → what our operators are worth in a model of transformers: a figure and passages.

The operators' own speed, beside which the models' stands, comes from the results of chapters 2 and 3 on the same GPU.
What was not measured is left out; where nothing was, the passages say how to measure it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.hooks import ROOT
from docs.hooks.measured import MAIN_GPU
from docs.hooks.operator_tables import table, time_of
from docs.hooks.plot_style import OTHER, Q, V, W, drawing, svg

Results = dict[str, Any]
Speedup = dict[str, Any]  # ratio, and low and high, which are None for a single pair
Bar = tuple[str, float, tuple[float, float] | None, str]  # name, ratio, interval, colour

MAIN_MODEL = "random-0.6b"
FIGURE = "drop-in.svg"
CONFIGURATIONS = {
    "rms_norm": "norms",
    "mlp": "MLP",
    "rms_norm+mlp": "norms, MLP",
    "rms_norm+add": "norms, fused addition",
    "all": "all",
}
MODES = {"eager": "launched from Python", "graph": "CUDA graph"}
SHORT_MODES = {"eager": "Python", "graph": "graph"}
WIDE = 0.02  # an interval that is shown
MODEL_TITLES = {
    "random-0.6b": "the shape of Qwen3-0.6B, random weights",
    "random-0.5b": "the shape of Qwen2.5-0.5B, random weights",
    "tiny": "the tiny checkpoint",
}
ROUNDINGS = {"hf": "as transformers", "single": "once"}
_NOTHING = "*No measurement is in the repository yet: `make drop-in MODEL=random-0.6b` on a GPU writes one.*\n"
_OPERATORS = (  # op, the chapter of its results, shapes: those that the hidden and the intermediate size give
    ("rms_norm", "ch02_rms_norm", {"hidden": 1024}),
    ("add_rms_norm", "ch02_rms_norm", {"hidden": 1024}),
    ("silu_mul", "ch03_swiglu", {"size": 3072}),
)
_ROWS = (1, 128, 1024)


@dataclass(frozen=True)
class Operator:
    """An operator on some rows: PyTorch op by op, and ours, in µs."""

    name: str
    rows: int
    eager: float
    ours: float


def figures(root: Path = ROOT) -> dict[Path, str]:
    """The figure's file and its SVG, once there is a measurement."""
    models = _models(root)
    return {root / "docs" / "figures" / FIGURE: _figure(models[0], _operators(root))} if models else {}


def texts(root: Path = ROOT) -> dict[str, str]:
    """Name of a passage → its Markdown. All names are there, measured or not."""
    models = _models(root)
    if not models:
        return dict.fromkeys(("speed", "operators", "launches", "validation"), _NOTHING)
    return {
        "speed": "\n".join(_speed(model, first=model is models[0]) for model in models),
        "operators": _operators_table(_operators(root)),
        "launches": _launches(models),
        "validation": "\n".join(_validation(model) for model in models),
    }


def _models(root: Path) -> list[Results]:
    """The timed results of the main GPU, else of the first that has some: the main model first."""
    found = sorted((root / "docs" / "results").glob("*/drop_in_*.json"))
    folders = sorted({path.parent for path in found}, key=lambda folder: (folder.name != MAIN_GPU, folder))
    for folder in folders:
        loaded = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.parent == folder]
        timed = [one for one in loaded if one.get("schema") == 1 and one["speed"] and one["speed"]["comparisons"]]
        if timed:
            return sorted(timed, key=lambda one: (one["model"]["name"] != MAIN_MODEL, one["model"]["name"]))
    return []


def _operators(root: Path) -> list[Operator]:
    found = []
    for op, chapter, shape in _OPERATORS:
        path = root / "docs" / "results" / MAIN_GPU / f"{chapter}.json"
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else []
        kind = {"op": op, "step": None, "dtype": "bfloat16", "cache": "cold"}
        for rows in _ROWS:
            wanted = shape | {"rows": rows}
            us = {
                case["variant"]: float(case["us"]["median"])
                for case in cases
                if kind.items() <= case.items() and wanted.items() <= case["shape"].items()
            }
            if {"torch_eager", "ours"} <= us.keys():
                found.append(Operator(op, rows, us["torch_eager"], us["ours"]))
    return found


def _speedups(results: Results, op: str, mode: str, prompt: int) -> dict[str, Speedup]:
    """Configuration → its speedup, where it was measured."""
    wanted = {"op": op, "mode": mode, "prompt": prompt}
    return {c["configuration"]: c["speedup"] for c in results["speed"]["comparisons"] if wanted.items() <= c.items()}


def _runs(results: Results) -> Iterator[tuple[str, str, int]]:
    """What was timed: op, mode, prompt."""
    yield from dict.fromkeys((c["op"], c["mode"], c["prompt"]) for c in results["speed"]["comparisons"])


def _unpatched(results: Results, op: str, mode: str, prompt: int) -> float:
    """The unpatched model's median, µs."""
    wanted = {"mode": mode, "prompt": prompt}
    return next(
        float(case["us"]["median"])
        for case in results["cases"]
        if (case["op"], case["variant"]) == (op, "unpatched") and wanted.items() <= case["shape"].items()
    )


def _figure(results: Results, operators: list[Operator]) -> str:
    """How many times as fast: the operators, and the model that has all of them."""
    bars: list[Bar] = [(f"{one.name}, 1 row", one.eager / one.ours, None, V) for one in operators if one.rows == 1]
    longest = max(prompt for _, _, prompt in _runs(results))
    shortest = min(prompt for _, _, prompt in _runs(results))
    for mode, colour in (("eager", OTHER), ("graph", Q)):
        for op, prompt in (("decode", shortest), ("prefill", longest)):
            speedup = _speedups(results, op, mode, prompt).get("all")
            if speedup:
                words = "a decode step" if op == "decode" else f"a prefill of {prompt:,}"
                reach = None if speedup["low"] is None else (speedup["low"], speedup["high"])
                bars.append((f"{words}, {MODES[mode]}", speedup["ratio"], reach, colour))
    fig, ax = drawing(height=0.6 + 0.36 * len(bars))
    for row, (_, ratio, reach, colour) in enumerate(bars):
        ax.barh(row, ratio - 1, left=1, color=colour, height=0.62)  # to the left of 1 it is slower
        if reach:
            ax.plot(reach, (row, row), color=W, lw=1.5)
        ax.text((reach[1] if reach else ratio) * 1.04, row, f"{ratio:.2f}", va="center", color=colour, fontsize=9)
    ax.axvline(1, color=W, ls="--", lw=1)
    ax.set_xscale("log")
    high = max(max(ratio, reach[1] if reach else 0) for _, ratio, reach, _ in bars)
    low = min([0.9, *(reach[0] if reach else ratio for _, ratio, reach, _ in bars)])
    ax.set(xlim=(low * 0.95, high * 1.5), xlabel="times as fast as PyTorch, op by op")
    marks = [mark for mark in (0.5, 1, 1.5, 2, 3, 5, 10, 20) if low * 0.95 <= mark <= high * 1.5]
    ax.set_xticks(marks, labels=[f"{mark:g}" for mark in marks])
    ax.minorticks_off()
    ax.set_yticks(range(len(bars)), labels=[name for name, *_ in bars])
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    return svg(fig)


def _speed(results: Results, first: bool) -> str:
    """A table for each model; before the first the figure."""
    where, title = results["provenance"], _title(results)
    shown = [name for name in CONFIGURATIONS if any(name in _speedups(results, *run) for run in _runs(results))]
    lines = []
    for op, mode, prompt in sorted(_runs(results)):
        found = _speedups(results, op, mode, prompt)
        cells = [_interval(found[name]) if name in found else "–" for name in shown]
        lines.append([f"{op} {prompt:,}, {SHORT_MODES[mode]}", time_of(_unpatched(results, op, mode, prompt)), *cells])
    heads = ["prompt", "unpatched", *(CONFIGURATIONS[name] for name in shown)]
    picture = ""
    if first:
        picture = f"""\
![Times as fast as PyTorch: the operators alone, and models that have them](figures/{FIGURE})

*Figure 1.* What the operators gain alone, for one row, and what a model with all of them gains: {title}. Grey lines:
95 % intervals.

"""
    rounds = results["speed"]["comparisons"][0]["rounds"]
    return f"""\
{picture}{table(heads, lines)}
*{title[0].upper()}{title[1:]}.* {results["model"]["dtype"]}, batch 1, one {where["gpu"]}, torch {where["torch"]},
transformers {where["transformers"]}, commit `{where["commit"][:12]}`, {where["date"][:10]}. A decode step behind a
prompt, or a prefill, of the unpatched model, launched from Python or in a CUDA graph; then how many times as fast the
patched ones are. In brackets the 95 % interval over {rounds} paired rounds of this run, where it is wider than {WIDE}.
"""


def _operators_table(operators: list[Operator]) -> str:
    if not operators:
        return "*The operators of chapters 2 and 3 have not been measured on this GPU.*\n"
    lines = [
        [f"`{one.name}`, {one.rows:,} row{'s' * (one.rows > 1)}", time_of(one.eager), time_of(one.ours),
         f"{one.eager / one.ours:.1f} ×"]
        for one in operators
    ]  # fmt: skip
    return table(["operator", "PyTorch, op by op", "ours", "gain"], lines)


def _launches(models: list[Results]) -> str:
    names = ["unpatched", *CONFIGURATIONS]
    shown = [name for name in names if any(name in one["speed"]["operators_per_step"] for one in models)]
    lines = [
        [_title(one), *(f"{one['speed']['operators_per_step'].get(name, 0):,}" for name in shown)] for one in models
    ]
    heads = ["operators in a decode step", *(CONFIGURATIONS.get(name, name) for name in shown)]
    saved = _saved(models[0])
    return table(heads, lines) + (f"\n{saved}\n" if saved else "")


def _saved(results: Results) -> str:
    """What a launch costs: the time that fewer operators save eagerly, and in a graph."""
    counts = results["speed"]["operators_per_step"]
    fewer = counts.get("unpatched", 0) - counts.get("all", 0)
    words = []
    for op, mode, prompt in _runs(results):
        speedup = _speedups(results, op, mode, prompt).get("all")
        if op == "decode" and prompt == min(run[2] for run in _runs(results)) and speedup:
            us = _unpatched(results, op, mode, prompt)
            words.append(f"{MODES[mode]}, {_signed(us * (1 - 1 / speedup['ratio']))} of {time_of(us)}")
    if not words or fewer <= 0:
        return ""
    return f"With all of ours it has {fewer:,} operators less. That saves: {'; '.join(words)}."


def _signed(us: float) -> str:
    return time_of(us) if us > 0 else f"nothing ({time_of(-us)} more)"


def _validation(results: Results) -> str:
    validation = results["validation"]
    count = len(validation["prompts"])
    lines = []
    for arm in validation["arms"]:
        apart = [f"{parting['margin_ulps']:.1f} ulp" for parting in arm["partings"]]
        lines.append(
            [
                f"{CONFIGURATIONS[arm['configuration']]}, {ROUNDINGS[arm['rounding']]}",
                f"{arm['difference']['largest']:.3g}",
                f"{arm['difference']['top1']:.1%}",
                f"{arm['ratio']:.3f}",
                f"{arm['identical']} of {count}",
                ", ".join(apart) or "–",
            ]
        )
    heads = ["operators, rounding", "largest difference", "same top 1", "error ÷ unpatched's", "same texts", "margins"]
    lengths = ", ".join(f"{length:,}" for length in validation["prompts"])
    title = _title(results)
    return f"""\
{table(heads, lines)}
*{title[0].upper()}{title[1:]}.* Logits after prompts of {lengths} tokens, {results["model"]["dtype"]}: the largest
difference from the unpatched model, and the rms error against float64 over the unpatched model's own,
{validation["unpatched"]["rms"]:.3g}. Texts: {validation["new_tokens"]} greedy tokens. Margins: how far the unpatched
model's first and second choice lay apart where a text parts from its own.
"""


def _interval(speedup: Speedup) -> str:
    if speedup["low"] is None or speedup["high"] - speedup["low"] < WIDE:
        return f"{speedup['ratio']:.2f}"
    return f"{speedup['ratio']:.2f} ({speedup['low']:.2f}–{speedup['high']:.2f})"


def _title(results: Results) -> str:
    name = results["model"]["name"]
    return MODEL_TITLES.get(name, name)
