"""Whether build/site was built from the sources as they are now."""

from __future__ import annotations

import hashlib
from pathlib import Path

from docs.hooks import BUILD, ROOT

SITE = BUILD / "site"
_STAMP = "sources.sha256"
_FOLDERS = ("docs", "chapters", "qwen3_ref", "kernels")
_TEXT = {".md", ".py", ".js", ".css", ".svg", ".json", ".cu", ".cuh", ".cpp", ".h", ".j2", ".toml", ".ipynb", ""}


def digest() -> str:
    """Changes when any text changes that a page may show. Fonts and weights are left out."""
    found = [ROOT / "mkdocs.yml"]
    for folder in _FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in _TEXT)
    whole = hashlib.sha256()
    for path in sorted(found):
        if "__pycache__" not in path.parts and path.stat().st_size < 1 << 22:
            whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def stamp(site: Path, value: str) -> None:
    """Notes in a site that was built without a complaint what it was built from."""
    (site / _STAMP).write_text(value + "\n", encoding="utf-8")


def is_current(site: Path = SITE) -> bool:
    """Whether the site stands and shows the sources as they are."""
    path = site / _STAMP
    return path.exists() and path.read_text(encoding="utf-8").strip() == digest()
