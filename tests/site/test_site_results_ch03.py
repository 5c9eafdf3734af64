"""Chapter 3's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.hooks import ROOT, plots_ch03, results
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

CHAPTER = "ch03_swiglu"
ROWS = (1, 8, 128, 512, 1024, 8192, 32768)
COPY_GBPS, NODE_US = 4000.0, 0.75
LADDER = {"v1": 2.0, "v2": 1.6, "v3": 1.3}
PEERS = {"vllm": 1.5, "torch_compile": 1.4, "torch_eager": 4.0, "torch_eager_unpacked": 3.0, "ours_hf_rounding": 1.3}
LINEAR = {"gate_up_linear": 6144, "qkv_linear": 4096}


def case(op: str, variant: str, shape: dict[str, int], nbytes: int, slower: float, **other: Any) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    measured = timed(nbytes, floor_us(nbytes, COPY_GBPS, NODE_US), slower)
    return kind_of(op, variant, **other) | measured | {"shape": shape}


def product(variant: str, rows: int, slower: float, size: int = 3072, **other: Any) -> dict[str, Any]:
    return case("silu_mul", variant, {"rows": rows, "size": size}, 6 * rows * size, slower, **other)


def all_products() -> Iterator[dict[str, Any]]:
    for rows in ROWS:
        yield product("ours", rows, 1.25)
        yield product("ours", rows, 2.5, size=3001)
        for peer, slower in PEERS.items():
            if peer != "torch_compile" or rows in (1, 128, 1024, 8192):
                yield product(peer, rows, slower)
        for step, slower in LADDER.items():
            yield product("ours", rows, slower, step=step)
    yield product("ours", 1, 1.0, cache="warm")
    yield product("ours", 8192, 1.6, dtype="float32")
    for op, n in LINEAR.items():
        for rows in (1, 8, 128):
            shape, nbytes = {"rows": rows, "k": 1024, "n": n}, 2048 * n
            yield case(op, "cublas_packed", shape, nbytes, 1.5)
            yield case(op, "cublas_apart", shape, nbytes, 3.0, nodes=2)


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_products() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=4100.0, copy_gbps=COPY_GBPS, graph_node_us=NODE_US)


def test_chapter_3_figures_are_the_same_bytes_and_all_are_shown() -> None:
    drawn, again = (plots_ch03.counted() | plots_ch03.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join(plots_ch03.texts(invented()).values())
    assert set(drawn) <= shown(text)


def test_passages_of_chapter_3_are_all_known_and_all_used() -> None:
    known = {*plots_ch03.texts(invented()), *plots_ch03.apart(ROOT)}
    assert passages(lesson(CHAPTER)) == known


def test_captions_of_chapter_3_are_numbered_in_order() -> None:
    texts = plots_ch03.apart(ROOT) | plots_ch03.texts(invented())
    assert min(captions(lesson(CHAPTER), texts).values()) >= 5


def test_ladder_of_chapter_3_shows_each_step() -> None:
    text = plots_ch03.texts(invented())["ladder"]
    for step, slower in LADDER.items():
        assert row_of(text, step)[1] == time_of(NODE_US * slower)
        assert row_of(text, step)[-1] == f"{1 / slower:.0%}"
    assert row_of(text, "kernels/cuda")[-1] == "80%"


def test_packing_shows_launches_and_what_they_cost() -> None:
    text = plots_ch03.texts(invented())["packing"]
    floor = 2048 * 6144 / COPY_GBPS / 1e3
    expected = ["2, 1", time_of(floor), time_of(3 * floor), time_of(1.5 * floor), "2.00 ×"]
    assert row_of(text, "gate and up, 8 rows")[1:] == expected
    assert row_of(text, "q, k and v, 128 rows")[1] == "3, 1"


def test_peers_of_silu_mul_stand_beside_ours_and_losses_are_named() -> None:
    text = plots_ch03.texts(invented())["peers"]
    assert row_of(text, "8 |") == ["8", "0.75 µs", "0.94 µs", "1.12 µs", "–", "3.00 µs", "1.20 ×"]
    assert "No other is faster" in text
    hf, ours = (time_of(NODE_US * slower) for slower in (PEERS["ours_hf_rounding"], 1.25))
    assert f"With `hf_rounding` ours takes {hf} instead of {ours} for 1 row and" in text
    assert "On two matrices instead of packed rows PyTorch takes 2.25 µs instead of 3.00 µs for 1 row and" in text
    lost = plots_ch03.texts(invented([*all_products(), product("vllm", 512, 1.0, size=3001)]))["peers"]
    assert "vLLM’s `silu_mul` at 512 × 3,001 (by 150%)" in lost.replace("\u00a0", " ")


def test_results_of_chapter_3_with_gaps_can_be_shown() -> None:
    alone = [c for c in all_products() if c["variant"] in ("ours", "torch_eager")]
    texts = plots_ch03.texts(invented(alone))
    assert "vLLM" not in texts["peers"]
    assert "hf_rounding" not in texts["peers"]
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch03.plots(invented(alone)))


def test_chapter_3_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- results: ") - 2 == text.count("`make bench-chapter 3` on a GPU writes one.") >= 5
    assert "`python -m chapters.ch03_swiglu.tuning` on a GPU writes one." in text
    assert "`python -m qwen_cuda.benchmarking.profile chapters.ch03_swiglu.profiled` on a GPU writes one." in text
    put(tree, CHAPTER, invented())
    assert page in results.sync(root=tree)
    assert "No measurement is in the repository yet" not in page.read_text(encoding="utf-8")
    assert results.sync(root=tree) == []
