"""Chapter 9's measured passages and figures: true to the results, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chapters.ch09_graph_capture.benchmark import CONTEXTS, ROWS
from chapters.ch09_graph_capture.targets import OP
from docs.hooks import ROOT, plots_ch09, results, step_parts, timeline_ch09
from docs.hooks.operator_tables import time_of
from tests.site.invented import (
    GPU,
    captions,
    check_drawings,
    check_pictures,
    kind_of,
    lesson,
    passages,
    put,
    results_of,
    row_of,
    shown,
    timed,
)

CHAPTER = "ch09_graph_capture"
SLOWER = {"v1": 8.0, "v2": 2.5, "v3": 1.6, "v4": 1.25, "v5": 1.2}


def floor(context: int, rows: int) -> float:
    return 250.0 + context * rows / 40


def all_cases() -> Iterator[dict[str, Any]]:
    for context in CONTEXTS:
        for rows in ROWS:
            for step, slower in SLOWER.items():
                measured = timed(10**9, floor(context, rows), slower)
                yield kind_of(OP, "ours", step=step) | measured | {"shape": {"context": context, "rows": rows}}


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    return results_of(CHAPTER, all_cases() if cases is None else cases, read_gbps=4000.0, copy_gbps=3900.0)


def recorded() -> dict[str, Any]:
    """Two timelines of no machine: kernels with a gap, and kernels that overlap."""
    apart = {"launches": [[0.0, 3.0], [4.0, 7.0]], "kernels": [["a", 5.0, 7.0], ["b", 9.0, 15.0]]}
    over = {"launches": [[0.0, 4.0]], "kernels": [["a", 5.0, 10.0], ["b", 8.0, 13.0]]}
    return {"schema": 1, "chapter": "ch09_timeline", "provenance": dict(GPU), "context": 1024,
            "timelines": {"v1": apart, "v4": over}}  # fmt: skip


def put_parts(tree: Path) -> None:
    """All that a step's parts are read from. A layer takes 10 µs, and by context a thousandth of it for attention."""
    put(tree, CHAPTER, invented())
    layers = [
        kind_of("decoder_layer", way) | timed(20_000_000, 5.0, slower) | {"shape": {"context": context}}
        for context in (128, 192, 1024, 8192)
        for way, slower in (("without attention", 2.0), ("1 × 192, auto", 2 + context / 5000), ("in turn", 9.0))
    ]
    put(tree, "ch06_in_a_layer", results_of("ch06_in_a_layer", layers, read_gbps=4000.0))
    head = kind_of("head_argmax", "ours") | {"shape": {"batch": 1, "k": 1024, "n": 151936}} | timed(10**8, 25.0, 1.2)
    put(tree, "ch08_w8a16_head", results_of("ch08_w8a16_head", [head], read_gbps=4000.0))


def test_a_step_is_the_sum_of_its_parts(tree: Path) -> None:
    """Attention is that of the context that the steps are nearest to: 160 tokens in the mean, the longer of two."""
    put_parts(tree)
    products, attention, head, rest = step_parts.parts_of_steps(tree)[128]
    whole = SLOWER["v5"] * floor(128, 1)
    assert (products.us, head.us) == pytest.approx((280, 30))
    assert attention.us == pytest.approx(28 * 0.192)
    assert rest.us == pytest.approx(whole - 310 - attention.us)
    assert (products.floor_us, head.floor_us, rest.floor_us) == pytest.approx((140, 25, 0))
    assert attention.floor_us == pytest.approx(160 * 28 * 2 * 8 * 128 * 2 / 4000 / 1e3, rel=0.01)
    text = step_parts.passage(tree, 5, 6)
    assert row_of(text, "head")[1:] == ["30.0 µs (+5)"] * 3
    assert row_of(text, "a step")[1].startswith(time_of(whole))
    (tree / "docs" / "results" / "h200" / "ch08_w8a16_head.json").unlink()
    assert step_parts.passage(tree, 5, 6) == "*Not all of a step's parts have been measured yet.*\n"
    assert step_parts.figures(tree) == {}


def test_chapter_9_figures_are_the_same_bytes_and_all_are_shown(tree: Path) -> None:
    put_parts(tree)
    put(tree, "ch09_timeline", recorded())
    drawn, again = (
        plots_ch09.counted() | plots_ch09.plots(invented()) | plots_ch09.drawn(tree) for _ in range(2)
    )  # fmt: skip
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join((plots_ch09.texts(invented()) | plots_ch09.apart(tree)).values())
    assert set(drawn) == shown(text)


def test_passages_of_chapter_9_are_known_used_and_numbered_in_order(tree: Path) -> None:
    put_parts(tree)
    put(tree, "ch09_timeline", recorded())
    texts = plots_ch09.texts(invented()) | plots_ch09.apart(tree)
    assert passages(lesson(CHAPTER)) == set(texts)
    assert captions(lesson(CHAPTER), texts) == {"Figure": 5, "Table": 7}


def test_ladder_of_chapter_9_shows_each_version_at_each_context() -> None:
    texts = plots_ch09.texts(invented())
    for step, slower in SLOWER.items():
        times = [slower * floor(context, 1) for context in CONTEXTS]
        reached = [f"{1e6 / times[1]:,.0f}", f"{1 / slower:.0%}"]
        assert row_of(texts["ladder"], step)[1:] == [*map(time_of, times), *reached]
    assert f"a step takes {time_of(8 * floor(1024, 1))}, where its bytes need {time_of(floor(1024, 1))}: 12%" in (
        texts["question"].replace("\n", " ")
    )


def test_rows_of_chapter_9_are_compared_from_end_to_end() -> None:
    cells = row_of(plots_ch09.texts(invented())["rows"], "8 rows")
    times = [slower * floor(1024, 8) for slower in SLOWER.values()]
    assert cells[1:] == [*map(time_of, times), "6.67 ×", "1.33 ×", f"{8e6 / times[-1]:,.0f}"]


def test_results_of_chapter_9_with_gaps_can_be_shown() -> None:
    some = [case for case in all_cases() if case["step"] in ("v2", "v3") and case["shape"]["context"] == 128]
    texts = plots_ch09.texts(invented(some))
    assert row_of(texts["ladder"], "v3")[2:] == ["–"] * 4
    assert row_of(texts["rows"], "1 row")[1:] == ["–"] * 8
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch09.plots(invented(some)))


def test_a_timeline_is_counted_by_what_runs_at_once() -> None:
    of = recorded()["timelines"]
    assert timeline_ch09.shares(of["v1"]["kernels"]) == (10.0, 8.0, 0.0)
    assert timeline_ch09.shares(of["v4"]["kernels"]) == (8.0, 8.0, 2.0)


def test_chapter_9_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("`make bench-chapter 9` on a GPU writes one.") == len(plots_ch09.texts(invented()))
    assert "`python -m chapters.ch09_graph_capture.timeline` on a GPU writes one." in text
    put(tree, CHAPTER, invented())
    put(tree, "ch09_timeline", recorded())
    assert page in results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert "is in the repository yet" not in text
    assert row_of(text, "v4, dependent launches | 1")[1:] == ["1", "2", "8.00 µs", "100%", "0%", "25%"]
    assert results.sync(root=tree) == [], ROOT
