"""Measured numbers in lessons: figures and passages come from docs/results, reproducibly, and are current."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs.hooks import plots_ch01, results
from qwen3_ref import QWEN3_0_6B
from qwen3_ref.cost import PhaseCost, decode_cost, prefill_cost
from tests.site.invented import check_drawings, put, results_of

CHAPTER = "ch01_math_reference"


def invented_results() -> dict[str, Any]:
    """Results in the schema with figures of no machine: ceilings of 1000 GB/s and 100 TFLOP/s, all at half speed."""
    cases: list[dict[str, Any]] = []

    def add(op: str, variant: str, step: str | None, shape: dict[str, Any], cost: PhaseCost) -> None:
        floor = cost.floor_us(1000, 100)
        case: dict[str, Any] = {
            "op": op,
            "variant": variant,
            "step": step,
            "shape": shape,
            "dtype": "bfloat16",
            "cache": "cold",
        }
        us = {"p10": 2 * floor, "median": 2 * floor, "p90": 2 * floor}
        case |= {"bytes": cost.bytes, "flops": cost.flops, "us": us, "floor_us": floor, "floor_fraction": 0.5}
        cases.append(case)

    for variant, step in (("ours", "v3"), ("transformers", None), ("transformers_no_cudnn", None)):
        for length in (128, 1024):
            for model in ("tiny", "0.6B"):
                add("decode", variant, step, {"model": model, "context": length}, decode_cost(QWEN3_0_6B, length))
                add("prefill", variant, step, {"model": model, "tokens": length}, prefill_cost(QWEN3_0_6B, length))
    for variant, step in (("ours", "v1"), ("ours", "v2"), ("ours", "v3"), ("transformers", None)):
        for new_tokens in (16, 64):
            shape = {"model": "tiny", "prompt": 32, "new_tokens": new_tokens}
            rate = {"p10": 90.0, "median": 100.0, "p90": 110.0}
            cases.append({"op": "generate", "variant": variant, "step": step, "shape": shape, "tok_s": rate})
    return results_of(CHAPTER, cases, read_gbps=1000.0, copy_gbps=900.0, matmul_tflops={"bfloat16": 100.0})


def test_what_the_repository_holds_is_current() -> None:
    assert results.sync(check=True) == [], "run `python docs/hooks/results.py sync`"


def test_figures_are_the_same_bytes_for_the_same_results_and_well_formed() -> None:
    first, second = (plots_ch01.counted() | plots_ch01.plots(invented_results()) for _ in range(2))
    check_drawings(first, second)


def test_a_lesson_is_filled_and_filled_again_without_change(tree: Path) -> None:
    put(tree, CHAPTER, invented_results())
    lesson = tree / "chapters" / CHAPTER / "README.md"
    written = results.sync(root=tree)
    assert lesson in written
    text = lesson.read_text()
    assert "No measurement is in the repository yet" not in text
    assert "| decode, 0.6B bfloat16, context 1,024 | 2.6 ms | 2.6 ms | 2.6 ms | 1.3 ms | 50.0% |" in text
    assert "2 times the\nfloor" in text or "2 times the floor" in " ".join(text.split())
    assert results.sync(root=tree) == []
    for name in re.findall(r"\((figures/[\w-]+\.svg)\)", text):
        assert (lesson.parent / name).exists(), name


def test_without_results_a_lesson_says_how_to_get_them(tree: Path) -> None:
    results.sync(root=tree)
    text = (tree / "chapters" / CHAPTER / "README.md").read_text()
    passages = text.count("<!-- results: ")
    assert passages == text.count("`make bench-chapter 1` on a GPU writes one.") >= 4


def test_the_main_gpu_goes_before_others(tree: Path) -> None:
    other = invented_results()
    other["provenance"]["gpu"] = "NVIDIA A100"
    put(tree, CHAPTER, other, "a100")
    results.sync(root=tree)
    lesson = tree / "chapters" / CHAPTER / "README.md"
    assert "one NVIDIA A100" in lesson.read_text()
    put(tree, CHAPTER, invented_results())
    results.sync(root=tree)
    assert "one NVIDIA H200" in lesson.read_text()
    assert "A100" not in lesson.read_text()


def test_unknown_passages_and_schemas_are_refused(tree: Path) -> None:
    put(tree, CHAPTER, invented_results())
    lesson = tree / "chapters" / CHAPTER / "README.md"
    lesson.write_text(lesson.read_text().replace("results: one-token", "results: two-tokens"))
    with pytest.raises(results.ResultsError, match="no results named 'two-tokens'; there are one-token"):
        results.sync(root=tree)
    put(tree, CHAPTER, invented_results() | {"schema": 2})
    with pytest.raises(results.ResultsError, match="schema is 2; it must be 1"):
        results.sync(root=tree)
