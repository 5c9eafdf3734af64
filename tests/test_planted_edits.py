"""Every edit of a mutant, a fault or a tuning still fits the file it is for; found before anything is built."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen_cuda.building import Edit, Library
from qwen_cuda.building.sources import Reader
from qwen_cuda.testing.mutants import Mutant

ROOT = Path(__file__).parents[1]
HEADERS = sorted((ROOT / "kernels/cuda").rglob("*.cuh")) + sorted((ROOT / "kernels/cuda").rglob("*.h"))
KERNELS = sorted((ROOT / "kernels/cuda").glob("*.cu"))
PLANTS = re.compile(r"\bedit_of\(|\bEdit\(")
MODULES = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in sorted((ROOT / "chapters").rglob("*.py"))
    if PLANTS.search(path.read_text(encoding="utf-8"))
    and path.name != "notebook.py"  # not a module
    and not path.name.endswith("_exercise.py")  # theirs are for the exercise's own kernel, which is soon built
]


def planted(value: object) -> Iterator[tuple[tuple[Edit, ...], tuple[Path, ...]]]:
    """The edits within a module's value, those of one library together, and the sources of that library."""
    if isinstance(value, Mutant):
        yield value.edits, tuple(KERNELS)
    elif isinstance(value, Library):
        yield value.edits, value.sources
    elif isinstance(value, Edit):
        yield (value,), tuple(KERNELS)
    elif isinstance(value, dict):
        yield from planted(tuple(value.values()))
    elif isinstance(value, list | tuple) and value and all(isinstance(item, Edit) for item in value):
        yield tuple(value), tuple(KERNELS)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from planted(item)


@pytest.mark.parametrize("module", MODULES)
def test_planted_edits_fit(module: str) -> None:
    values = tuple(vars(importlib.import_module(module)).values())
    for edits, sources in set(planted(values)):
        reader = Reader(edits)
        for path in (*sources, *HEADERS):
            reader.read(path)
        reader.check_all_planted()


def test_planted_edits_are_found() -> None:
    mutants = [module for module in MODULES if module.endswith("_mutants")]
    values = [tuple(vars(importlib.import_module(module)).values()) for module in mutants]
    assert len(mutants) >= 14
    assert all(len(set(planted(value))) > 5 for value in values)
