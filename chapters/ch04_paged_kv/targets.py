"""What chapter 4 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from typing import Any

from chapters.ch02_rms_norm.targets import Verdict

ONE_TOKEN_US = 2.3
OVER_VLLM = 1.6
COPY_FRACTION = 0.80
MANY_TOKENS = 8192


def judge(results: dict[str, Any]) -> list[Verdict]:
    """Every target, from results in schema 1. All are for bfloat16, 16 and 8 heads, a cold cache."""
    one, vllm, many = (
        _find(results, variant, tokens) for variant, tokens in (("ours", 1), ("vllm", 1), ("ours", MANY_TOKENS))
    )
    found = [Verdict("1 token", f"≤ {ONE_TOKEN_US} µs in a CUDA graph", "not measured", None)]
    if one:
        us = one["us"]["median"]
        found = [Verdict("1 token", found[0].target, f"{us:.2f} µs", us <= ONE_TOKEN_US)]
    target = f"≥ {OVER_VLLM} times as fast as vLLM's fused_qk_norm_rope and reshape_and_cache_flash"
    if one and vllm:
        ratio = vllm["us"]["median"] / one["us"]["median"]
        found.append(Verdict("1 token", target, f"{ratio:.2f} times as fast", ratio >= OVER_VLLM))
    else:
        found.append(Verdict("1 token", target, "not measured", None))
    name, target = f"{MANY_TOKENS:,} tokens", f"≥ {COPY_FRACTION:.0%} of the measured copy bandwidth"
    if many:
        share = many["gbps"] / results["ceilings"]["copy_gbps"]
        return [*found, Verdict(name, target, f"{share:.1%}", share >= COPY_FRACTION)]
    return [*found, Verdict(name, target, "not measured", None)]


def _find(results: dict[str, Any], variant: str, tokens: int) -> dict[str, Any] | None:
    kind = {"variant": variant, "step": None, "dtype": "bfloat16", "cache": "cold"}
    return next((c for c in results["cases"] if kind.items() <= c.items() and c["shape"]["tokens"] == tokens), None)
