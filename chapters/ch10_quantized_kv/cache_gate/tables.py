"""What the command prints: every cache in a line, each flip of the judged one, and what it cannot find."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from chapters.ch08_w8a16_head.quality_gate.tables import figures_table, print_flips, print_outcome
from chapters.ch10_quantized_kv.cache_gate.gate import Arm, Verdict
from qwen3_ref.cost import kv_bytes_per_token

_HEADS = (
    "bytes a token",
    "÷ bf16",
    "same top 1",
    "flips",
    "widest margin",
    "max |Δ|",
    "mean KL",
    "perplexity",
    "found",
)


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The table; then whether the cache passed, and if not, why."""
    subject, judged = verdict.subject, verdict.judged
    texts = len(subject.prompts)
    lengths = [question.prompt.shape[1] for question in verdict.asked]
    console.print(f"[bold]{escape(subject.name)}[/bold] against itself in fp32, on {texts} texts of")
    console.print(
        f"{escape(subject.texts.name)}, {judged.distance.tokens // texts} tokens each; |Δ| is of logits, KL in"
    )
    console.print(f"nats a token; answers told {min(lengths)} to {max(lengths)} tokens before the end\n")
    table = figures_table("cache", *_HEADS)
    for arm in (verdict.rounding, *verdict.caches):
        table.add_row(arm.name, *_cells(verdict, arm))
    console.print(table)
    print_flips(console, subject, judged.distance)
    for question in judged.recall.lost:
        console.print(escape(f"not found: {question}"))
    print_outcome(console, judged.name, judged.complaints)


def _cells(verdict: Verdict, arm: Arm) -> tuple[str, ...]:
    config, distance = verdict.subject.config, arm.distance
    plain = kv_bytes_per_token(config)
    nbytes = plain if arm.kind is None else arm.kind.token_bytes(config)
    margins = [flip.margin for flip in distance.flips]
    return (
        f"{nbytes:,.0f}",
        f"{nbytes / plain:.3f}",
        f"{distance.agreement:.2%}",
        f"{len(distance.flips)} of {distance.tokens:,}",
        f"{max(margins):.2g}" if margins else "–",
        f"{distance.max_error:.2g}",
        f"{distance.kl:.1e}",
        f"{distance.perplexity_change:+.2%}",
        f"{arm.recall.found} of {arm.recall.asked}",
    )
