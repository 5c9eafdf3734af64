"""Which of the files of docs/results/<gpu> the site shows: the main GPU's, else that of the first GPU that has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN_GPU = "h200"


def stored_file(root: Path, name: str) -> Path | None:
    """The file `name`.json that is shown; None where nobody has measured it."""
    found = (root / "docs" / "results").glob(f"*/{name}.json")
    return min(found, key=lambda path: (path.parent.name != MAIN_GPU, path), default=None)


def stored(root: Path, name: str) -> dict[str, Any] | None:
    """What it holds."""
    path = stored_file(root, name)
    if path is None:
        return None
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results
