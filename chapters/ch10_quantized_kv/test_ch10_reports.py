"""What the lesson of quantised caches quotes is what is really said, and what it counts and computes is right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from chapters.ch10_quantized_kv import candidates, faults
from chapters.ch10_quantized_kv.combinations import TURNS, combinations_of
from chapters.ch10_quantized_kv.figures import cache_layouts, outliers
from qwen3_ref import QWEN3_0_6B, cost
from qwen3_ref.kv_quantization import hadamard_transform
from qwen3_ref.narrow_floats import decode_e4m3
from qwen_cuda.kv_cache_format import HEAD_DIMS
from qwen_cuda.testing.quotations import filled


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(outliers.FILE.read_text(encoding="utf-8"))
    return content


def words() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split()).replace(" %", "%")


def test_the_simulator_reports_the_race_of_the_transform() -> None:
    said = faults.race()
    assert re.search(r"v2_warp_per_head\.cu:\d+: reads 4 bytes .* a race with thread \d+, which writes", said)


def test_a_scale_that_is_rounded_down_saturates_and_is_in_no_report() -> None:
    x = torch.zeros(1, 1, 128).bfloat16()
    x[..., 0], x[..., 32] = 508.0, 440.0
    back = faults.given_back(faults.FAULTS["saturated"].library, x)
    assert back[0, 0, [0, 32]].tolist() == [448.0, 448.0]  # of 440 the nearest number, of 508 the largest


def test_queries_that_were_not_transformed_do_not_find_their_key() -> None:
    right, wrong = faults.attended(True)[0], faults.attended(False)[0]
    assert float((right[1] - right[0]).norm() / right[0].norm()) < 0.1
    assert float((wrong[1] - wrong[0]).norm() / wrong[0].norm()) > 0.5


def test_the_lesson_of_quantised_caches_quotes_every_report_word_for_word() -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    reports = faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch10_quantized_kv.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def test_the_data_of_the_layouts_are_those_of_the_format() -> None:
    text = cache_layouts.FILE.read_text(encoding="utf-8")
    assert text == cache_layouts.text_of(cache_layouts.content()), "run the module figures.cache_layouts"
    for one in json.loads(text)["formats"]:
        form = cache_layouts.form_of(one["name"], one["layout"])
        data, scales = form.spans(place=7, head=3)
        row = 7 * form.heads + 3
        assert data == (row * one["data_row_stride"], row * one["data_row_stride"] + one["data_bytes"])
        assert scales.start == one["scale_offset"] + row * one["scale_row_stride"]


def numbers(content: Any) -> list[float]:
    """All numbers of a JSON value, in order."""
    if isinstance(content, dict | list):
        return [n for one in (content.values() if isinstance(content, dict) else content) for n in numbers(one)]
    return [float(content)] if isinstance(content, int | float) else []


def test_the_data_of_the_outliers_are_those_of_the_checkpoint(committed: dict[str, Any]) -> None:
    """Another CPU adds in another order: to 1 %, and to a thousandth where a number is small."""
    computed = outliers.computed()
    assert computed.keys() == committed.keys()
    assert numbers(committed) == pytest.approx(numbers(computed), rel=1e-2, abs=1e-3)


def test_the_lesson_reads_the_outliers_rightly(committed: dict[str, Any]) -> None:
    gains = {
        name: [1 - after / before for before, after in (layer["errors"][name] for layer in committed["layers"])]
        for name in committed["layers"][0]["errors"]
    }
    told = {name: f"{100 * min(gain):.0f} to {100 * max(gain):.0f}%" for name, gain in gains.items()}
    assert f"**MXFP4 gains most**: its scores err by {told['MXFP4']} less" in words()
    assert f"**NVFP4 gains {told['NVFP4']}.**" in words()
    assert f"**FP8 gains {told['FP8']}**" in words()
    key = torch.tensor(committed["key"]["numbers"])
    assert int(key.abs().argmax()) == 29
    assert f"whose element 29 is {outliers.peak(key):.1f} times the root mean square" in words()
    assert f"the largest is {outliers.peak(outliers.turned(key)):.1f} times the root mean square" in words()
    assert all(4 <= layer["scores"] < 5.5 for layer in committed["layers"])


def test_scores_stay_when_both_sides_are_transformed() -> None:
    q, k = torch.randn(2, 50, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    turned = [hadamard_transform(x, 1.0) for x in (q, k)]
    assert torch.allclose(turned[0] @ turned[1].T / 128, q @ k.T, rtol=0, atol=1e-12)
    assert f"{7 * 128} additions instead of {128 * 128:,} products" in words()


def test_the_lesson_of_quantised_caches_counts_a_step() -> None:
    weights = cost.layer_weight_bytes(QWEN3_0_6B) + cost.head_weight_bytes(QWEN3_0_6B)
    plain = cost.kv_bytes_per_token(QWEN3_0_6B)

    def share(context: int) -> tuple[str, str]:
        cache = context * plain
        return f"{cache / 2**20:,.0f} MiB", f"{cache / (weights + cache):.0%}"

    (first, part), (second, other) = share(8192), share(32768)
    assert f"reads {first} of keys and values, {part} of all, and at 32,768 tokens {second}, {other}." in words()
    small = cache_layouts.token_bytes(cache_layouts.form_of("FP8", "block_wide"))

    def gain(context: int) -> str:
        return f"{(weights + context * plain) / (weights + context * small):.2f}"

    assert f"leaves {gain(8192)} times fewer bytes for a whole step, at 1,024 only {gain(1024)}." in words()
    assert f"memory: {plain / small:.2f} times as many tokens" in words()
    assert f"FP8 reads {small / plain:.3f} times the bytes of bf16" in words()


def test_the_lesson_of_quantised_caches_counts_a_write_as_the_benchmark_does() -> None:
    one, many = (candidates.work(tokens, "fp8").bytes for tokens in (1, 8192))
    each = one - 256  # without the norm's weight
    assert f"{each:,} bytes, so 8,192 tokens take at least {many / 4.8e6:.1f} µs at the 4.8 TB/s" in words()
    fused, apart = 256 + 132, 3 * 512 + 256 + 2 * 132 + 132
    assert f"five launches {apart:,} bytes, one launch {fused}" in words()
    assert f"{apart / fused:.1f} times fewer" in words()


def test_the_lesson_counts_numbers_and_combinations() -> None:
    positive = decode_e4m3(torch.arange(1, 0x7F, dtype=torch.uint8))
    assert f"| E4M3 (FP8) | 1, 4, 3 | {len(positive)} | 2⁻⁹ | {float(positive.max()):.0f} | 8 |" in words()
    assert float(positive.min()) == 2.0**-9
    legal = sum(1 for dim in HEAD_DIMS for turn in TURNS for _ in combinations_of(dim, turn))
    assert words().count(f"{legal:,}") == 2
