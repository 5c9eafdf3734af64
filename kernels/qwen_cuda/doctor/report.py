"""The findings as a table, coloured on a terminal where rich is installed and plain otherwise, or as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from qwen_cuda.doctor.finding import Finding, Job, exit_code

COLORS = {"ok": "green", "note": "yellow", "problem": "red"}


def works(findings: Sequence[Finding], has_gpu: bool) -> dict[Job, bool | None]:
    """Which jobs work; None for builds for a GPU where there is none."""
    broken = {job for finding in findings for job in finding.breaks}
    gpu = "gpu" not in broken if has_gpu else None
    return {"generate": "generate" not in broken, "test": "test" not in broken, "gpu": gpu}


def summary(findings: Sequence[Finding], has_gpu: bool) -> str:
    """One line: what works."""
    labels: dict[Job, str] = {"generate": "make generate", "test": "make test", "gpu": "builds for the GPU"}
    words = {True: "would work", False: "would fail", None: "no GPU here"}
    parts = [f"{labels[job]}: {words[state]}" for job, state in works(findings, has_gpu).items()]
    return "   ".join(parts)


def as_json(findings: Sequence[Finding], has_gpu: bool) -> str:
    """Everything, for scripts."""
    rows = [asdict(finding) for finding in findings]
    return json.dumps({"works": works(findings, has_gpu), "exit_code": exit_code(findings), "findings": rows}, indent=2)


def as_text(findings: Sequence[Finding], has_gpu: bool) -> str:
    """The table without colours."""
    wide = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:8} {finding.name:{wide}}  {finding.detail}")
        if finding.mend:
            lines.append(f"{'':8} {'':{wide}}  -> {finding.mend}")
    return "\n".join([*lines, "", summary(findings, has_gpu)])


def print_report(findings: Sequence[Finding], has_gpu: bool) -> None:
    """Prints the table."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        print(as_text(findings, has_gpu))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        detail = Text(finding.detail)
        if finding.mend:
            detail.append(f"\n→ {finding.mend}", style="bold")
        table.add_row(Text(finding.status, style=COLORS[finding.status]), Text(finding.name), detail)
    console = Console(highlight=False)
    console.print(table)
    console.print()
    console.print(Text(summary(findings, has_gpu)))
