"""What chapter 5 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict, verdict

OP = "paged_attention_grouped"
HEADS = "16/8 × 128"  # of Qwen3-0.6B
SHORT_US = 3.8  # one context of 128 tokens
MANY = 64  # sequences: enough blocks for every SM of a large GPU
READ_FRACTION = 0.8
OVER_V1 = 1.2
STEPS = ("v1", "v2", "v3", "v4")


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: bfloat16, the heads of Qwen3-0.6B, cold."""
    read_gbps = results["ceilings"]["read_gbps"]

    def share(ours: Case) -> tuple[str, bool]:
        return f"{ours['gbps'] / read_gbps:.1%}", ours["gbps"] >= READ_FRACTION * read_gbps

    def rises(*steps: Case) -> tuple[str, bool]:
        times = [case["us"]["median"] for case in steps]
        return " → ".join(f"{us:.1f}" for us in times) + " µs", times == sorted(times, reverse=True)

    many = [find(results, 1024, MANY, step=step) for step in STEPS]
    return [
        targets.at_most_us("128 tokens", SHORT_US, find(results, 128, 1)),
        verdict(
            f"{MANY} sequences of 1,024 tokens",
            f"≥ {READ_FRACTION:.0%} of the measured read bandwidth",
            [find(results, 1024, MANY)],
            share,
        ),
        targets.times_as_fast(
            f"v2, {MANY} × 1,024",
            f"≥ {OVER_V1} times as fast as v1, which reads K and V twice",
            [many[1], many[0]],
            lambda ratios: min(ratios) >= OVER_V1,
            digits=2,
        ),
        verdict(f"the ladder, {MANY} × 1,024", "each step is faster than the one before", many, rises),
    ]


def find(
    results: Results, context: int, batch: int, variant: str = "ours", op: str = OP, step: str | None = None
) -> Case | None:
    """The cold case of the heads of Qwen3-0.6B in bfloat16; None when it was not measured."""
    return targets.find(results, op, variant, {"context": context, "batch": batch, "heads": HEADS}, step=step)
