"""What chapter 11 aimed at before anything was measured, held against its results."""

from __future__ import annotations

from chapters.ch11_generator.end_to_end.catalogue import PEERS, TITLES
from chapters.ch11_generator.end_to_end.measurement import DECODE, REQUEST
from chapters.ch11_generator.end_to_end.ours import CODED, OURS
from qwen_cuda.benchmarking.targets import Case, Results, Verdict, verdict

# Prompt → tokens per second of decoding, bf16, on an H200.
DECODE_TOK_S = {
    "must": {128: 2400, 1024: 2100, 8192: 1250},
    "goal": {128: 2700, 1024: 2400, 8192: 1500},
    "stretch": {128: 2900, 1024: 2650, 8192: 1650},
}

LONG, FP8_GAIN = 8192, 1.15


def find(results: Results, op: str, variant: str, prompt: int) -> Case | None:
    """The case of a variant for a prompt, or None."""
    kind = {"op": op, "variant": variant}
    return next((c for c in results["cases"] if kind.items() <= c.items() and c["shape"]["prompt"] == prompt), None)


def judge(results: Results) -> list[Verdict]:
    """Tokens per second at each prompt; what an FP8 cache gains; faster than each peer in whole requests."""
    prompts = list(DECODE_TOK_S["must"])
    found = [
        _at_least(f"decode, prompt {prompt:,}: {name}", tok_s, find(results, DECODE, OURS, prompt))
        for name, aims in DECODE_TOK_S.items()
        for prompt, tok_s in aims.items()
    ]
    return [*found, _gain(results), *(_faster(results, peer, prompts) for peer in PEERS)]


def _at_least(name: str, tok_s: float, ours: Case | None) -> Verdict:
    return verdict(
        name,
        f"≥ {tok_s:,} tok/s",
        [ours],
        lambda case: (f"{case['tok_s']['median']:,.0f} tok/s", case["tok_s"]["median"] >= tok_s),
    )


def _gain(results: Results) -> Verdict:
    """Chapter 10's: what an FP8 cache gives a long context."""
    cases = [find(results, DECODE, name, LONG) for name in (OURS, CODED["fp8"])]

    def compare(plain: Case, coded: Case) -> tuple[str, bool]:
        ratio = coded["tok_s"]["median"] / plain["tok_s"]["median"]
        return f"{ratio:.2f} times as fast", ratio >= FP8_GAIN

    return verdict(
        f"decode, prompt {LONG:,}: an FP8 cache beside bf16",
        f"≥ {FP8_GAIN} times as fast",
        cases,
        compare,
    )


def _faster(results: Results, peer: str, prompts: list[int]) -> Verdict:
    cases = [find(results, REQUEST, name, prompt) for prompt in prompts for name in (OURS, peer)]

    def compare(*both: Case) -> tuple[str, bool]:
        pairs = zip(both[::2], both[1::2], strict=True)
        ratios = [ours["tok_s"]["median"] / theirs["tok_s"]["median"] for ours, theirs in pairs]
        return f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} times as fast", min(ratios) > 1

    return verdict(f"whole requests beside {TITLES[peer]}", "faster at every prompt", cases, compare)
