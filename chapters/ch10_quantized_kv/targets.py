"""What chapter 10 aims at in writing a quantised cache and in reading it, put down before anything was measured.

Both in one launch have a target, too: to be faster than in two, at every length.
"""

from __future__ import annotations

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch10_quantized_kv import fused_candidates as fused
from chapters.ch10_quantized_kv import reader_candidates as reader
from chapters.ch10_quantized_kv.candidates import KV_HEADS, OP
from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

ONE_TOKEN_US = 2.5
OVER_UNFUSED = 2.5
COPY_FRACTION = 0.8
MANY_TOKENS = 8192
NAMES = ("fp8", "nvfp4")
# Tokens of a context → how many times as fast as 16-bit attention the reader is.
READER = "fp8_sections"  # 132 bytes for a head's 256: without padding
OVER_PLAIN = {8192: 1.6, 32768: 1.75}
FUSED_CONTEXTS = (128, 1024, 4096, 8192, 32768)


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: bfloat16, the heads of Qwen3-0.6B, a cold cache."""
    return judge_writer(results) + judge_reader(results) + judge_fused(results)


def judge_reader(results: Results) -> list[Verdict]:
    return [_over_plain(results, context, least) for context, least in OVER_PLAIN.items()]


def _over_plain(results: Results, context: int, least: float) -> Verdict:
    return targets.times_as_fast(
        f"attention over {READER}, {context:,} tokens",
        f"≥ {least} times as fast as over bf16",
        [find_reader(results, name, context) for name in (READER, reader.PLAIN)],
        lambda ratios: min(ratios) >= least,
        digits=2,
    )


def judge_fused(results: Results) -> list[Verdict]:
    """Faster in the median at every length."""
    return [
        targets.times_as_fast(
            f"write and attention over {name}, {targets.listed(FUSED_CONTEXTS)} tokens",
            "in one launch faster than in two",
            [find_fused(results, name, context, who) for context in FUSED_CONTEXTS for who in ("ours", "in_turn")],
            lambda ratios: min(ratios) > 1,
            digits=2,
        )
        for name in fused.FORMATS
    ]


def find_fused(results: Results, name: str, context: int, variant: str) -> Case | None:
    work = fused.work(name, Shape(context))
    return targets.find(results, work.op, variant, work.shape)


def find_reader(results: Results, name: str, context: int, batch: int = 1, variant: str = "ours") -> Case | None:
    work = reader.work(name, Shape(context, batch))
    return targets.find(results, work.op, variant, work.shape)


def judge_writer(results: Results) -> list[Verdict]:
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
