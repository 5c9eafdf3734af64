"""Which of our own files a Python file depends on: the closure of its imports, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.hooks import ROOT

# Where each of our packages lives. Anything else that is imported belongs to the environment.
PACKAGES = {"qwen3_ref": ROOT, "chapters": ROOT, "qwen_cuda": ROOT / "kernels"}
_NATIVE = {".cu", ".cuh", ".cpp", ".h"}


def closure(entry: Path) -> list[Path]:
    """`entry` and all files of this repository that it imports, directly or not, sorted.

    A file that imports `qwen_cuda` depends on every native source under `kernels/` too.
    """
    found: set[Path] = set()
    waiting = [entry.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    kernels = PACKAGES["qwen_cuda"]
    if any(path.is_relative_to(kernels) for path in found):
        found |= {path for path in kernels.rglob("*") if path.suffix in _NATIVE}
    return sorted(found)


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, path.parent)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from _files(node.module, path.parent)
            for alias in node.names:  # `from package import module`
                yield from _files(f"{node.module}.{alias.name}", path.parent)


def _files(module: str, beside: Path) -> Iterator[Path]:
    """The files that importing `module` runs: the `__init__.py` of each package on the way, and the module itself."""
    parts = module.split(".")
    base = PACKAGES.get(parts[0], beside)  # a plain name may be a file beside the importer
    for depth in range(1, len(parts) + 1):
        stem = base.joinpath(*parts[:depth])
        for candidate in (stem / "__init__.py", stem.with_suffix(".py")):
            if candidate.is_file():
                yield candidate.resolve()
