"""Results of several runs in one file: a run of some contenders or some prompts adds to what was measured before.

That holds on one machine at one commit only. What another commit has measured is replaced, and never mixed in.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwen_cuda.benchmarking import Ceilings

Results = dict[str, Any]
_SAME = ("commit", "gpu", "driver", "torch", "cuda", "transformers")


def merged(path: Path | None, new: Results) -> tuple[Results, str | None]:
    """`new`, with what the file holds beside it; and a sentence if there is a file that cannot be used."""
    if path is None or not path.exists():
        return new, None
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        if old["end_to_end"]["runs"] == new["end_to_end"]["runs"] and old["provenance"] == new["provenance"]:
            return new, None  # this run has written it
        reason = _other(old, new)
    except (ValueError, KeyError, TypeError):
        reason = "it is no file of such results"
    if reason is not None:
        return new, f"{path.name} is written anew: {reason}."
    return _joined(old, new), None


def _other(old: Results, new: Results) -> str | None:
    """Why both do not belong together."""
    if old["provenance"]["commit"] == "unknown":
        return "nobody knows of which commit its figures are"
    for name in _SAME:
        if old["provenance"].get(name) != new["provenance"].get(name):
            return f"its {name} is {old['provenance'].get(name)}, and now it is {new['provenance'].get(name)}"
    for name in ("model", "max_length"):
        if old["end_to_end"][name] != new["end_to_end"][name]:
            return f"its {name} is another"
    return None


def _joined(old: Results, new: Results) -> Results:
    mine, theirs = new["end_to_end"], old["end_to_end"]
    ceilings = Ceilings(**old["ceilings"]).best(Ceilings(**new["ceilings"]))
    return new | {
        "ceilings": dataclasses.asdict(ceilings),
        "notes": list(dict.fromkeys((*old["notes"], *new["notes"]))),
        "cases": _kept(old["cases"], new["cases"], lambda c: (c["op"], c["variant"], c["dtype"], *c["shape"].items())),
        "end_to_end": mine
        | {
            "bounds": theirs["bounds"] | mine["bounds"],
            "memory": _kept(theirs["memory"], mine["memory"], lambda one: (one["variant"], one["prompt"])),
            "ratios": _kept(
                theirs["ratios"], mine["ratios"], lambda one: (one["op"], one["prompt"], one["of"], one["over"])
            ),
            "runs": _kept(theirs["runs"], mine["runs"], lambda one: one["date"]),
        },
    }


def _kept(old: list[Results], new: list[Results], key: Callable[[Results], object]) -> list[Results]:
    """All new ones, and the old ones that were not measured again, which stand first."""
    again = {key(one) for one in new}
    return [*(one for one in old if key(one) not in again), *new]
