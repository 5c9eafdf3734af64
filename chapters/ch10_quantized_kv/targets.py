"""What chapter 10 aims at in writing a quantised cache, put down before anything was measured."""

from __future__ import annotations

from chapters.ch10_quantized_kv.candidates import KV_HEADS, OP
from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

ONE_TOKEN_US = 2.5
OVER_UNFUSED = 2.0
COPY_FRACTION = 0.75
MANY_TOKENS = 8192
NAMES = ("fp8", "nvfp4")


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: bfloat16 in, 8 heads of K and of V, a cold cache."""
    verdicts = []
    for name in NAMES:
        one, apart = (_find(results, variant, 1, name) for variant in ("ours", "ours_unfused"))
        verdicts += [
            targets.at_most_us(f"{name}, 1 token", ONE_TOKEN_US, one),
            targets.times_as_fast(
                f"{name}, 1 token",
                f"≥ {OVER_UNFUSED} times as fast as our operators in turn",
                [one, apart],
                lambda ratios: min(ratios) >= OVER_UNFUSED,
                digits=2,
            ),
            targets.share_of_copy(
                results,
                f"{name}, {MANY_TOKENS:,} tokens",
                COPY_FRACTION,
                _find(results, "ours", MANY_TOKENS, name),
                _find(results, "copy", MANY_TOKENS, name),
            ),
        ]
    return verdicts


def _find(results: Results, variant: str, tokens: int, name: str) -> Case | None:
    return targets.find(results, OP, variant, {"tokens": tokens, "kv_heads": KV_HEADS, "format": name})
