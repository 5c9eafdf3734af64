"""What the lesson of the generator quotes is what is really said, and what it counts is right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chapters.ch08_w8a16_head.candidates import Shape, work
from chapters.ch11_generator import faults
from qwen3_ref import QWEN3_0_6B, cost
from qwen3_ref.gumbel import gumbel
from qwen_cuda.testing.quotations import filled

READ_TBPS, BLOCKS, THREADS, UNIT = 4.8, 16, 512, 32  # of an H200; of kernels/cuda/include/row_slice.cuh
VOCAB = QWEN3_0_6B.vocab_size


def generator_lesson() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


def test_the_lesson_of_the_generator_quotes_every_report_word_for_word() -> None:
    lesson, reports = faults.LESSON.read_text(encoding="utf-8"), faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch11_generator.faults sync`"
    assert "a race with" in reports["histogram"]
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def test_the_lesson_of_the_generator_counts_a_row_and_its_slices() -> None:
    text = generator_lesson()
    words = -(-VOCAB // UNIT)
    size = -(-words // BLOCKS) * UNIT
    assert f"seen: [b, {words}] int32" in text
    assert f"{VOCAB:,} logits, {4 * VOCAB / 1024:.1f} KiB" in text
    assert f"{size:,} logits, {4 * size / 1024:.1f} KiB" in text
    assert f"{-(-size // THREADS)} at most" in text
    assert f"would look at {-(-VOCAB // THREADS)} tokens" in text
    assert f"floor is {4 * VOCAB / READ_TBPS / 1e6:.2f} µs" in text
    source = (faults.KERNEL.parent / "include" / "row_slice.cuh").read_text(encoding="utf-8")
    for name, value in (("kMostBlocks", BLOCKS), ("kSampleThreads", THREADS), ("kSliceUnit", UNIT)):
        assert f"constexpr int {name} = {value};" in source


def test_the_lesson_of_the_generator_counts_launches_and_noise() -> None:
    text, launches = generator_lesson(), 5 * QWEN3_0_6B.num_hidden_layers + 2
    assert f"{launches} launches, or {launches + 1} if it draws at random" in text
    most = float(gumbel(np.zeros(1, np.uint32))[0])
    assert "at most 22.88 for any word" in text
    assert 22.87 < most < 22.88


@pytest.mark.parametrize("context", [128, 1024, 8192])
def test_the_lesson_of_the_generator_counts_the_floor_of_a_token(context: int) -> None:
    head, k = cost.head_weight_bytes(QWEN3_0_6B), QWEN3_0_6B.hidden_size
    nbytes = cost.layer_weight_bytes(QWEN3_0_6B) + head + context * cost.kv_bytes_per_token(QWEN3_0_6B)
    int8_head = work("w8a16_linear", Shape(1, k, VOCAB, 128)).bytes - 2 * k - 4 * VOCAB  # without x and logits
    us, fewer = nbytes / READ_TBPS / 1e6, (nbytes - head + int8_head) / READ_TBPS / 1e6
    row = f"| {context:,} | {nbytes / 1e6:,.0f} MB | {us:.0f} µs | {1e6 / us:,.0f} | {1e6 / fewer:,.0f} |"
    assert row in generator_lesson()
