"""What chapter 9 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from collections.abc import Callable

from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

OP = "decode_step"
STEPS_A_SECOND = {128: 2400, 1024: 2100, 8192: 1250}  # of the last version, one row


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: one row."""
    verdicts = []
    for context, least in STEPS_A_SECOND.items():
        ladder = {step: find(results, step, context) for step in ("v2", "v3", "v4", "v5")}
        name = f"a step at {context:,} tokens"
        verdicts += [
            _steps_a_second(name, least, ladder["v5"]),
            targets.times_as_fast(name, "a graph at least halves it", [ladder["v3"], ladder["v2"]], _all_above(2)),
            targets.times_as_fast(
                name, "dependent launch takes off a tenth", [ladder["v4"], ladder["v3"]], _all_above(1 / 0.9), digits=2
            ),
        ]
    return verdicts


def find(results: Results, step: str, context: int, rows: int = 1) -> Case | None:
    """The case of a step of the ladder, or None."""
    return targets.find(results, OP, "ours", {"context": context, "rows": rows}, step=step)


def _steps_a_second(name: str, least: int, ours: Case | None) -> Verdict:
    def compare(case: Case) -> tuple[str, bool]:
        rate = 1e6 / case["us"]["median"]
        return f"{rate:,.0f} a second", rate >= least

    return targets.verdict(name, f"≥ {least:,} a second", [ours], compare)


def _all_above(least: float) -> Callable[[list[float]], bool]:
    return lambda ratios: min(ratios) >= least
