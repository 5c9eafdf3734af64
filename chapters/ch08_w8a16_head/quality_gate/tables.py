"""What the command prints: every arm in a line, every text in a line, and each flip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chapters.ch08_w8a16_head.quality_gate.agreement import Distance, interval
from chapters.ch08_w8a16_head.quality_gate.gate import Arm, Verdict
from chapters.ch08_w8a16_head.quality_gate.subject import Subject

_FIGURES = ("same top 1", "flips", "mean |Δ|", "max |Δ|", "mean KL", "max KL", "perplexity")


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The tables; then whether the model passed, and if not, why."""
    subject, judged = verdict.subject, verdict.judged
    tokens = judged.by_text[0].tokens
    console.print(f"[bold]{escape(subject.name)}[/bold] against itself in fp32, on {len(subject.prompts)} texts of")
    console.print(f"{escape(subject.texts.name)}, {tokens} tokens each; |Δ| is of logits, KL in nats a token\n")
    arms = [verdict.rounding, judged, *(arm for arm in verdict.variants if arm is not judged)]
    table = figures_table("weights", *_FIGURES)
    for arm in arms:
        table.add_row(arm.name, *_cells(arm.distance))
    console.print(table)
    console.print(_costs(arms))
    console.print(_by_text(judged.by_text))
    print_flips(console, subject, judged.distance)
    low, high = interval(judged.distance.tokens - len(judged.distance.flips), judged.distance.tokens)
    console.print(f"[dim]So few tokens leave the true agreement between {low:.1%} and {high:.1%} (95 %).[/dim]")
    print_outcome(console, judged.name, verdict.complaints)


def print_flips(console: Console, subject: Subject, distance: Distance) -> None:
    """A line for each token that was chosen otherwise."""
    for flip in distance.flips:
        expected, chosen = (repr(subject.tokenizer.token(token)) for token in (flip.expected, flip.chosen))
        line = f"text {flip.text + 1}, token {flip.place}: {chosen} instead of {expected}, margin {flip.margin:.3g}"
        console.print(escape(line))


def print_outcome(console: Console, judged: str, complaints: Sequence[str]) -> None:
    """Why what was judged has not passed; without any reason, that it has."""
    for sentence in complaints:
        console.print(f"[red]not passed[/red] {escape(judged)}: {escape(sentence)}")
    if not complaints:
        console.print(f"[green]passed[/green] {escape(judged)}: this model, on these texts.")


def figures_table(first: str, *heads: str) -> Table:
    """A name in the first column, figures in the others."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _by_text(parts: Iterable[Distance]) -> Table:
    table = figures_table("text", *_FIGURES)
    for number, part in enumerate(parts, start=1):
        table.add_row(str(number), *_cells(part))
    return table


def _cells(distance: Distance) -> Sequence[str]:
    return (
        f"{distance.agreement:.2%}",
        f"{len(distance.flips)} of {distance.tokens:,}",
        f"{distance.mean_error:.2g}",
        f"{distance.max_error:.2g}",
        f"{distance.kl:.1e}",
        f"{distance.max_kl:.1e}",
        f"{distance.perplexity:.4g} ({distance.perplexity_change:+.2%})",
    )


def _costs(arms: Iterable[Arm]) -> Table:
    table = figures_table("weights", "bytes", "÷ bf16", "their rms error")
    for arm in arms:
        if arm.cost is not None:
            share = arm.cost.bytes / arm.cost.bf16_bytes
            table.add_row(arm.name, f"{arm.cost.bytes:,}", f"{share:.3f}", f"{arm.cost.weight_error:.2%}")
    return table
