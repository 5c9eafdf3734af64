"""docs/results/<gpu>/<chapter>_tuning.json → how the variants of a kernel compare, as Markdown for the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.hooks import measured

CHOSEN = "as it is"
_NOTHING = "*No tuning is in the repository yet: `python -m {module}` on a GPU writes one.*\n"

Shape = tuple[int, ...]


def passage(root: Path, name: str, module: str, op: str, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    """The table of the main GPU's tuning, or how to make one.

    Args:
        name: of the results file, such as "ch02_tuning"; `module` writes it.
        op: the operator whose times are shown; `names` are those of the numbers of its shape, such as rows and size.
        shapes: the columns, where the choice turns: these numbers.
    """
    results = measured.stored(root, name)
    return render(results, op, names, shapes) if results else _NOTHING.format(module=module)


def render(results: dict[str, Any], op: str, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    """Markdown of a results file: µs by variant and shape; the fastest of each column stands in bold."""
    times: dict[str, dict[Shape, float]] = {}
    for case in results["cases"]:
        if case["op"] == op:
            shape = tuple(case["shape"][name] for name in names)
            times.setdefault(case["variant"], {})[shape] = case["us"]["median"]
    columns = [shape for shape in shapes if shape in times[CHOSEN]]
    best = {column: min(of[column] for of in times.values() if column in of) for column in columns}
    lines = [
        f"| {' × '.join(names)} | " + " | ".join(" × ".join(f"{n:,}" for n in shape) for shape in columns) + " |",
        "|---|" + "---:|" * len(columns),
        *(f"| {name} | {' | '.join(_cell(of.get(c), best[c]) for c in columns)} |" for name, of in times.items()),
        "",
        f"µs of `{op}`, bfloat16, cold, one {results['provenance']['gpu']},",
        f"commit `{results['provenance']['commit'][:12]}`. Bold: the fastest, and what lies within 1 % of it.",
        "",
    ]
    return "\n".join(lines)


def _cell(us: float | None, best: float) -> str:
    if us is None:
        return "–"
    text = f"{us:.2f}" if us < 10 else f"{us:.1f}"
    return f"**{text}**" if us <= 1.01 * best else text
