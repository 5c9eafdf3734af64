"""Chapter 7's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from chapters.ch07_decode_gemv import chain
from chapters.ch07_decode_gemv.benchmark import OTHER_LAYERS
from chapters.ch07_decode_gemv.candidates import LAYERS, Layer, work
from chapters.ch07_decode_gemv.targets import STACK
from docs.hooks import ROOT, plots_ch07, results
from docs.hooks.operator_tables import time_of
from tests.site.invented import (
    captions,
    check_drawings,
    check_pictures,
    floor_us,
    kind_of,
    lesson,
    passages,
    put,
    results_of,
    row_of,
    shown,
    timed,
    tree_of,
)

CHAPTER = "ch07_decode_gemv"
READ_GBPS, NODE_US = 4000.0, 0.75
SLOWER = {"ours": 1.25, "ours_without_pdl": 1.5, "cublas": 4.0, "cublas_and_ours": 5.0, "torch_compile": 2.0}
STEPS = {"v1": 3.0, "v2": 2.0, "v3": 1.75, "v4": 1.5}


def case(of: Any, variant: str, slower: float, **other: Any) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    measured = timed(of.bytes, floor_us(of.bytes, READ_GBPS, NODE_US), slower)
    return kind_of(of.op, variant, **other) | measured | {"shape": of.shape}


def all_cases() -> Iterator[dict[str, Any]]:
    for of in (*map(work, LAYERS), chain.work(STACK)):
        yield from (case(of, variant, slower) for variant, slower in SLOWER.items())
        yield from (case(of, "ours", slower, step=step) for step, slower in STEPS.items())
    for layer in LAYERS:
        yield case(work(replace(layer, rows=4)), "ours", 1.6)
    yield case(work(OTHER_LAYERS[0]), "ours", 1.4)


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=READ_GBPS, copy_gbps=3900.0, graph_node_us=NODE_US)


def least(layer: Layer) -> float:
    return floor_us(work(layer).bytes, READ_GBPS, NODE_US)


def test_figures_and_passages_of_chapter_7_are_known_numbered_and_shown() -> None:
    drawn, again = (plots_ch07.counted() | plots_ch07.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    texts = plots_ch07.texts(invented()) | plots_ch07.apart(ROOT)
    page = lesson(CHAPTER)
    assert set(drawn) == shown(page + "".join(texts.values()))
    assert passages(page) == set(texts)
    counts = captions(page, texts)
    assert counts["Figure"] == 7
    assert counts["Table"] >= 7


def test_tables_of_chapter_7_say_what_was_measured() -> None:
    texts = plots_ch07.texts(invented())
    qkv, o = LAYERS[:2]
    assert f"cuBLAS takes {time_of(4 * least(o))} for O" in texts["question"]
    assert row_of(texts["ladder"], "v1, a warp for a row")[1] == time_of(3 * least(qkv))
    layer = chain.work(STACK).bytes / READ_GBPS / 1e3 / STACK.layers
    assert row_of(texts["ladder"], "kernels/cuda")[-1] == time_of(1.25 * layer)
    row = row_of(texts["peers"], "QKV")
    assert (row[2], row[3], row[-1]) == (time_of(1.25 * least(qkv)), "80%", "1.60 ×")
    assert row_of(texts["chain"], "torch.compile")[1] == time_of(2 * layer)
    assert row_of(texts["batches"], "4 rows, ours")[1] == time_of(
        1.6 * floor_us(work(replace(qkv, rows=4)).bytes, READ_GBPS, NODE_US)
    )
    assert row_of(texts["models"], "QKV, 2,560")[3] == "71%"


def test_chapter_7_is_shown_from_a_few_cases_too() -> None:
    few = [c for c in all_cases() if c["variant"] == "ours" and c["step"] is None and c["op"] != "chain"]
    texts = plots_ch07.texts(invented(few))
    assert "`make bench-chapter 7` on a GPU adds it." in texts["chain"]
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch07.plots(invented(few)))


def test_chapter_7_without_results_says_how_to_get_them_and_then_is_filled(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, CHAPTER)
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("`make bench-chapter 7` on a GPU writes one.") == 7
    put(tree, CHAPTER, invented())
    assert page in results.sync(root=tree)
    assert "No measurement is in the repository yet" not in page.read_text(encoding="utf-8")
    assert results.sync(root=tree) == []
