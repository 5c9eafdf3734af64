"""What chapter 3 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict, listed

SIZE = 3072
ROWS = (1, 8, 128, 1024, 8192)
MANY_ROWS = (1024, 8192, 32768)
COPY_FRACTION = 0.85
ONE_ROW_US = 2.0
OVER_EAGER = 1.05  # everywhere
OVER_EAGER_AT_BEST = 1.9


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1. All are for bfloat16 and size 3072."""
    shapes = f"silu_mul, {listed(ROWS)} rows, cold"
    return [
        *(
            targets.share_of_copy(
                results,
                f"silu_mul, {rows:,} rows, cold",
                COPY_FRACTION,
                _find(results, "ours", rows),
                _find(results, "copy", rows),
            )
            for rows in MANY_ROWS
        ),
        *(
            targets.at_most_us(f"silu_mul, 1 row, {cache}", ONE_ROW_US, _find(results, "ours", 1, cache))
            for cache in ("cold", "warm")
        ),
        targets.not_slower(shapes, "vLLM", _pairs(results, "vllm")),
        *(
            targets.times_as_fast(
                shapes,
                f"≥ {OVER_EAGER} times as fast as PyTorch's two kernels{where}, ≥ {OVER_EAGER_AT_BEST} at best",
                _pairs(results, peer),
                lambda ratios: min(ratios) >= OVER_EAGER and max(ratios) >= OVER_EAGER_AT_BEST,
                digits=2,
            )
            for peer, where in (("torch_eager", " on packed rows"), ("torch_eager_unpacked", " on two matrices"))
        ),
    ]


def _pairs(results: Results, peer: str) -> list[Case | None]:
    """Ours and the other's, in turn, for each number of rows."""
    return [_find(results, who, rows) for rows in ROWS for who in ("ours", peer)]


def _find(results: Results, variant: str, rows: int, cache: str = "cold") -> Case | None:
    return targets.find(results, "silu_mul", variant, {"rows": rows, "size": SIZE}, cache=cache)
