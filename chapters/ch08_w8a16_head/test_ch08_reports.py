"""What is quoted of the planted bugs of chapter 8 is what the simulator and the operators really say."""

from __future__ import annotations

import re

import pytest

from chapters.ch08_w8a16_head import faults
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
    if not faults.LESSON.exists():
        pytest.skip("the lesson is not written yet")
    lesson = faults.LESSON.read_text(encoding="utf-8")
    reports = faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch08_w8a16_head.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name
