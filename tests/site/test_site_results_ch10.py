"""Chapter 10's measured passages and figures: true to the results, losses included, also to results with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch10_quantized_kv import fused_candidates as fused
from chapters.ch10_quantized_kv.candidates import work
from docs.hooks import ROOT, cache_quality, plots_ch10, profiles, results
from docs.hooks.operator_tables import time_of
from docs.hooks.tables_ch10 import CACHES, OP, PLAIN_READER, READER
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

CHAPTER = "ch10_quantized_kv"
TOKENS, CONTEXTS = (1, 128, 1024, 8192), ((1, 1024), (1, 8192), (8, 8192))
GBPS, NODE_US = 4000.0, 0.75
WRITERS = {"ours": 1.25, "ours_unfused": 4.0, "torch_eager": 20.0, "copy": 1.1}
LADDER = {"v1": 6.0, "v2": 2.0}
READERS = dict(zip(CACHES, (1.5, 1.7, 1.6, 2.0, 1.9), strict=True))
FUSED = {"ours": 2.0, "in_turn": 5.0}
ROW_BYTES = dict(zip(CACHES, (256, 132, 132, 72, 72), strict=True))


def floor(tokens: int, name: str = "fp8") -> float:
    return floor_us(work(tokens, name).bytes, GBPS, NODE_US)


def written(variant: str, tokens: int, slower: float, name: str = "fp8", **other: Any) -> dict[str, Any]:
    """A case of the writer that takes `slower` times its floor."""
    what = work(tokens, name)
    return kind_of(OP, variant, **other) | timed(what.bytes, floor(tokens, name), slower) | {"shape": dict(what.shape)}


def read(cache: str, batch: int, context: int) -> dict[str, Any]:
    """A case of the reader."""
    nbytes = 2 * 8 * batch * context * ROW_BYTES[cache]
    shape: dict[str, Any] = {"context": context, "batch": batch, "heads": "16/8 × 128"}
    op = PLAIN_READER if cache == "bf16" else READER
    shape |= {} if cache == "bf16" else {"format": cache}
    return kind_of(op, "ours") | timed(nbytes, floor_us(nbytes, GBPS, NODE_US), READERS[cache]) | {"shape": shape}


def in_one_or_two(variant: str, name: str, context: int) -> dict[str, Any]:
    """A case of the fused form, or of the two launches that it joins."""
    what = fused.work(name, Shape(context))
    us = floor_us(what.bytes, GBPS, NODE_US)
    return kind_of(fused.OP, variant) | timed(what.bytes, us, FUSED[variant]) | {"shape": dict(what.shape)}


def all_cases() -> Iterator[dict[str, Any]]:
    for name in ("fp8", "nvfp4"):
        for tokens in TOKENS:
            for variant, slower in WRITERS.items():
                yield written(variant, tokens, slower, name)
            for step, slower in LADDER.items():
                yield written("ours", tokens, slower, name, step=step)
    for cache in CACHES:
        for batch, context in CONTEXTS:
            yield read(cache, batch, context)
    for name in fused.FORMATS:
        for variant in FUSED:
            yield in_one_or_two(variant, name, 8192)


def invented(cases: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Results in the schema, with figures of no machine."""
    found = all_cases() if cases is None else cases
    return results_of(CHAPTER, found, read_gbps=GBPS, copy_gbps=GBPS, graph_node_us=NODE_US)


def judged(passed: bool = True) -> dict[str, Any]:
    """A judgement of two caches."""
    arm = {
        "tokens": 1000,
        "flips": 2,
        "agreement": 0.998,
        "agreement_interval": [0.99, 0.999],
        "logit_error": {"mean": 0.01, "max": 0.2},
        "kl_nats": {"mean": 1e-5},
        "perplexity": {"change": 0.001},
    }
    asked = {"asked": 20, "found": 15, "lost": []}
    caches = [
        arm | {"format": "fp8", "hadamard": transform, "bytes": 528, "passed": passed, "recall": asked}
        for transform in (True, False)
    ]
    return {
        "judged": True,
        "provenance": dict(GPU),
        "criteria": {"agreement": 0.99, "recall": 0.95},
        "model": {"name": "tiny", "bf16_bytes": 1024},
        "texts": {"file": "stories.json", "count": 20, "tokens": 50},
        "needles": {"asked": 24, "context": [300, 500], "reference": 20},
        "rounding": arm | {"recall": asked | {"found": 20}},
        "caches": caches,
    }


def all_texts() -> dict[str, str]:
    """Every passage, with captions where nobody has measured yet."""
    texts = plots_ch10.apart(ROOT) | plots_ch10.texts(invented())
    texts["quality"] = cache_quality.render(judged(), 4)
    texts["profile"] = texts["profile"].replace("*No profile", "*Table 8.* No profile")
    return texts


def test_chapter_10_figures_are_the_same_bytes_and_all_are_shown() -> None:
    drawn, again = (plots_ch10.counted() | plots_ch10.plots(invented()) for _ in range(2))
    check_drawings(drawn, again)
    assert set(drawn) <= shown(lesson(CHAPTER) + "".join(plots_ch10.texts(invented()).values()))


def test_passages_of_chapter_10_are_all_known_and_all_used() -> None:
    assert passages(lesson(CHAPTER)) == {*plots_ch10.texts(invented()), *plots_ch10.apart(ROOT)}


def test_captions_of_chapter_10_are_numbered_in_order() -> None:
    assert min(captions(lesson(CHAPTER), all_texts()).values()) >= 8


def test_the_question_of_chapter_10_compares_caches_at_8192_tokens() -> None:
    text = plots_ch10.texts(invented())["question"]
    plain, small = (2 * 8 * 8192 * size / GBPS / 1e3 for size in (256 * 1.5, 132 * 1.6))
    assert f"At 8,192 tokens bf16 takes {time_of(plain)}; FP8 {time_of(small)}, {plain / small:.2f} × as fast" in text
    assert "for 0.52 of the bytes" in text


def test_the_ladder_of_chapter_10_shows_each_step() -> None:
    text = plots_ch10.texts(invented())["ladder"]
    for step, slower in (LADDER | {"kernels/cuda": 1.25}).items():
        assert row_of(text, step)[1:5] == [time_of(slower * floor(tokens)) for tokens in TOKENS]


def test_writers_stand_side_by_side_and_losses_are_named() -> None:
    text = plots_ch10.texts(invented())["writers"]
    least = floor(8192)
    times = [time_of(slower * least) for slower in (1.0, 1.1, 1.25, 4.0, 20.0)]
    assert row_of(text, "8,192") == ["8,192", *times, f"{4 / 1.25:.2f} ×"]
    assert "FP8: No other is faster at any shape that was measured." in text
    slow = [case for case in all_cases() if (case["variant"], case["shape"].get("tokens")) != ("ours_unfused", 1)]
    text = plots_ch10.texts(invented([*slow, written("ours_unfused", 1, 1.0)]))["writers"]
    assert "Faster than ours: ours, in turn’s" in text


def test_readers_are_compared_with_bf16_by_context() -> None:
    cells = row_of(plots_ch10.texts(invented())["readers"], "8,192 tokens")
    times = [2 * 8 * 8192 * ROW_BYTES[cache] / GBPS / 1e3 * slower for cache, slower in READERS.items()]
    assert cells[1:6] == [time_of(us) for us in times]
    assert cells[6:] == [f"{times[0] / times[2]:.2f} ×", f"{times[0] / times[4]:.2f} ×"]
    assert row_of(plots_ch10.texts(invented())["readers"], "8 × 8,192 tokens")


def test_one_launch_stands_beside_two() -> None:
    text = plots_ch10.texts(invented())["fused"]
    least = [floor_us(fused.work(name, Shape(8192)).bytes, GBPS, NODE_US) for name in fused.FORMATS]
    cells = [cell for us in least for cell in (time_of(5.0 * us), time_of(2.0 * us), "2.50 ×")]
    assert row_of(text, "8,192 tokens") == ["8,192 tokens", *cells]
    assert "*Not measured yet: `make bench-chapter 10`" in plots_ch10.texts(invented([]))["fused"]


def test_a_judgement_of_caches_says_what_passed() -> None:
    text = cache_quality.render(judged(passed=False), 4)
    figures = ["2 of 1,000", "99.80% (99.0% to 99.9%)", "0.01, 0.2", "1.0e-05", "+0.10%"]
    assert row_of(text, "FP8, transformed") == ["FP8, transformed", "0.52", *figures, "15 of 20", "**not passed**"]
    assert row_of(text, "FP8 |")[-1] == "**not passed**"
    assert row_of(text, "bf16") == ["bf16 rounding", "1", *figures, "20 of 20", ""]
    assert "24 questions about what was said 300 to 500 tokens before" in text


def test_a_profile_names_tokens_and_format() -> None:
    figures = {"time_us": 12.0, "load_sectors_per_request": 8.0, "dram_percent": 80.0}
    cases = [
        {"op": OP, "step": "v1", "tokens": 8192, "format": "fp8"},
        {"op": READER, "context": 1024, "format": "fp8"},
    ]
    kernels = [{"case": case, "figures": figures, "stalls": {}} for case in cases]
    text = profiles.render({"provenance": dict(GPU), "kernels": kernels}, 7)
    assert row_of(text, f"`{OP}` v1, 8,192 × fp8")[1] == "12.0"
    assert row_of(text, f"`{READER}` kernels/cuda, 1,024 × fp8")


def test_results_of_chapter_10_with_gaps_can_be_shown() -> None:
    for alone in (
        [case for case in all_cases() if case["op"] == OP and case["shape"]["format"] == "nvfp4"],
        [case for case in all_cases() if case["op"] != OP and case["shape"].get("format") != "fp8_sections"],
        [],
    ):
        texts = plots_ch10.texts(invented(alone))
        assert "not measured" in texts["targets"]
        check_pictures(plots_ch10.plots(invented(alone)))


def test_chapter_10_without_results_says_how_to_get_them_and_then_is_filled(tree: Path) -> None:
    page = tree / "chapters" / CHAPTER / "README.md"
    results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert text.count("`make bench-chapter 10` on a GPU writes one.") == len(plots_ch10.texts(invented()))
    assert "*No judgement of caches is in the repository yet" in text
    assert "`python -m chapters.ch10_quantized_kv.tuning` on a GPU writes one." in text
    assert "`python -m qwen_cuda.benchmarking.profile chapters.ch10_quantized_kv.profiled` on a GPU writes one." in text
    put(tree, CHAPTER, invented())
    cases = [written("as it is", tokens, 1.0, name) for tokens in (1, 8192) for name in ("nvfp4", "fp8")]
    put(tree, "ch10_tuning", results_of("ch10_tuning", cases))
    put(tree, "ch10_quality", judged(), gpu="cpu")
    assert page in results.sync(root=tree)
    text = page.read_text(encoding="utf-8")
    assert "is in the repository yet" not in text.replace("*No profile is in the repository yet", "")
    assert row_of(text, "as it is")[1:] == [f"**{floor(1):.2f}**", f"**{floor(8192):.1f}**"]
    assert results.sync(root=tree) == []
