"""What chapter 2 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict, listed

HIDDEN = 1024
ROWS = (1, 8, 128, 1024, 8192)
MANY_ROWS = (8192, 32768)
COPY_FRACTION = 0.85
ONE_ROW_US = 2.2
OVER_EAGER = 4.1


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1. All are for bfloat16 and hidden size 1024."""
    ops = ("rms_norm", "add_rms_norm")
    return [
        *(
            targets.share_of_copy(
                results,
                f"{op}, {rows:,} rows, cold",
                COPY_FRACTION,
                _find(results, op, "ours", rows),
                _find(results, op, "copy", rows),
            )
            for op in ops
            for rows in MANY_ROWS
        ),
        *(
            targets.at_most_us(f"rms_norm, 1 row, {cache}", ONE_ROW_US, _find(results, "rms_norm", "ours", 1, cache))
            for cache in ("cold", "warm")
        ),
        *(targets.not_slower(f"{op}, {listed(ROWS)} rows, cold", "vLLM", _pairs(results, op, "vllm")) for op in ops),
        targets.times_as_fast(
            f"add_rms_norm, {listed(ROWS)} rows, cold",
            f"≥ {OVER_EAGER} times as fast as PyTorch, operation by operation",
            _pairs(results, "add_rms_norm", "torch_eager"),
            lambda ratios: min(ratios) >= OVER_EAGER,
        ),
    ]


def _pairs(results: Results, op: str, peer: str) -> list[Case | None]:
    """Ours and the other's, in turn, for each number of rows."""
    return [_find(results, op, who, rows) for rows in ROWS for who in ("ours", peer)]


def _find(results: Results, op: str, variant: str, rows: int, cache: str = "cold") -> Case | None:
    return targets.find(results, op, variant, {"rows": rows, "hidden": HIDDEN}, cache=cache)
