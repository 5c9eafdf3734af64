"""docs/results/<gpu>/ch02_tuning.json → how the shapes of block of rms_norm.cu compare, as Markdown for the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.hooks import ROOT

MAIN_GPU = "h200"
CHOSEN = "as it is"
_NOTHING = "*No tuning is in the repository yet: `python -m chapters.ch02_rms_norm.tuning` on a GPU writes one.*\n"
_SHOWN = {1024: (1, 1024, 4096, 8192, 32768), 4096: (1, 512, 1024, 8192)}  # hidden size → rows: where the choice turns


def passage(root: Path = ROOT) -> str:
    """The table of the main GPU's tuning, or how to make one."""
    found = sorted((root / "docs" / "results").glob("*/ch02_tuning.json"), key=lambda p: (p.parent.name != MAIN_GPU, p))
    return render(json.loads(found[0].read_text(encoding="utf-8"))) if found else _NOTHING


def render(results: dict[str, Any]) -> str:
    """Markdown of a results file: µs of `rms_norm` by shape of block; the fastest of each column stands in bold."""
    columns = [(hidden, rows) for hidden, counts in _SHOWN.items() for rows in counts]
    times: dict[str, dict[tuple[int, int], float]] = {}
    for case in results["cases"]:
        if case["op"] == "rms_norm":
            shape = case["shape"]["hidden"], case["shape"]["rows"]
            times.setdefault(case["variant"], {})[shape] = case["us"]["median"]
    columns = [column for column in columns if column in times[CHOSEN]]
    best = {column: min(of[column] for of in times.values() if column in of) for column in columns}
    lines = [
        "| rows × hidden size | " + " | ".join(f"{rows:,} × {hidden:,}" for hidden, rows in columns) + " |",
        "|---|" + "---:|" * len(columns),
        *(f"| {name} | {' | '.join(_cell(of.get(c), best[c]) for c in columns)} |" for name, of in times.items()),
        "",
        f"µs of `rms_norm`, bfloat16, cold, one {results['provenance']['gpu']},",
        f"commit `{results['provenance']['commit'][:12]}`. Bold: the fastest, and what lies within 1 % of it.",
        "",
    ]
    return "\n".join(lines)


def _cell(us: float | None, best: float) -> str:
    if us is None:
        return "–"
    text = f"{us:.2f}" if us < 10 else f"{us:.1f}"
    return f"**{text}**" if us <= 1.01 * best else text
