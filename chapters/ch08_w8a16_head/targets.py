"""What chapter 8 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from qwen_cuda.benchmarking import targets
from qwen_cuda.benchmarking.targets import Case, Results, Verdict

K, N, GROUP = 1024, 151936, 128  # the head of Qwen3-0.6B
LOGITS_US = 39.5
READ_FRACTION = 0.90
ARGMAX_MORE_US = 1.5
OVER_BF16 = 1.8


def judge(results: Results) -> list[Verdict]:
    """Every target, from results in schema 1: one row of x, group 128, cold."""
    name = "w8a16_linear, 1,024 → 151,936"
    ours, fused = find(results, "w8a16_linear", "ours"), find(results, "w8a16_argmax", "ours")
    return [
        targets.at_most_us(name, LOGITS_US, ours),
        _share_of_read(results, name, ours),
        _no_more_than(ours, fused),
        targets.times_as_fast(
            name,
            f"≥ {OVER_BF16} times as fast as cuBLAS with bf16 weights",
            [ours, find(results, "bf16_linear", "cublas")],
            lambda ratios: min(ratios) >= OVER_BF16,
            digits=2,
        ),
        targets.times_as_fast(
            name,
            "faster than vLLM's Machete",
            [ours, find(results, "w8a16_linear", "vllm_machete")],
            lambda ratios: min(ratios) > 1,
            digits=2,
        ),
        targets.not_slower(
            "w8a16_argmax", "logits and torch.argmax", [fused, find(results, "w8a16_argmax", "ours_two_launches")]
        ),
        targets.not_slower(
            "head_argmax, bf16", "cuBLAS and torch.argmax",
            [find(results, "head_argmax", "ours"), find(results, "head_argmax", "cublas")],
        ),
    ]  # fmt: skip


def find(
    results: Results, op: str, variant: str, batch: int = 1, k: int = K, group: int = GROUP, step: str | None = None
) -> Case | None:
    """The cold case of one operation and head, or None."""
    shape: dict[str, int | str] = {"batch": batch, "k": k, "n": N}
    if op.startswith("w8a16"):
        shape["group"] = group
    return targets.find(results, op, variant, shape, step=step)


def _share_of_read(results: Results, name: str, ours: Case | None) -> Verdict:
    read_gbps = results["ceilings"]["read_gbps"]

    def compare(case: Case) -> tuple[str, bool]:
        return f"{case['gbps'] / read_gbps:.1%}", case["gbps"] >= READ_FRACTION * read_gbps

    return targets.verdict(name, f"≥ {READ_FRACTION:.0%} of the measured read bandwidth", [ours], compare)


def _no_more_than(logits: Case | None, fused: Case | None) -> Verdict:
    """What the argmax costs beyond writing the logits."""

    def compare(one: Case, other: Case) -> tuple[str, bool]:
        more = other["us"]["median"] - one["us"]["median"]
        return f"{more:+.2f} µs", more <= ARGMAX_MORE_US

    return targets.verdict(
        "w8a16_argmax", f"at most {ARGMAX_MORE_US} µs more than the logits take", [logits, fused], compare
    )
