"""docs/results/<gpu>/quality_gate_*.json → what int8 weights change in a model's answers: two tables.

`apart` of docs/hooks/plots_ch08.py takes these passages over.
"""

from __future__ import annotations

from pathlib import Path

from docs.hooks import measured
from docs.hooks.operator_tables import Results, table

PREFIX = "quality_gate_"
_NOTHING = (
    "*No judgement is in the repository yet: `make quality-gate` with "
    '`ARGS="--variants --output docs/results/NAME/quality_gate_MODEL_LAYERS.json"` writes one.*\n'
)


def passages(root: Path, tables: tuple[int, int] = (1, 2)) -> dict[str, str]:
    """Name of a passage → its Markdown. `tables` are the numbers of the two tables on their page."""
    judged = sorted((results for results in _all(root) if results.get("judged")), key=_place)
    compared = [results for results in judged if results["variants"]]
    return {
        "quality": _quality(judged, tables[0]) if judged else _NOTHING,
        "variants": _variants(compared, tables[1]) if compared else _NOTHING,
    }


def _all(root: Path) -> list[Results]:
    """One of each name: of the main GPU, else of the first folder that has it."""
    names = sorted({path.stem for path in (root / "docs" / "results").glob(f"*/{PREFIX}*.json")})
    return [results for name in names if (results := measured.stored(root, name)) is not None]


def _place(results: Results) -> tuple[str, bool, int]:
    """Model by model; the head before all layers, and more bits before fewer."""
    quantized = results["quantized"]
    return results["model"]["name"], quantized["layers"] != "head", -quantized["bits"]


def _quality(judged: list[Results], number: int) -> str:
    lines: list[list[str]] = []
    for results in judged:
        model, quantized = results["model"]["name"], results["quantized"]
        for arm in (results["rounding"], quantized):
            margins = [flip["margin"] for flip in arm.get("flipped", [])]
            verdict = ("passed" if results["passed"] else "**not passed**") if arm is quantized else ""
            line = [
                f"{model}: {arm['name']}",
                *choices(arm),
                f"{max(margins):.2g}" if margins else "–",
                *errors(arm),
                f"{arm['perplexity']['change']:+.2%}",
                verdict,
            ]
            if line not in lines:  # the bf16 noise of a model is the same whatever is judged beside it
                lines.append(line)
    heads = ["model: weights", "flips", "same top 1", "widest margin", "error of a logit: mean, max", "KL, nats",
             "perplexity", ""]  # fmt: skip
    where = "; ".join(dict.fromkeys(_where(results) for results in judged))
    criteria = judged[0]["criteria"]
    return f"""\
{table(heads, lines)}
*Table {number}.* Each model against itself in fp32, on texts that it was not trained on: {where}.
In brackets the 95 % interval. It passes with at least {criteria["agreement"]:.0%} of its likeliest tokens unchanged,
and no flip where the reference's choice was more than {criteria["margin"]} ahead.
"""


def _variants(judged: list[Results], number: int) -> str:
    lines = [
        [
            f"{results['model']['name']}: {arm['name']}",
            f"{arm['bytes'] / 2**20:,.1f} MiB",
            f"{arm['bytes'] / arm['bf16_bytes']:.3f}",
            f"{arm['weight_error']:.2%}",
            *errors(arm),
            str(arm["flips"]),
        ]
        for results in judged
        for arm in results["variants"]
    ]
    heads = [
        "model: weights",
        "bytes",
        "÷ bf16",
        "their rms error",
        "error of a logit: mean, max",
        "KL, nats",
        "flips",
    ]
    return f"""\
{table(heads, lines)}
*Table {number}.* The same layers with other groups, on the same texts.
"""


def choices(arm: Results) -> tuple[str, str]:
    """Cells: tokens chosen otherwise, and the share of the others with its interval."""
    low, high = arm["agreement_interval"]
    return f"{arm['flips']} of {arm['tokens']:,}", f"{arm['agreement']:.2%} ({low:.1%} to {high:.1%})"


def errors(arm: Results) -> tuple[str, str]:
    """Cells: error of a logit, mean and largest, and the mean KL."""
    error = arm["logit_error"]
    return f"{error['mean']:.2g}, {error['max']:.2g}", f"{arm['kl_nats']['mean']:.1e}"


def _where(results: Results) -> str:
    texts, provenance = results["texts"], results["provenance"]
    machine = provenance["gpu"] or "a CPU"
    return (
        f"{results['model']['name']} on {texts['count']} × {texts['tokens']} tokens of `{texts['file']}`, {machine}, "
        f"commit `{provenance['commit'][:12]}`, {provenance['date'][:10]}"
    )
