"""What the command prints: a table of the validation, and one of the speedups."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chapters.ch03_swiglu.drop_in.configurations import TIMED
from chapters.ch03_swiglu.drop_in.models import Subject
from chapters.ch03_swiglu.drop_in.pairs import Speedup
from chapters.ch03_swiglu.drop_in.speed import Speed
from chapters.ch03_swiglu.drop_in.validation import Validation


def print_validation(console: Console, subject: Subject, validation: Validation) -> None:
    """Each arm: how far its logits are, whether its tokens are the same, and where they are not, why."""
    dtype = str(subject.dtype).removeprefix("torch.")
    lengths = ", ".join(map(str, validation.prompts))
    console.print(f"[bold]{escape(subject.name)}[/bold], {dtype}, on {subject.model.device}")
    console.print(f"prompts of {lengths} tokens, {validation.new_tokens} new ones each; errors are those of logits\n")
    table = _table("operators", "rounding")
    for name in ("max |Δ|", "mean |Δ|", "same top 1", "rms error, float64", "÷ unpatched", "same texts"):
        table.add_column(name, justify="right")
    table.add_row("unpatched", "", "", "", "", f"{validation.unpatched.rms:.3g}", "1", "")
    for arm in validation.arms:
        table.add_row(
            arm.configuration,
            arm.rounding,
            f"{arm.difference.largest:.3g}",
            f"{arm.difference.mean:.2g}",
            f"{arm.difference.top1:.2%}",
            f"{arm.exact.rms:.3g}",
            f"{arm.ratio:.3f}",
            f"{arm.identical} of {len(validation.prompts)}",
        )
    console.print(table)
    nearest = min(validation.arms, key=lambda arm: arm.exact.rms)
    console.print(f"nearest to float64: {nearest.configuration}, {nearest.rounding} rounding")
    for arm in validation.arms:
        for parting in arm.partings:
            console.print(
                f"{arm.configuration}, {arm.rounding}: prompt {parting.prompt + 1} parts at new token "
                f"{parting.place + 1}, margin {parting.margin_ulps:.2g} ulp"
                f"{', a near-tie' if parting.tie else ''}"
            )


def print_speed(console: Console, speed: Speed) -> None:
    """The speedup of each configuration, with its interval, by mode and prompt."""
    for op in ("decode", "prefill"):
        table = _table(f"{op}: times as fast as unpatched", "prompt")
        for configuration in TIMED:
            table.add_column(configuration.name, justify="right", no_wrap=True)
        found = {(c.mode, c.prompt, c.configuration): c.speedup for c in speed.comparisons if c.op == op}
        for mode, prompt in dict.fromkeys(key[:2] for key in found):
            cells = [words(found[mode, prompt, configuration.name]) for configuration in TIMED]
            table.add_row(mode, f"{prompt:,}", *cells)
        console.print(table)
    counts = ", ".join(f"{name} {count:,}" for name, count in speed.operators.items())
    console.print(f"operators that one decode step calls: {counts}")
    rounds = speed.comparisons[0].rounds if speed.comparisons else 0
    console.print(f"[dim]In brackets: 95 % interval over {rounds} paired rounds of this run.[/dim]")


def words(speedup: Speedup) -> str:
    """1.23 (1.21–1.25)"""
    if speedup.low is None or speedup.high is None:
        return f"{speedup.ratio:.3f}"
    return f"{speedup.ratio:.3f} ({speedup.low:.3f}–{speedup.high:.3f})"


def _table(*heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table
