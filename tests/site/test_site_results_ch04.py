"""Chapter 4's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.hooks import ROOT, plots_ch04, profiles, results
from docs.hooks.operator_tables import time_of
from tests.site.invented import (
    GPU,
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

CHAPTER, OP = "ch04_paged_kv", "qk_norm_rope_cache_write"
TOKENS = (1, 2, 8, 32, 64, 128, 512, 1024, 8192, 32768)
COPY_GBPS, NODE_US = 4000.0, 0.75
LADDER = {"v1": 9.0, "v2": 6.0, "v3": 2.5, "v4": 1.6, "v5": 1.5}
PEERS = {"vllm": 3.0, "torch_compile": 2.4, "torch_eager": 40.0, "copy": 1.1}


def case(variant: str, tokens: int, slower: float, **other: Any) -> dict[str, Any]:
    """A case that takes `slower` times its floor."""
    nbytes = 16912 * tokens + 512
    measured = timed(nbytes, floor_us(nbytes, COPY_GBPS, NODE_US), slower)
    return kind_of(OP, variant, **other) | measured | {"shape": {"tokens": tokens, "heads": 16, "kv_heads": 8}}


def all_writes() -> Iterator[dict[str, Any]]:
    for tokens in TOKENS:
        yield case("ours", tokens, 1.25)
        for peer, slower in PEERS.items():
            if peer != "torch_compile" or tokens in (1, 128, 8192):
                yield case(peer, tokens, slower, nodes=34 if peer == "torch_eager" else 1)
        for step, slower in LADDER.items():
            yield case("ours", tokens, slower, step=step)
    yield case("ours", 1, 1.0, cache="warm")
    yield case("ours", 8192, 1.1, dtype="float16")


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_writes() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=4100.0, copy_gbps=COPY_GBPS, graph_node_us=NODE_US)


def profile() -> dict[str, Any]:
    """What the profiler writes, in little."""
    figures = {"time_us": 40.0, "load_sectors_per_request": 31.6, "dram_percent": 12.0}
    steps = [{"step": "v2"}, {"step": "v3"}, {}]
    kernels = [
        {"case": {"op": OP, "tokens": 8192} | step, "figures": figures | {"dram_percent": 12.0 + 30 * i}, "stalls": {}}
        for i, step in enumerate(steps)
    ]
    one = {"case": {"op": OP, "tokens": 1}, "figures": figures, "stalls": {"long_scoreboard": 4.2}}
    return {"schema": 1, "chapter": CHAPTER, "provenance": GPU, "kernels": [*kernels, one]}


def test_chapter_4_figures_are_the_same_bytes_and_all_are_shown() -> None:
    drawn, again = (plots_ch04.counted() | plots_ch04.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    text = lesson(CHAPTER) + "".join(plots_ch04.texts(invented()).values())
    assert set(drawn) <= shown(text)


def test_passages_of_chapter_4_are_all_known_and_all_used() -> None:
    known = {*plots_ch04.texts(invented()), *plots_ch04.apart(ROOT)}
    assert passages(lesson(CHAPTER)) == known


def test_captions_of_chapter_4_are_numbered_in_order() -> None:
    texts = plots_ch04.apart(ROOT) | plots_ch04.texts(invented()) | {"profile": profiles.render(profile(), table=3)}
    assert captions(lesson(CHAPTER), texts) == {"Figure": 7, "Table": 4}


def test_question_of_chapter_4_counts_the_launches_of_pytorch() -> None:
    text = " ".join(plots_ch04.texts(invented())["question"].split())
    eager = NODE_US * PEERS["torch_eager"]
    assert f"PyTorch takes {time_of(eager)} for one token, fetching the angles included" in text
    assert f"28 times: {time_of(28 * eager)}. One kernel takes {time_of(1.25 * NODE_US)}" in text


def test_ladder_of_chapter_4_shows_each_step() -> None:
    text = plots_ch04.texts(invented())["ladder"]
    for step, slower in LADDER.items():
        assert row_of(text, step)[1] == time_of(NODE_US * slower)
        assert row_of(text, step)[-1] == f"{1 / slower:.0%}"
    assert row_of(text, "kernels/cuda")[-1] == "80%"
    assert row_of(text, "version")[1:3] == ["1 token", "128 tokens"]
    drawn = plots_ch04.plots(invented())["ladder.svg"]
    lines = re.findall(r'<path d="(M [^"]+)"[^>]*stroke-linecap: square', drawn)
    assert len([line for line in lines if line.count("L ") == len(TOKENS) - 1]) == len(LADDER) + 1


def test_peers_of_the_cache_write_stand_beside_ours_and_losses_are_named() -> None:
    text = plots_ch04.texts(invented())["peers"]
    cells = ["8", "0.75 µs", "0.83 µs", "0.94 µs", "2.25 µs", "–", "30.0 µs", "2.40 ×"]
    assert row_of(text, "8 |") == cells
    assert "No other is faster" in text
    faster = [c for c in all_writes() if (c["variant"], c["shape"]["tokens"]) != ("vllm", 512)]
    lost = plots_ch04.texts(invented([*faster, case("vllm", 512, 1.0)]))["peers"]
    assert f"Faster than ours: vLLM’s `{OP}` at 512 (by 25%)." in lost.replace("\u00a0", " ")


def test_results_of_chapter_4_with_gaps_can_be_shown() -> None:
    alone = [c for c in all_writes() if c["variant"] in ("ours", "torch_eager")]
    texts = plots_ch04.texts(invented(alone))
    assert "vLLM" not in texts["peers"]
    assert "| not measured |" in texts["targets"]
    check_pictures(plots_ch04.plots(invented(alone)))


def test_profile_of_tokens_names_their_number() -> None:
    text = profiles.render(profile(), table=3)
    assert [row_of(text, f"`{OP}` {name}")[0] for name in ("v3, 8,192", "kernels/cuda, 1 ")] == [
        f"`{OP}` v3, 8,192 tokens",
        f"`{OP}` kernels/cuda, 1 token",
    ]
    assert "*Table 3.*" in text
    assert "Memory is busy for 12 % of its peak with v2, for 72 % with ours." in text


def test_tuning_of_tokens_has_a_column_for_each_number(tmp_path: Path) -> None:
    variants = {"as it is": 1.0, "8 lanes a head, 256 threads a block": 2.0}
    cases = [case(name, tokens, slower) for name, slower in variants.items() for tokens in (1, 128, 4)]
    put(tmp_path, "ch04_tuning", invented(cases))
    text = plots_ch04.apart(tmp_path)["tuning"]
    assert row_of(text, "tokens") == ["tokens", "1", "128"]
    assert row_of(text, "as it is") == ["as it is", "**0.75**", "**0.75**"]
    assert row_of(text, "8 lanes a head")[1] == "1.50"


def test_chapter_4_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- results: ") - 2 == text.count("`make bench-chapter 4` on a GPU writes one.") >= 5
    assert "`python -m chapters.ch04_paged_kv.tuning` on a GPU writes one." in text
    assert "`python -m qwen_cuda.benchmarking.profile chapters.ch04_paged_kv.profiled` on a GPU writes one." in text
    put(tree, CHAPTER, invented())
    put(tree, "ch04_profile", profile())
    assert page in results.sync(root=tree)
    assert "No measurement is in the repository yet" not in page.read_text(encoding="utf-8")
    assert "*Table 3.* What ncu read" in page.read_text(encoding="utf-8")
    assert results.sync(root=tree) == []
