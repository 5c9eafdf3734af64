"""What chapter 2 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Results = dict[str, Any]
Case = dict[str, Any]

HIDDEN = 1024
ROWS = (1, 8, 128, 1024, 8192)
MANY_ROWS = (8192, 32768)
COPY_FRACTION = 0.85
ONE_ROW_US = 2.2
OVER_EAGER = 4.1


@dataclass(frozen=True)
class Verdict:
    """One target. `passed` is None when a case that it needs was not measured; `measured` says so then."""

    name: str
    target: str
    measured: str
    passed: bool | None


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1. All are for bfloat16 and hidden size 1024."""
    copy_gbps = results["ceilings"]["copy_gbps"]
    verdicts = [
        _verdict(
            f"{op}, {rows:,} rows, cold",
            f"≥ {COPY_FRACTION:.0%} of the measured copy bandwidth",
            [_find(results, op, "ours", rows)],
            partial(_share_of_copy, copy_gbps, _find(results, op, "copy", rows)),
        )
        for op in ("rms_norm", "add_rms_norm")
        for rows in MANY_ROWS
    ]
    verdicts += [
        _verdict(
            f"rms_norm, 1 row, {cache}",
            f"≤ {ONE_ROW_US} µs in a CUDA graph",
            [_find(results, "rms_norm", "ours", 1, cache)],
            lambda ours: (f"{ours['us']['median']:.2f} µs", ours["us"]["median"] <= ONE_ROW_US),
        )
        for cache in ("cold", "warm")
    ]
    verdicts += [_against(results, op, "vllm", "vLLM") for op in ("rms_norm", "add_rms_norm")]
    return [*verdicts, _over_eager(results)]


def _share_of_copy(copy_gbps: float, same_bytes: Case | None, ours: Case) -> tuple[str, bool]:
    """Beside it what the driver's own copy of the same bytes reaches: at few bytes no one comes near the ceiling."""
    text = f"{ours['gbps'] / copy_gbps:.1%}"
    if same_bytes:
        text += f" (a copy of the same bytes: {same_bytes['gbps'] / copy_gbps:.1%})"
    return text, ours["gbps"] >= COPY_FRACTION * copy_gbps


def _against(results: Results, op: str, peer: str, title: str) -> Verdict:
    """Not slower: in the median no longer than nine of ten of the other's samples, at every number of rows."""

    def compare(*cases: Case) -> tuple[str, bool]:
        pairs = list(zip(cases[::2], cases[1::2], strict=True))
        ratios = [ours["us"]["median"] / theirs["us"]["median"] for ours, theirs in pairs]
        passed = all(ours["us"]["median"] <= theirs["us"]["p90"] for ours, theirs in pairs)
        return f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} of its time", passed

    return _verdict(f"{op}, {_listed(ROWS)} rows, cold", f"not slower than {title}", _pairs(results, op, peer), compare)


def _over_eager(results: Results) -> Verdict:
    def compare(*cases: Case) -> tuple[str, bool]:
        ratios = [
            theirs["us"]["median"] / ours["us"]["median"] for ours, theirs in zip(cases[::2], cases[1::2], strict=True)
        ]
        return f"{', '.join(f'{ratio:.1f}' for ratio in ratios)} times as fast", min(ratios) >= OVER_EAGER

    return _verdict(
        f"add_rms_norm, {_listed(ROWS)} rows, cold",
        f"≥ {OVER_EAGER} times as fast as PyTorch, operation by operation",
        _pairs(results, "add_rms_norm", "torch_eager"),
        compare,
    )


def _pairs(results: Results, op: str, peer: str) -> list[Case | None]:
    """Ours and the other's, in turn, for each number of rows."""
    return [_find(results, op, who, rows) for rows in ROWS for who in ("ours", peer)]


def _verdict(name: str, target: str, cases: Sequence[Case | None], compare: Callable[..., tuple[str, bool]]) -> Verdict:
    found = [case for case in cases if case is not None]
    if len(found) < len(cases):
        return Verdict(name, target, "not measured", None)
    return Verdict(name, target, *compare(*found))


def _find(results: Results, op: str, variant: str, rows: int, cache: str = "cold") -> Case | None:
    kind = {"op": op, "variant": variant, "step": None, "dtype": "bfloat16", "cache": cache}
    shape = {"rows": rows, "hidden": HIDDEN}
    return next((c for c in results["cases"] if kind.items() <= c.items() and c["shape"] == shape), None)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
