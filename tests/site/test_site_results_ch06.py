"""Chapter 6's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.plan_table import name_of
from docs.hooks import ROOT, partition_plans, plots_ch06, results, tables_ch06
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

CHAPTER = "ch06_split_attention"
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
READ_GBPS, NODE_US = 4000.0, 0.75
PEERS = {"sdpa": 1.5, "sdpa_cudnn": 1.5, "flashinfer": 2.0, "vllm_v1": 9.0}
MAIN = "16/8 × 128"


def case(variant: str, context: int, slower: float, batch: int = 1, heads: str = MAIN, **other: Any) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    nbytes = 4096 * context * batch
    measured = timed(nbytes, floor_us(nbytes, READ_GBPS, NODE_US), slower)
    shape = {"context": context, "batch": batch, "heads": heads}
    return kind_of(other.pop("op", "paged_attention"), variant, **other) | measured | {"shape": shape}


def all_cases() -> Iterator[dict[str, Any]]:
    for context in CONTEXTS:
        yield case("ours", context, 1.25)
        yield case("ours_long_graph", context, 2.5 if context == 128 else 1.3)
        yield case("ours_grouped", context, 1.25 if context == 128 else 10.0)
        if context > 128:
            yield case("ours_two_launches", context, 1.4)
            yield case("ours_last_block", context, 1.3)
            yield case("ours_cluster", context, 1.25 if context <= 1024 else 2.0)
            yield case("ours_cluster", context, 1.1, op="fused_decode_attention")
        yield case("ours", context, 1.1, op="fused_decode_attention")
        yield case("in_turn", context, 1.8, op="fused_decode_attention")
        for peer, slower in PEERS.items():
            yield case(peer, context, slower)
    for batch, context in ((4, 1024), (16, 1024), (4, 8192)):
        yield case("ours", context, 1.2, batch)
        yield case("sdpa", context, 1.1 if batch == 16 else 1.3, batch)
    for context in (128, 1024, 8192):
        yield case("ours", context, 2.0, heads="32/8 × 128")
        yield case("ours", context, 1.3, dtype="float16")


def invented(cases: list[dict[str, Any]] | None = None, chapter: str = CHAPTER) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(chapter, found, read_gbps=READ_GBPS, copy_gbps=3900.0, graph_node_us=NODE_US)


def plans() -> dict[str, Any]:
    """Plans of which the fastest has 16 partitions in all, by whatever size; those of 64 tokens are 10 % slower."""
    cases = []
    for batch in (1, 4):
        for context in (128, 1024, 8192):
            for count in (1, 2, 4, 8, 16, 32):
                if count == 1 or context >= 64 * count:
                    slower = 1 + abs(count * batch - 16) / 16
                    cases += [
                        case(name_of(Plan(size, count)), context, slower * more, batch)
                        for size, more in ((64, 1.1), (128, 1.0))
                    ]
                    cases.append(case(name_of(Plan(128, count)), context, 0.5, batch, op="fused_decode_attention"))
            if context > 128:
                cases.append(case(name_of(Plan(128, 8, "cluster")), context, 1.4, batch))
    return invented(cases, "ch06_plans")


def with_plans(tmp_path: Path) -> Path:
    put(tmp_path, "ch06_plans", plans())
    return tmp_path


def test_chapter_6_figures_are_the_same_bytes_and_all_are_shown(tmp_path: Path) -> None:
    root = with_plans(tmp_path)
    drawn, again = (plots_ch06.counted() | plots_ch06.plots(invented()) | plots_ch06.drawn(root) for _ in range(2))
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join((plots_ch06.texts(invented()) | plots_ch06.apart(root)).values())
    assert set(drawn) <= shown(text)


def test_passages_of_chapter_6_are_all_known_and_all_used() -> None:
    known = {*plots_ch06.texts(invented()), *plots_ch06.apart(ROOT)}
    assert passages(lesson(CHAPTER)) == known


def test_captions_of_chapter_6_are_numbered_in_order(tmp_path: Path) -> None:
    texts = plots_ch06.apart(with_plans(tmp_path)) | plots_ch06.texts(invented())
    counts = captions(lesson(CHAPTER), texts)
    assert counts["Figure"] >= 8
    assert counts["Table"] >= 9


def test_question_of_chapter_6_says_what_eight_blocks_reach() -> None:
    text = plots_ch06.texts(invented())["question"]
    floor = 4096 * 8192 / READ_GBPS / 1e3
    assert f"At\n8,192 tokens it takes {time_of(10 * floor)} where {time_of(floor)} would do" in text
    assert "400 GB/s, with 8 of 132 SMs, or 50 GB/s for each of them" in text


def test_ways_stand_side_by_side_and_the_crossing_is_named() -> None:
    text = plots_ch06.texts(invented())["ways"]
    assert row_of(text, "chapter 5’s kernel")[1:3] == [time_of(1.25 * NODE_US), time_of(10 * NODE_US)]
    assert row_of(text, "partitions, merged by a second launch")[1] == "–"
    assert row_of(text, "partitions, merged by a cluster")[1:3] == ["–", time_of(1.25 * NODE_US)]
    assert row_of(text, "by the table |")[1] == time_of(1.25 * NODE_US)
    assert "faster up to 128 tokens, partitions from 512 tokens on." in text
    same = [c for c in all_cases() if c["variant"] != "ours_grouped"]
    always = [*same, *(case("ours_grouped", context, 99.0) for context in CONTEXTS)]
    never = [*same, *(case("ours_grouped", context, 1.0) for context in CONTEXTS)]
    assert tables_ch06.crossing(tables_ch06.with_heads(invented(always))) == "Partitions are faster at every context."
    assert "One block a KV head is faster at every" in tables_ch06.crossing(tables_ch06.with_heads(invented(never)))


def test_the_fused_form_stands_beside_its_parts_and_may_be_missing() -> None:
    text = plots_ch06.texts(invented())["fused"]
    floor = 4096 * 8192 / READ_GBPS / 1e3
    assert row_of(text, "the write, then attention")[-2] == time_of(1.8 * floor)
    assert row_of(text, "fused, merged by a cluster")[1] == "–"
    assert row_of(text, "fused, by the table")[-2] == time_of(1.1 * floor)
    without = [c for c in all_cases() if c["op"] == "paged_attention"]
    assert "`make bench-chapter 6` on a GPU adds it." in plots_ch06.texts(invented(without))["fused"]


def test_peers_of_attention_stand_beside_ours_and_losses_are_named() -> None:
    text = plots_ch06.texts(invented())["peers"]
    floor = 4096 * 8192 / READ_GBPS / 1e3
    times = [time_of(floor * slower) for slower in (1, 1.25, 1.5, 1.5, 2.0, 9.0)]
    assert row_of(text, "8,192 |") == ["8,192", *times, "1.20 ×"]
    assert "PyTorch’s SDPA’s `paged_attention` at 1,024 × 16 (by 9%)" in text.replace("\u00a0", " ")
    assert "Not measured" not in text


def test_batches_and_other_models_have_their_lines() -> None:
    texts = plots_ch06.texts(invented())
    floor = 16 * 4096 * 1024 / READ_GBPS / 1e3
    assert row_of(texts["batched"], "16 × 1,024")[:4] == [
        "16 × 1,024",
        time_of(floor),
        time_of(1.2 * floor),
        time_of(1.1 * floor),
    ]
    assert row_of(texts["models"], "32/8 × 128, 8,192")[-1] == "50%"
    assert row_of(texts["models"], "16/8 × 128, 8,192")[-1] == "80%"


def test_plans_take_the_best_size_and_mark_the_fastest() -> None:
    found = partition_plans.times(plans())
    floor = 4096 * 8192 / READ_GBPS / 1e3
    assert found[1, 8192][16] == pytest.approx(floor)
    assert partition_plans.fewest(found[1, 8192]) == 16
    assert partition_plans.fewest({1: 5.04, 2: 5.0, 4: 6.0}) == 1


def test_tables_of_plans_name_the_fewest_that_are_as_good(tmp_path: Path) -> None:
    texts = partition_plans.passages(with_plans(tmp_path))
    assert row_of(texts["plans"], "8,192")[5] == f"**{4096 * 8192 / READ_GBPS / 1e3:.2f}**"
    assert row_of(texts["plans"], "8,192")[4] == f"{1.4 * 4096 * 8192 / READ_GBPS / 1e3:.1f}", "by a cluster"
    assert row_of(texts["plans"], "128")[3:] == ["–"] * 4
    assert row_of(texts["batches"], "1, or 8 KV heads") == ["1, or 8 KV heads", "2", "16", "16"]
    assert row_of(texts["batches"], "4, or 32 KV heads") == ["4, or 32 KV heads", "2", "4", "4"]


def test_results_of_chapter_6_with_gaps_can_be_shown() -> None:
    alone = [c for c in all_cases() if c["variant"].startswith("ours") and c["shape"]["batch"] == 1]
    texts = plots_ch06.texts(invented(alone))
    assert "Not measured: PyTorch’s SDPA, cuDNN, FlashInfer, vLLM v1." in texts["peers"]
    assert texts["batched"] == "*No batch has been measured.*\n"
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch06.plots(invented(alone)))
    quick = [c for c in alone if c["shape"]["context"] in (128, 1024)]
    assert "At\n1,024 tokens it takes" in plots_ch06.texts(invented(quick))["question"]


def test_chapter_6_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("`make bench-chapter 6` on a GPU writes one.") == len(plots_ch06.texts(invented()))
    assert text.count("`python -m chapters.ch06_split_attention.plan_table` on a GPU writes them.") == 2
    assert "`python -m chapters.ch06_split_attention.tuning` on a GPU writes one." in text
    assert not (page.parent / "figures" / "plans.svg").exists()
    put(with_plans(tree), CHAPTER, invented())
    assert {page, page.parent / "figures" / "plans.svg"} <= set(results.sync(root=tree))
    text = page.read_text(encoding="utf-8")
    assert "No measurement is in the repository yet" not in text
    assert "No plans are in the repository yet" not in text
    assert results.sync(root=tree) == []
