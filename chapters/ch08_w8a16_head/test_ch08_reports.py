"""What the lesson of the head quotes of planted bugs is what is really said, and what it counts is right."""

from __future__ import annotations

import json
import math
import re

import pytest

from chapters.ch08_w8a16_head import faults
from chapters.ch08_w8a16_head.candidates import Shape, work
from chapters.ch08_w8a16_head.quality_gate.agreement import interval
from chapters.ch08_w8a16_head.quality_gate.gate import AGREEMENT, MARGIN
from chapters.ch08_w8a16_head.quality_gate.prompts import LEAST_TEXTS, LEAST_TOKENS
from chapters.ch08_w8a16_head.targets import K, N
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.building import ROOT
from qwen_cuda.operators import w8a16_linear
from qwen_cuda.testing.quotations import filled


def test_the_simulator_reports_the_tail_of_x() -> None:
    said = faults.tail()
    assert "past the end of x" in said
    assert re.search(r"v1_four_bytes_a_lane\.cu:\d+", said)


def test_bytes_without_sign_are_wrong_and_in_no_report() -> None:
    of = faults.operands()
    out = faults.run(faults.FAULTS["unsigned"].library, of)
    assert not out.isclose(w8a16_linear(*of, out_dtype=out.dtype), rtol=0.1, atol=0.1).all()


def test_the_lesson_of_the_head_quotes_every_report_word_for_word() -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    reports = faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch08_w8a16_head.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def words() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split()).replace(" %", "%")


@pytest.mark.parametrize("group", [None, 128, 64, 32])
def test_the_lesson_of_the_head_counts_bytes_as_the_benchmark_does(group: int | None) -> None:
    scales = 4 * N * K // (group or K)
    weight = work("w8a16_linear", Shape(1, K, N, group)).bytes - 2 * K - 4 * N  # without x and logits
    assert weight == N * K + scales
    name = f"{group} columns" if group else "a whole row"
    cells = (
        f"{scales / 2**20:.2f} MiB | {weight / 2**20:.2f} MiB | {weight / (2 * N * K):.3f} | {weight / 4.8e6:.1f} µs"
    )
    assert f"| {name} | {cells} |" in words()
    assert (QWEN3_0_6B.vocab_size, QWEN3_0_6B.hidden_size) == (N, K)


def test_the_lesson_of_the_head_says_what_a_step_saves() -> None:
    head, small = cost.head_weight_bytes(QWEN3_0_6B), N * (K + 4 * K // 128)
    weights = cost.layer_weight_bytes(QWEN3_0_6B) + head
    saved = f"{(head - small) / 2**20:.1f} MiB less are read for each token, and {small / 2**20:.0f} MiB more are held"
    assert saved in words()
    assert f"{(head - small) / weights:.0%} of a token's weight bytes" in words()

    def ratio(context: int) -> str:
        read = weights + context * cost.kv_bytes_per_token(QWEN3_0_6B)
        return f"{read / (read - head + small):.2f}"

    assert f"{ratio(128)} times fewer in a short step, {ratio(8192)} at 8,192 tokens and {ratio(32768)}" in words()


def test_the_lesson_of_the_head_reads_published_shares_rightly() -> None:
    assert [f"{agreed / 160:.5g}" for agreed in (159, 154, 158)] == ["0.99375", "0.9625", "0.9875"]
    (low, high), (least, most) = interval(159, 160), interval(154, 160)
    assert f"anything from {low:.1%} to {high:.1%}, behind 154 of 160 from {least:.1%} to {most:.1%}" in (
        words().replace("96.5 to", "96.5% to").replace("92.1 to", "92.1% to")
    )
    assert low < most
    assert 2 * sum(math.comb(7, i) for i in (0, 1)) / 2**7 == 1 / 8  # seven flips, 1 to 6 or worse, on either side
    assert f"refuses fewer than {LEAST_TEXTS * LEAST_TOKENS} in all" in words()
    assert f"when {AGREEMENT:.0%} of choices are the same *and* none changed where" in words()
    assert f"more than {MARGIN} ahead" in words()


def test_the_judgements_of_the_repository_say_what_the_lesson_says() -> None:
    """Int8 passes on the tiny checkpoint without a flip, int4 does not pass; smaller groups err less and weigh more."""
    judged = {
        name: json.loads((ROOT / f"docs/results/cpu/quality_gate_tiny_{name}.json").read_text(encoding="utf-8"))
        for name in ("head", "all", "all_int4")
    }
    for name, results in judged.items():
        assert results["chapter"] == f"quality_gate_tiny_{name}"
        assert results["passed"] == (name != "all_int4")
        variants = {arm["group"]: arm for arm in results["variants"]}
        assert list(variants) == ([None, 128, 64, 32] if results["passed"] else [])
        for larger, smaller in zip(list(variants.values())[:-1], list(variants.values())[1:], strict=True):
            assert larger["weight_error"] > smaller["weight_error"]
            assert larger["bytes"] < smaller["bytes"]
            assert larger["flips"] == smaller["flips"] == 0
    assert 0.0065 < judged["head"]["quantized"]["weight_error"] < 0.008
