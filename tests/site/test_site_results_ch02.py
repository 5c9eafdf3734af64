"""Chapter 2's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.hooks import ROOT, plots_ch02, results
from docs.hooks.operator_tables import time_of
from tests.site.invented import (
    captions,
    check_drawings,
    check_pictures,
    floor_us,
    kind_of,
    lesson,
    put,
    results_of,
    row_of,
    shown,
    timed,
    tree_of,
)

CHAPTER = "ch02_rms_norm"
ROWS = (1, 8, 128, 512, 1024, 8192, 32768)
COPY_GBPS, NODE_US = 4000.0, 0.75
LADDER = {"v1": 20.0, "v2": 3.0, "v3": 2.0, "v4": 1.3, "v5": 1.25}
PEERS = {"vllm": 1.5, "torch_compile": 1.4, "torch_rms_norm": 2.0, "torch_eager": 8.0, "ours_unfused": 2.0}


def case(op: str, variant: str, rows: int, slower: float, **other: Any) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    hidden, dtype = other.pop("hidden", 1024), other.get("dtype", "bfloat16")
    nbytes = (rows * (2 if op == "rms_norm" else 4) + 1) * hidden * (4 if dtype == "float32" else 2)
    measured = timed(nbytes, floor_us(nbytes, COPY_GBPS, NODE_US), slower)
    return kind_of(op, variant, **other) | measured | {"shape": {"rows": rows, "hidden": hidden}}


def all_cases() -> Iterator[dict[str, Any]]:
    for op in ("rms_norm", "add_rms_norm"):
        for rows in ROWS:
            yield case(op, "ours", rows, 1.25)
            yield case(op, "ours", rows, 1.25, hidden=1023)
            for peer, slower in PEERS.items():
                absent = {"rms_norm": "ours_unfused", "add_rms_norm": "torch_rms_norm"}[op]
                if peer != absent and (peer != "torch_compile" or rows in (1, 128, 1024, 8192)):
                    yield case(op, peer, rows, slower)
            for step, slower in LADDER.items():
                if op == "rms_norm" or step == "v5":
                    yield case(op, "ours", rows, slower, step=step)
    yield case("rms_norm", "ours", 1, 1.0, cache="warm")
    yield case("rms_norm", "ours", 8192, 1.6, dtype="float32")


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=4100.0, copy_gbps=COPY_GBPS, graph_node_us=NODE_US)


def test_chapter_2_figures_are_the_same_bytes_for_the_same_results() -> None:
    first, second = (plots_ch02.counted() | plots_ch02.plots(invented()) for _ in range(2))
    check_drawings(first, second)


def test_passages_name_figures_that_are_drawn() -> None:
    assert shown("".join(plots_ch02.texts(invented()).values())) == set(plots_ch02.plots(invented()))


def test_every_passage_of_the_lesson_is_known_and_every_known_one_is_used() -> None:
    pages = [ROOT / "chapters" / CHAPTER / "README.md", *(ROOT / "docs").glob("*.md")]
    used = set(re.findall(r"<!-- results: (?:ch02/)?(\w+) -->", pages[0].read_text(encoding="utf-8")))
    for page in pages[1:]:
        used |= set(re.findall(r"<!-- results: ch02/(\w+) -->", page.read_text(encoding="utf-8")))
    assert used == {*plots_ch02.texts(invented()), *plots_ch02.apart(ROOT)}


def test_captions_are_numbered_in_the_order_of_the_lesson() -> None:
    assert min(captions(lesson(CHAPTER), plots_ch02.texts(invented())).values()) >= 1


def test_ladder_shows_each_step_with_its_fraction_of_the_floor() -> None:
    text = plots_ch02.texts(invented())["ladder"]
    for step, slower in LADDER.items():
        if step != "v5":  # it is v4 where there is nothing to add
            row = row_of(text, step)
            assert row[1] == time_of(NODE_US * slower)
            assert row[-1] == f"{1 / slower:.0%}"
    assert row_of(text, "floor")[1] == "0.75 µs"
    assert row_of(text, "kernels/cuda")[-1] == "80%"


def test_times_have_three_digits() -> None:
    shown = [time_of(us) for us in (0.7512, 9.99, 20.94, 320.4, 1254.0)]
    assert shown == ["0.75 µs", "9.99 µs", "20.9 µs", "320 µs", "1.25 ms"]


def test_peers_stand_beside_ours_and_a_shape_without_one_has_a_dash() -> None:
    text = plots_ch02.texts(invented())["peers"]
    assert row_of(text, "8 |") == ["8", "0.75 µs", "0.94 µs", "1.12 µs", "–", "1.50 µs", "6.00 µs", "1.20 ×"]
    assert row_of(text, "128 |") == ["128", "0.75 µs", "0.94 µs", "1.12 µs", "1.05 µs", "1.50 µs", "6.00 µs", "1.12 ×"]
    assert "No other is faster at any shape" in text


def test_every_shape_on_which_another_is_faster_is_named() -> None:
    cases = list(all_cases())
    cases.append(case("rms_norm", "vllm", 512, 1.0, hidden=1023))
    faster = next(c for c in cases if (c["op"], c["variant"], c["shape"]["rows"]) == ("add_rms_norm", "vllm", 8192))
    faster["us"] = {key: value / 2 for key, value in faster["us"].items()}
    text = plots_ch02.texts(invented(cases))["peers"].replace("\u00a0", " ")
    assert "No other is faster" not in text
    assert "vLLM’s `rms_norm` at 512 × 1,023 (by 25%)" in text
    assert "vLLM’s `add_rms_norm` at 8,192 × 1,024 (by 67%)" in text
    assert row_of(text.split("`add_rms_norm`, rows")[1], "8,192")[-1] == "0.60 ×"


def test_missed_targets_are_shown_as_missed() -> None:
    cases = [c for c in all_cases() if c["variant"] != "torch_eager" or c["op"] == "add_rms_norm"]
    text = plots_ch02.texts(invented(cases))["targets"]
    assert "| **missed** |" in text  # 80 % of the copy bandwidth, and 85 % was the target
    assert "| met |" in text
    without = [c for c in cases if c["variant"] != "vllm"]
    assert "| not measured |" in plots_ch02.texts(invented(without))["targets"]


def test_copy_of_the_same_bytes_stands_beside_ours_and_is_no_rival() -> None:
    copies = [case("rms_norm", "copy", rows, 1.05) for rows in ROWS]
    text = plots_ch02.texts(invented([*all_cases(), *copies]))["peers"]
    norm, add = text.split("`add_rms_norm`, rows")
    assert "| floor | copy | ours |" in norm
    assert "copy" not in add.split("*Table 2.*")[0]
    assert row_of(norm, "8 |")[:4] == ["8", "0.75 µs", "0.79 µs", "0.94 µs"]
    assert row_of(norm, "8 |")[-1] == "1.20 ×"
    assert "No other is faster" in text


def test_peers_that_were_not_there_are_left_out() -> None:
    alone = [c for c in all_cases() if c["variant"] in ("ours", "torch_eager")]
    data = invented(alone)
    assert "vLLM" not in plots_ch02.texts(data)["peers"]
    check_pictures(plots_ch02.plots(data))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with this lesson alone."""
    return tree_of(tmp_path, CHAPTER, "docs/profiling.md")


def test_chapter_2_is_filled_and_filled_again_without_change(tree: Path) -> None:
    put(tree, CHAPTER, invented())
    page = tree / "chapters" / CHAPTER / "README.md"
    assert page in results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert "No measurement is in the repository yet" not in text
    assert results.sync(root=tree) == []
    for name in plots_ch02.plots(invented()):
        assert (page.parent / "figures" / name).exists(), name


def test_chapter_2_without_results_says_how_to_get_them(tree: Path) -> None:
    results.sync(root=tree)
    text = (tree / "chapters" / CHAPTER / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- results: ") == text.count("`make bench-chapter 2` on a GPU writes one.") >= 5
    profiling = (tree / "docs" / "profiling.md").read_text(encoding="utf-8")
    assert (
        "`python -m qwen_cuda.benchmarking.profile chapters.ch02_rms_norm.profiled` on a GPU writes one." in profiling
    )
