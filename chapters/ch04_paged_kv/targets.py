"""What chapter 4 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from chapters.ch04_paged_kv.candidates import HEADS, KV_HEADS, OP
from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

ONE_TOKEN_US = 2.3
OVER_VLLM = 1.6
COPY_FRACTION = 0.80
MANY_TOKENS = 8192


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1. All are for bfloat16, 16 and 8 heads, a cold cache."""
    one, vllm, many, copy = (
        _find(results, variant, tokens)
        for variant, tokens in (("ours", 1), ("vllm", 1), ("ours", MANY_TOKENS), ("copy", MANY_TOKENS))
    )
    return [
        targets.at_most_us("1 token", ONE_TOKEN_US, one),
        targets.times_as_fast(
            "1 token",
            f"≥ {OVER_VLLM} times as fast as vLLM's fused_qk_norm_rope and reshape_and_cache_flash",
            [one, vllm],
            lambda ratios: min(ratios) >= OVER_VLLM,
            digits=2,
        ),
        targets.share_of_copy(results, f"{MANY_TOKENS:,} tokens", COPY_FRACTION, many, copy),
    ]


def _find(results: Results, variant: str, tokens: int) -> Case | None:
    return targets.find(results, OP, variant, {"tokens": tokens, "heads": HEADS, "kv_heads": KV_HEADS})
