"""Invented results, and what the tests of every lesson's measured passages do with them."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.hooks import ROOT

GPU = {"gpu": "NVIDIA H200", "sms": 132, "driver": "1", "torch": "2", "commit": "0" * 40, "date": "2026-01-01T00"}


def results_of(chapter: str, cases: Iterable[dict[str, Any]], **ceilings: Any) -> dict[str, Any]:
    """A results file in the schema, with figures of no machine; `ceilings` in GB/s, µs and TFLOP/s as it names them."""
    ceilings = {"matmul_tflops": {}} | ceilings
    head = {"schema": 1, "chapter": chapter, "provenance": dict(GPU), "ceilings": ceilings}
    return head | {"notes": [], "cases": list(cases)}


def floor_us(nbytes: int, gbps: float, node_us: float) -> float:
    """The least time, in µs: of the bytes at `gbps`, and of one node of a CUDA graph."""
    return max(nbytes / gbps / 1e3, node_us)


def timed(nbytes: int, floor: float, slower: float) -> dict[str, Any]:
    """The measured part of a case of `nbytes` that takes `slower` times its floor, which is in µs."""
    us = floor * slower
    speed = {"gbps": nbytes / us / 1e3, "floor_us": floor, "floor_fraction": 1 / slower}
    return {"bytes": nbytes, "us": {"p10": us, "median": us, "p90": us}} | speed


def kind_of(op: str, variant: str, **other: Any) -> dict[str, Any]:
    """The part of a case that says what was measured: our bfloat16, cold, unless `other` says otherwise."""
    return {"op": op, "variant": variant, "step": None, "dtype": "bfloat16", "cache": "cold", "nodes": 1} | other


def row_of(text: str, first: str) -> list[str]:
    """The row of a table that begins with `first`."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def lesson(chapter: str) -> str:
    """The text of a chapter's lesson."""
    return (ROOT / "chapters" / chapter / "README.md").read_text(encoding="utf-8")


def passages(text: str) -> set[str]:
    """The names of the passages in a page that results fill."""
    return set(re.findall(r"<!-- results: ([\w/-]+) -->", text))


def shown(text: str) -> set[str]:
    """The file names of the figures that a text shows."""
    return set(re.findall(r"\(figures/([\w-]+\.svg)\)", text))


def check_pictures(pictures: dict[str, str]) -> None:
    """There are pictures, and each is well-formed."""
    assert pictures
    for name, text in pictures.items():
        assert ET.fromstring(text).tag.endswith("svg"), name


def check_drawings(first: dict[str, str], second: dict[str, str]) -> None:
    """Two drawings of the same results are the same bytes, and each picture is well-formed."""
    assert first == second
    check_pictures(first)


def captions(page: str, texts: dict[str, str]) -> dict[str, int]:
    """How many figures and tables `page` counts, its passages replaced by `texts`; asserts that it does so in order."""
    place = re.compile(r"<!-- results: (\w+) -->.*?<!-- end of results -->", re.DOTALL)
    filled = place.sub(lambda match: texts[match[1]], page)
    counts = {}
    for kind in ("Figure", "Table"):
        numbers = [int(number) for number in re.findall(rf"^\*{kind} (\d+)\.\*", filled, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), kind
        counts[kind] = len(numbers)
    return counts


def tree_of(root: Path, chapter: str, *more: str) -> Path:
    """Makes `root` a repository with the lesson of `chapter`, the module that draws its figures, and `more` files."""
    plots = f"docs/hooks/plots_{chapter.partition('_')[0]}.py"
    for name in (plots, f"chapters/{chapter}/README.md", *more):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def put(tree: Path, name: str, data: dict[str, Any], gpu: str = "h200") -> Path:
    """Writes docs/results/<gpu>/<name>.json."""
    path = tree / "docs" / "results" / gpu / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
