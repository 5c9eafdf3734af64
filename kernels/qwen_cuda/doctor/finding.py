"""What one check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "note", "problem"]
Job = Literal["generate", "test", "gpu"]

EXIT_BITS: dict[Job, int] = {"generate": 1, "test": 2, "gpu": 4}


@dataclass(frozen=True)
class Finding:
    """A row of the report.

    `ok` needs nothing, `note` is worth knowing, `problem` stops one or more jobs: those in `breaks`.
    `mend` is one sentence, empty for `ok`.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    breaks: tuple[Job, ...] = ()


def ok(name: str, detail: str) -> Finding:
    """A finding that needs nothing."""
    return Finding(name, "ok", detail)


def note(name: str, detail: str, mend: str) -> Finding:
    """A finding that stops nothing."""
    return Finding(name, "note", detail, mend)


def problem(name: str, detail: str, mend: str, *breaks: Job) -> Finding:
    """A finding that stops the jobs in `breaks`."""
    return Finding(name, "problem", detail, mend, breaks)


def without_gpu(findings: Iterable[Finding]) -> list[Finding]:
    """The same findings for a machine without a GPU: there, nothing breaks builds for one."""
    return [replace(f, breaks=tuple(job for job in f.breaks if job != "gpu")) for f in findings]


def exit_code(findings: Iterable[Finding]) -> int:
    """The sum of 1 (`generate` would fail), 2 (`test` would fail) and 4 (builds for the GPU would fail)."""
    broken = {job for finding in findings for job in finding.breaks}
    return sum(EXIT_BITS[job] for job in broken)
