"""Chapter 8's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chapters.ch08_w8a16_head.benchmark import BATCHES, SIZES
from chapters.ch08_w8a16_head.candidates import Op, Shape, work
from docs.hooks import ROOT, plots_ch08, results
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
)

CHAPTER = "ch08_w8a16_head"
N, READ_GBPS, NODE_US = 151936, 4000.0, 0.75
LADDER = {"v1": 3.0, "v2": 2.0, "v3": 1.5}
VARIANTS: dict[tuple[Op, str], float] = {
    ("w8a16_linear", "ours"): 1.25,
    ("w8a16_linear", "vllm_machete"): 1.6,
    ("w8a16_argmax", "ours"): 1.2,
    ("w8a16_argmax", "ours_two_launches"): 1.75,
    ("bf16_linear", "cublas"): 1.3,
    ("head_argmax", "ours"): 1.1,
    ("head_argmax", "cublas"): 1.5,
}


def floor(op: Op, batch: int, k: int = 1024, group: int | None = 128) -> float:
    return floor_us(work(op, Shape(batch, k, N, group)).bytes, READ_GBPS, NODE_US)


def case(
    op: Op, variant: str, batch: int, slower: float, k: int = 1024, group: int | None = 128, **other: Any
) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    what = work(op, Shape(batch, k, N, group))
    measured = timed(what.bytes, floor(op, batch, k, group), slower)
    return kind_of(op, variant, **other) | measured | {"shape": dict(what.shape)}


def all_cases() -> Iterator[dict[str, Any]]:
    for k in SIZES:
        for batch in BATCHES:
            for (op, variant), slower in VARIANTS.items():
                yield case(op, variant, batch, slower, k)
    for step, slower in LADDER.items():
        for batch in BATCHES:
            yield case("w8a16_linear", "ours", batch, slower, step=step)
    for group in (None, 64, 32):
        yield case("w8a16_linear", "ours", 1, 1.6, group=group)


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=READ_GBPS, copy_gbps=3900.0, graph_node_us=NODE_US)


def test_chapter_8_figures_are_the_same_bytes_and_all_are_shown() -> None:
    drawn, again = (plots_ch08.counted() | plots_ch08.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join(plots_ch08.texts(invented()).values())
    assert set(drawn) <= shown(text)


def test_passages_of_chapter_8_are_all_known_and_all_used() -> None:
    assert passages(lesson(CHAPTER)) == {*plots_ch08.texts(invented()), *plots_ch08.apart(ROOT)}


def test_captions_of_chapter_8_are_numbered_in_order() -> None:
    texts = plots_ch08.apart(ROOT) | plots_ch08.texts(invented())
    texts["profile"] = texts["profile"].replace(
        "*No profile", "*Table 10.* No profile"
    )  # while nobody has measured one
    assert min(captions(lesson(CHAPTER), texts).values()) >= 7


def test_the_question_of_chapter_8_tells_time_and_bytes() -> None:
    text = plots_ch08.texts(invented())["question"]
    bf16, ours = 1.3 * floor("bf16_linear", 1), 1.25 * floor("w8a16_linear", 1)
    assert f"cuBLAS takes {time_of(bf16)} with bf16 weights, our kernel {time_of(ours)}" in text
    assert f"{bf16 / ours:.2f} × as fast, for 0.517 of the bytes." in text


def test_ladder_of_chapter_8_shows_each_step_at_each_batch() -> None:
    text = plots_ch08.texts(invented())["ladder"]
    for step, slower in (LADDER | {"kernels/cuda": 1.25}).items():
        cells = row_of(text, step)
        assert cells[1:5] == [time_of(slower * floor("w8a16_linear", batch)) for batch in BATCHES]
        assert cells[5:] == [f"{READ_GBPS / slower:,.0f}", f"{1 / slower:.0%}"]


def test_peers_of_the_head_stand_beside_ours_and_losses_are_named() -> None:
    text = plots_ch08.texts(invented())["peers"]
    least, wide = floor("w8a16_linear", 8), floor("bf16_linear", 8)
    times = [time_of(us) for us in (least, 1.25 * least, 1.6 * least, 1.3 * wide, wide)]
    assert row_of(text, "8 rows") == ["8 rows", *times, f"{1.3 * wide / 1.25 / least:.2f} ×"]
    assert "No other is faster." in text
    lost = [c for c in all_cases() if (c["variant"], c["shape"]["batch"]) != ("vllm_machete", 8)]
    text = plots_ch08.texts(invented([*lost, case("w8a16_linear", "vllm_machete", 8, 1.0)]))["peers"]
    assert "Faster than ours: Machete, int8 at 8 rows." in text.replace("\u00a0", " ")


def test_ids_by_one_launch_stand_beside_those_by_two() -> None:
    cells = row_of(plots_ch08.texts(invented())["ids"], "4 rows")
    kinds = [("w8a16_argmax", 1.2), ("w8a16_argmax", 1.75), ("head_argmax", 1.1), ("head_argmax", 1.5)]
    assert cells[1:] == [time_of(slower * floor(op, 4)) for op, slower in kinds]  # type: ignore[arg-type]


def test_groups_and_models_are_told_by_bytes_and_share() -> None:
    texts = plots_ch08.texts(invented())
    slow = time_of(1.6 * floor("w8a16_linear", 1, group=32))
    assert row_of(texts["groups"], "32 columns") == ["32 columns", "166.9 MiB", slow, "62%"]
    assert row_of(texts["groups"], "128 columns")[1] == "153.0 MiB"
    assert row_of(texts["groups"], "a whole row")[1] == "149.0 MiB"
    cells = row_of(texts["models"], "Qwen3-4B, 2,560 columns, 8 rows")
    assert cells[1:3] == [time_of(1.25 * floor("w8a16_linear", 8, 2560)), "80%"]


def test_results_of_chapter_8_with_gaps_can_be_shown() -> None:
    alone = [c for c in all_cases() if c["variant"] in ("ours", "ours_two_launches") and c["op"] != "head_argmax"]
    texts = plots_ch08.texts(invented(alone))
    assert "Machete" not in texts["peers"]
    assert row_of(texts["models"], "Qwen3-0.6B, 1,024 columns, 1 row")[-1] == "–"
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch08.plots(invented(alone)))


def test_chapter_8_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("`make bench-chapter 8` on a GPU writes one.") == len(plots_ch08.texts(invented()))
    assert text.count("`make quality-gate` with") == 2
    assert "`python -m chapters.ch08_w8a16_head.tuning` on a GPU writes one." in text
    assert "`python -m qwen_cuda.benchmarking.profile chapters.ch08_w8a16_head.profiled` on a GPU writes one." in text
    put(tree, CHAPTER, invented())
    assert page in results.sync(root=tree)
    assert "No measurement is in the repository yet" not in page.read_text(encoding="utf-8")
    assert results.sync(root=tree) == []
