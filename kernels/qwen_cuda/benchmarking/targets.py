"""Targets: what a chapter aimed at before anything was measured, held against its results in schema 1."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

Results = dict[str, Any]
Case = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One target. `passed` is None when a case that it needs was not measured; `measured` says so then."""

    name: str
    target: str
    measured: str
    passed: bool | None


def verdict(name: str, target: str, cases: Sequence[Case | None], compare: Callable[..., tuple[str, bool]]) -> Verdict:
    """`compare` gets the cases, and says what was measured and whether that is enough."""
    found = [case for case in cases if case is not None]
    if len(found) < len(cases):
        return Verdict(name, target, "not measured", None)
    return Verdict(name, target, *compare(*found))


def find(
    results: Results,
    op: str,
    variant: str,
    shape: Mapping[str, int | str],
    *,
    cache: str = "cold",
    dtype: str = "bfloat16",
    step: str | None = None,
) -> Case | None:
    """The case of exactly this kind and shape, or None."""
    kind = {"op": op, "variant": variant, "step": step, "dtype": dtype, "cache": cache}
    return next((c for c in results["cases"] if kind.items() <= c.items() and c["shape"] == shape), None)


def share_of_copy(results: Results, name: str, fraction: float, ours: Case | None, same_bytes: Case | None) -> Verdict:
    """At least `fraction` of the bandwidth of a large copy.

    Beside it what the driver's own copy of the same bytes reaches: at few bytes no one comes near the ceiling.
    """
    copy_gbps = results["ceilings"]["copy_gbps"]

    def compare(case: Case) -> tuple[str, bool]:
        text = f"{case['gbps'] / copy_gbps:.1%}"
        if same_bytes:
            text += f" (a copy of the same bytes: {same_bytes['gbps'] / copy_gbps:.1%})"
        return text, case["gbps"] >= fraction * copy_gbps

    return verdict(name, f"≥ {fraction:.0%} of the measured copy bandwidth", [ours], compare)


def at_most_us(name: str, limit_us: float, ours: Case | None) -> Verdict:
    """The median in a CUDA graph."""
    return verdict(
        name,
        f"≤ {limit_us} µs in a CUDA graph",
        [ours],
        lambda case: (f"{case['us']['median']:.2f} µs", case["us"]["median"] <= limit_us),
    )


def not_slower(name: str, title: str, pairs: Sequence[Case | None]) -> Verdict:
    """In the median no longer than nine of ten of the other's samples. `pairs`: ours and the other's, in turn."""

    def compare(*cases: Case) -> tuple[str, bool]:
        both = list(zip(cases[::2], cases[1::2], strict=True))
        ratios = [ours["us"]["median"] / theirs["us"]["median"] for ours, theirs in both]
        passed = all(ours["us"]["median"] <= theirs["us"]["p90"] for ours, theirs in both)
        return f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} of its time", passed

    return verdict(name, f"not slower than {title}", pairs, compare)


def times_as_fast(
    name: str, target: str, pairs: Sequence[Case | None], enough: Callable[[list[float]], bool], digits: int = 1
) -> Verdict:
    """How many times as fast as the other ours is, by pairs as in `not_slower`; `enough` judges these ratios."""

    def compare(*cases: Case) -> tuple[str, bool]:
        ratios = [
            theirs["us"]["median"] / ours["us"]["median"] for ours, theirs in zip(cases[::2], cases[1::2], strict=True)
        ]
        return f"{', '.join(f'{ratio:.{digits}f}' for ratio in ratios)} times as fast", enough(ratios)

    return verdict(name, target, pairs, compare)


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def print_verdicts(verdicts: Sequence[Verdict], about: str, console: Console | None = None) -> None:
    """A line for each target: whether it is met, what was measured."""
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    words = {True: "[green]met   [/green]", False: "[red]MISSED[/red]", None: "[dim]  –   [/dim]"}
    console.print(f"\n[bold]targets[/bold], {about}")
    for one in verdicts:
        console.print(f"{words[one.passed]}  {one.name}: {one.measured} (target: {one.target})")
