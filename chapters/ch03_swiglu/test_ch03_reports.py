"""The lesson's quotations are what the simulator, the operators and the exercise really say."""

from __future__ import annotations

import re

import pytest
import torch

from chapters.ch03_swiglu import faults
from qwen_cuda.building import Library
from qwen_cuda.operators import silu_mul
from qwen_cuda.testing.quotations import filled


def test_simulator_reports_the_pack_that_is_too_many() -> None:
    said = faults.bounds()
    assert "past the end of gate_up" in said
    assert re.search(r"v2_vector_loads\.cu:\d+", said)


@pytest.mark.parametrize("planted", [False, True])
def test_stride_bug_shows_on_a_slice_alone_and_in_no_report(planted: bool) -> None:
    fault = faults.FAULTS["stride"]
    library = fault.library if planted else Library("sim", (fault.source,), "checked")
    wide = torch.randn(4, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    for gate_up, right in ((wide[:, :64].contiguous(), True), (wide[:, :64], not planted)):
        near = torch.isclose(faults.run(library, gate_up).float(), silu_mul(gate_up).float(), rtol=2**-7)
        assert bool(near[0].all())
        assert bool(near[1:].all()) == right


def test_lesson_of_swiglu_quotes_every_report_word_for_word() -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    reports = faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch03_swiglu.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def test_lesson_of_swiglu_counts_as_the_model_does() -> None:
    lesson = " ".join(faults.LESSON.read_text(encoding="utf-8").split())
    bandwidth, one_row = 4.8e6, 3072 * 2  # bytes in a µs; of a row of gate
    for tensors in (3, 5):  # gate, up, out; and silu(gate) written and read
        ns, some, many = (tensors * one_row * rows / bandwidth for rows in (1, 128, 8192))
        assert f"{1e3 * ns:.1f} ns | {some:.2f} µs | {many:.1f} µs" in lesson
    on_the_way = 4.8e12 * 600e-9
    assert f"{on_the_way / 1e6:.1f} MB, or {on_the_way / 132 / 1e3:.0f} KB for each of 132 SMs" in lesson
