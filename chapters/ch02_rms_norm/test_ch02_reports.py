"""The lesson's quotations are what the simulator, the operators and the exercise really say."""

from __future__ import annotations

import re

import pytest

from chapters.ch02_rms_norm import faults
from qwen_cuda.testing.quotations import filled


@pytest.mark.parametrize("name", faults.FAULTS)
def test_simulator_reports_the_planted_bug_at_its_line(name: str) -> None:
    fault = faults.FAULTS[name]
    said = faults.report(fault)
    clue = {"barrier": "race", "bounds": "past the end of x", "mask": "mask"}[name]
    assert clue in said
    assert re.search(rf"{fault.step}\.cu:\d+", said)


def test_lesson_quotes_every_report_word_for_word() -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(faults.reports())
    assert filled(lesson, faults.reports()) == lesson, "run `python -m chapters.ch02_rms_norm.faults sync`"


def test_reports_name_no_address_and_no_folder() -> None:
    for name, text in faults.reports().items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


@pytest.mark.parametrize("page", ["README.md", "exercise/README.md"])
def test_debugger_is_sent_to_a_line_inside_a_kernel(page: str) -> None:
    stops = re.findall(
        r"^\(gdb\) break (\w+\.cu):(\d+) if", (faults.HERE / page).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert stops
    for name, line in stops:
        (file,) = faults.HERE.glob(f"*/{name}")
        lines = file.read_text(encoding="utf-8").splitlines()
        assert re.match(r"  +(float|for|const|sum)\b", lines[int(line) - 1]), (
            f"{name}:{line} is {lines[int(line) - 1]!r}"
        )
