"""What chapter 6 aimed at before anything was measured, held against its results.

Fused decode attention has targets, too: what it adds to a decode step. Chapter 7 measures that, in a layer.
"""

from __future__ import annotations

from typing import Final

from chapters.ch05_grouped_attention.targets import find
from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Results, Verdict, listed

US = {128: 3.8, 512: 4.6, 1024: 5.2, 4096: 9.0, 8192: 13.0, 32768: 36.5}
STRETCH_US = {8192: 10.5}
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PEERS = {
    "sdpa_cudnn": "PyTorch's SDPA (cuDNN, dense)",
    "flashinfer": "FlashInfer",
    "vllm_v1": "vLLM's paged_attention_v1",
}
OP: Final = "paged_attention"
FUSED_OP: Final = "fused_decode_attention"


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: one sequence, bfloat16, the heads of Qwen3-0.6B, cold."""
    verdicts = [_time(results, context, us) for context, us in US.items()]
    verdicts += [_time(results, context, us, " (stretch)") for context, us in STRETCH_US.items()]
    verdicts += [_time(results, context, us, ", captured for 32,768", "ours_long_graph") for context, us in US.items()]
    return verdicts + [_ahead(results, peer, title) for peer, title in PEERS.items()]


def _time(results: Results, context: int, us: float, note: str = "", variant: str = "ours") -> Verdict:
    return targets.at_most_us(f"{context:,} tokens{note}", us, find(results, context, 1, variant, OP))


def _ahead(results: Results, peer: str, title: str) -> Verdict:
    """Faster in the median at every length."""
    pairs = [find(results, context, 1, who, OP) for context in CONTEXTS for who in ("ours", peer)]
    return targets.times_as_fast(
        f"{listed(CONTEXTS)} tokens", f"faster than {title}", pairs, lambda ratios: min(ratios) > 1, digits=2
    )
