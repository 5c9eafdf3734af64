"""Chapter 5's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chapters.ch05_grouped_attention.benchmark import BATCHED, CONTEXTS, LADDER_CONTEXTS, OTHER_HEADS
from chapters.ch05_grouped_attention.targets import OP
from docs.hooks import plots_ch05, results
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

CHAPTER = "ch05_grouped_attention"
READ_GBPS, NODE_US = 4000.0, 0.5
LADDER = {"v1": 12.0, "v2": 8.0, "v3": 4.0, "v4": 2.5}
PEERS = {"sdpa": 3.0, "sdpa_cudnn": 2.9, "vllm_v1": 9.0}
OURS = 2.0
MAIN = (16, 8, 128)


def bytes_of(context: int, batch: int, heads: tuple[int, int, int] = MAIN) -> int:
    query, kv, dim = heads
    return 4 * batch * (context * kv + query) * dim


def floor(context: int, batch: int, heads: tuple[int, int, int] = MAIN) -> float:
    return floor_us(bytes_of(context, batch, heads), READ_GBPS, NODE_US)


def case(
    variant: str, context: int, batch: int, slower: float, heads: tuple[int, int, int] = MAIN, **other: Any
) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    query, kv, dim = heads
    shape: dict[str, Any] = {"context": context, "batch": batch, "heads": f"{query}/{kv} × {dim}"}
    if "block_size" in other:
        shape["block_size"] = other.pop("block_size")
    measured = timed(bytes_of(context, batch, heads), floor(context, batch, heads), slower)
    return kind_of(OP, variant, **other) | measured | {"shape": shape}


def all_cases() -> Iterator[dict[str, Any]]:
    shapes = [*((context, 1) for context in CONTEXTS), *((context, batch) for batch, context in BATCHED)]
    for context, batch in shapes:
        yield case("ours", context, batch, OURS)
        for peer, slower in PEERS.items():
            yield case(peer, context, batch, slower)
    for step, slower in LADDER.items():
        for context, batch in (*((context, 1) for context in LADDER_CONTEXTS), (1024, 64)):
            yield case("ours", context, batch, slower, step=step)
    for heads in OTHER_HEADS:
        for batch in (1, 16):
            yield case("ours", 1024, batch, 1.6, heads)
    yield case("ours", 1024, 16, 4.0, block_size=8)
    yield case("ours", 1024, 16, 1.25, dtype="float16")


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=READ_GBPS, copy_gbps=3900.0, graph_node_us=NODE_US)


def test_chapter_5_figures_are_the_same_bytes_and_all_are_shown() -> None:
    drawn, again = (plots_ch05.counted() | plots_ch05.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join(plots_ch05.texts(invented()).values())
    assert set(drawn) <= shown(text)


def test_passages_of_chapter_5_are_all_known_and_all_used() -> None:
    assert passages(lesson(CHAPTER)) == set(plots_ch05.texts(invented()))


def test_captions_of_chapter_5_are_numbered_in_order() -> None:
    texts = plots_ch05.texts(invented())
    assert min(captions(lesson(CHAPTER), texts).values()) >= 6


def test_ladder_of_chapter_5_shows_each_step_at_each_shape() -> None:
    text = plots_ch05.texts(invented())["ladder"]
    for step, slower in (LADDER | {"kernels/cuda": OURS}).items():
        cells = row_of(text, step)
        shapes = ((128, 1), (1024, 1), (8192, 1), (1024, 64))
        assert cells[1:5] == [time_of(slower * floor(*shape)) for shape in shapes]
        assert cells[5:] == [f"{READ_GBPS / slower:,.0f}", f"{1 / slower:.0%}"]


def test_the_question_of_chapter_5_names_the_best_of_the_others() -> None:
    text = plots_ch05.texts(invented())["question"]
    many = floor(1024, 64)
    ours, best, apart = (time_of(many * slower) for slower in (OURS, PEERS["sdpa_cudnn"], LADDER["v1"]))
    assert f"For 64 sequences of 1,024 tokens our kernel takes {ours}" in text
    assert f"the best of the others {best} (cuDNN), and head by head it is {apart}." in text


def test_peers_of_attention_stand_beside_ours_and_losses_are_named() -> None:
    text = plots_ch05.texts(invented())["peers"]
    least = floor(4096, 64)
    times = [time_of(least * slower) for slower in (1.0, OURS, *PEERS.values())]
    assert row_of(text, "64 × 4,096") == ["64 × 4,096", *times, "1.45 ×"]
    assert "No other is faster at any shape of the table." in text
    quick = case("sdpa", 8192, 1, 1.0)
    cases = [quick if (c["variant"], c["shape"]) == ("sdpa", quick["shape"]) else c for c in all_cases()]
    assert "Another is faster at 1\u00a0×\u00a08,192." in plots_ch05.texts(invented(cases))["peers"]


@pytest.mark.parametrize(("slower", "word"), [(20.0, "less"), (1.25, "more")])
def test_what_one_sequence_reaches_is_held_against_the_share_of_an_sm(slower: float, word: str) -> None:
    others = [c for c in all_cases() if (c["variant"], c["step"], c["shape"]["context"]) != ("ours", None, 8192)]
    text = " ".join(plots_ch05.texts(invented([*others, case("ours", 8192, 1, slower)]))["alone"].split())
    gbps = READ_GBPS / slower
    assert f"{gbps:,.0f} GB/s, {1 / slower:.0%} of the 4,000 at which this card reads" in text
    assert f"Each of the 8 SMs at work reads {gbps / 8:.0f} GB/s." in text
    assert f"each would get 30: the busy ones do {word} than their share, and 124 do nothing." in text


def test_other_heads_and_pages_have_a_line_each() -> None:
    text = plots_ch05.texts(invented())["shapes"]
    assert row_of(text, "64/8 × 128, pages of 16, bfloat16")[-1] == f"{1 / 1.6:.0%}"
    assert row_of(text, "16/8 × 128, pages of 8, bfloat16")[1:] == ["–", time_of(4 * floor(1024, 16)), "25%"]
    assert row_of(text, "16/8 × 128, pages of 16, float16")[-1] == "80%"


def test_results_of_chapter_5_with_gaps_can_be_shown() -> None:
    for keep in (lambda c: c["variant"] == "ours" and c["step"] is None, lambda c: c["shape"]["context"] == 1024):
        some = invented([c for c in all_cases() if keep(c)])
        texts = plots_ch05.texts(some)
        assert "| not measured |" in texts["targets"]
        check_pictures(plots_ch05.plots(some))
    alone = plots_ch05.texts(invented([c for c in all_cases() if c["variant"] == "ours" and c["step"] is None]))
    assert "vLLM v1" not in row_of(alone["peers"], "sequences")
    assert "v1" not in alone["ladder"].replace("kernels/cuda", "").partition("*Table")[0]


def test_chapter_5_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- results: ") == text.count("`make bench-chapter 5` on a GPU writes one.") == 6
    put(tree, CHAPTER, invented())
    assert page in results.sync(root=tree)
    assert "No measurement is in the repository yet" not in page.read_text(encoding="utf-8")
    assert results.sync(root=tree) == []
