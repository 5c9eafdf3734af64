"""The tables of whole requests that the command prints and the site shows: figures by variant and prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from chapters.ch11_generator.end_to_end.catalogue import PEERS, TITLES
from chapters.ch11_generator.end_to_end.measurement import DECODE
from chapters.ch11_generator.end_to_end.ours import ABLATIONS, CHAIN, OURS, W8, Row
from chapters.ch11_generator.end_to_end.work import floor_tok_s

_BYTES = "bytes of a token and the floor that follows, decode, by prompt"

Results = dict[str, Any]
Cells = list[str]


def prompts_of(results: Results) -> list[int]:
    """Lengths that were measured, ascending."""
    return sorted({int(case["shape"]["prompt"]) for case in results["cases"]})


def by_prompt(results: Results, op: str, variant: str) -> dict[int, dict[str, Any]]:
    """Prompt → the variant's case."""
    return {
        int(case["shape"]["prompt"]): case
        for case in results["cases"]
        if (case["op"], case["variant"]) == (op, variant)
    }


def rates(results: Results, op: str) -> Iterator[Cells]:
    """A row a variant: its title, then tokens per second by prompt. Variants that were not measured have none."""
    for variant, title in TITLES.items():
        found = by_prompt(results, op, variant)
        if found:
            cells = [f"{found[n]['tok_s']['median']:,.0f}" if n in found else "–" for n in prompts_of(results)]
            yield [title, *cells]


def changes(results: Results, rows: Sequence[Row], of: str | None = None) -> Iterator[Cells]:
    """A row a variant: what it is, and tokens per second of decoding, with their change.

    The change is against the variant `of`, or else against the row before, if both were measured.
    """
    before: dict[int, dict[str, Any]] = by_prompt(results, DECODE, of) if of else {}
    for row in rows:
        found = by_prompt(results, DECODE, row.variant)
        if not found:
            before = before if of else {}
            continue
        cells = []
        for prompt in prompts_of(results):
            if prompt not in found:
                cells.append("–")
                continue
            tok_s = found[prompt]["tok_s"]["median"]
            cell = f"{tok_s:,.0f}"
            if prompt in before and row.variant != of:
                other = before[prompt]["tok_s"]["median"]
                cell += f" ({tok_s / other - 1:+.0%})" if of else f" (× {tok_s / other:.2f})"
            cells.append(cell)
        yield [row.what, *cells]
        before = before if of else found


def ratio_rows(results: Results, op: str, of: str, overs: Sequence[str]) -> Iterator[Cells]:
    """A row a variant that `of` is divided by: how many times as fast, with its 95 % interval, by prompt."""
    ratios = {(r["op"], r["of"], r["over"], r["prompt"]): r["speedup"] for r in results["end_to_end"]["ratios"]}
    for over in overs:
        found = {n: ratios.get((op, of, over, n)) for n in prompts_of(results)}
        if any(found.values()):
            yield [TITLES[over], *(_ratio(speedup) if speedup else "–" for speedup in found.values())]


def _ratio(speedup: dict[str, Any]) -> str:
    low, high = speedup["low"], speedup["high"]
    return f"{speedup['ratio']:.2f}" + ("" if low is None else f" ({low:.2f}–{high:.2f})")


def byte_rows(results: Results) -> Iterator[Cells]:
    """A row a prompt: MB a token, the floor in tok/s, and what ours reach of it, with a 16-bit and an int8 head."""
    ceilings = results["ceilings"]
    for prompt in prompts_of(results):
        cells = [f"{prompt:,}"]
        for variant in (OURS, W8):
            case = by_prompt(results, DECODE, variant).get(prompt)
            if case is None:
                cells += ["–"] * 3
                continue
            floor = floor_tok_s(case, ceilings)
            tok_s = case["tok_s"]["median"]
            cells += [f"{case['bytes'] / 1e6:,.0f}", f"{floor:,.0f}", f"{tok_s / floor:.0%}"]
        yield cells


def print_figures(results: Results, console: Console | None = None) -> None:
    """The chain, the ablations, the three ratios and the floors, on the terminal."""
    # A pipe has no width; 160 columns hold every table.
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    prompts = [f"{n:,}" for n in prompts_of(results)]
    bytes_heads = [
        f"{what}{head}" for head in ("", ", int8 head") for what in ("MB a token", "floor, tok/s", "reached")
    ]
    for title, rows in (
        ("from the first version to the last, decode tok/s (× the row before), by prompt", changes(results, CHAIN)),
        ("one stage off at a time, decode tok/s, by prompt", changes(results, ABLATIONS, OURS)),
        ("ours with int8 ÷ ours in bf16, decode", ratio_rows(results, DECODE, W8, [OURS])),
        ("ours in bf16 ÷ peer, decode", ratio_rows(results, DECODE, OURS, PEERS)),
        ("ours with int8 ÷ peer, decode: two things changed at once", ratio_rows(results, DECODE, W8, PEERS)),
        (_BYTES, byte_rows(results)),
    ):
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False)
        table.add_column("")
        for head in bytes_heads if title == _BYTES else prompts:
            table.add_column(head, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        if table.rows:
            console.print(table)
