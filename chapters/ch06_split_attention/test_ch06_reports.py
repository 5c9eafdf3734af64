"""The lesson's quotations are what kernel, operators and exercise really do and say, and its counts are right."""

from __future__ import annotations

import re

import pytest
import torch

from chapters.ch05_grouped_attention.candidates import Shape, work
from chapters.ch06_split_attention import faults
from chapters.ch06_split_attention.attention import backend_names
from qwen3_ref import QWEN3_0_6B
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.building import Library
from qwen_cuda.testing.quotations import filled


def split_lesson() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


def test_the_kernel_as_it_is_is_right_where_each_planted_bug_is_not() -> None:
    assert faults.outcome(Library("sim", (faults.KERNEL,), "checked")) == ["right", "right"]
    for name, fault in faults.FAULTS.items():
        assert faults.outcome(fault.library) != ["right", "right"], name


def test_lesson_of_partitions_quotes_every_report_word_for_word() -> None:
    text, reports = faults.LESSON.read_text(encoding="utf-8"), faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", text)) == set(reports)
    assert filled(text, reports) == text, "run `python -m chapters.ch06_split_attention.faults sync`"
    for name, said in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", said), name


def test_lesson_of_partitions_names_every_backend() -> None:
    named = re.findall(r"^\| `(\w+)` \|", faults.LESSON.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) == set(backend_names())


@pytest.mark.parametrize(("context", "partitions"), [(512, 8), (1024, 16), (8192, 16), (32768, 16)])
def test_lesson_of_partitions_counts_bytes_as_the_benchmark_and_the_workspace_do(context: int, partitions: int) -> None:
    heads, kv_heads, dim = QWEN3_0_6B.num_attention_heads, QWEN3_0_6B.num_key_value_heads, QWEN3_0_6B.head_dim
    shape = Shape(context)
    assert (shape.query_heads, shape.kv_heads, shape.head_dim) == (heads, kv_heads, dim)
    kv = work("", shape).bytes - 2 * 2 * heads * dim  # without q and out
    layout = WorkspaceLayout(1, heads, kv_heads, dim, partitions)
    partials = 4 * sum(part.numel() for part in layout.parts(torch.empty(layout.size))[:3])
    row = f"| {context:,} | {kv / 1e6:.1f} MB | {kv / 4.8e6:.2f} µs | {partitions} | {partials / 1e3:.1f} KB |"
    assert f"{row} {2 * partials / kv:.1%} |".replace("%", " %") in split_lesson()


def test_lesson_of_partitions_counts_the_busy_sms() -> None:
    kv_heads = QWEN3_0_6B.num_key_value_heads
    assert f"{kv_heads} blocks for 132 SMs: {132 - kv_heads} of them" in split_lesson()
    assert (
        f"{132 // kv_heads} partitions for each of {kv_heads} KV heads are {132 // kv_heads * kv_heads} blocks"
        in split_lesson()
    )
