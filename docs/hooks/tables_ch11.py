"""The passages that hold measured numbers of whole requests: docs/results/<gpu>/ch11_generator.json as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chapters.ch11_generator.end_to_end.catalogue import PEERS, TITLES
from chapters.ch11_generator.end_to_end.measurement import DECODE, FIRST, REQUEST
from chapters.ch11_generator.end_to_end.ours import ABLATIONS, CHAIN, OURS, W8
from chapters.ch11_generator.end_to_end.tables import (
    Cells,
    by_prompt,
    byte_rows,
    changes,
    prompts_of,
    rates,
    ratio_rows,
)
from chapters.ch11_generator.targets import judge
from docs.hooks.operator_tables import Results, table, targets_table, time_of

WEIGHTS = {
    "random": "random weights in the shape of Qwen3-0.6B, which are as fast as trained ones",
    "checkpoint": "the weights of {name}",
}
_NOBODY = "*Nobody of these was measured.*\n"


def texts(results: Results) -> dict[str, str]:
    """Name of a passage → its Markdown."""
    return {
        "headline": _headline(results),
        "throughput": _throughput(results),
        "ratios": _ratios(results),
        "chain": _chain(results, number=6),
        "lesson-chain": _chain(results, number=2),
        "ablation": _ablation(results),
        "bytes": _bytes(results),
        "memory": _memory(results),
        "first-token": _first_token(results),
        "targets": _targets(results),
    }


def decode_lines(results: Results) -> dict[str, dict[int, float]]:
    """Variant → prompt → tokens per second of decoding: ours, and the peers that were measured."""
    found = {name: by_prompt(results, DECODE, name) for name in (OURS, W8, *PEERS)}
    return {
        name: {prompt: case["tok_s"]["median"] for prompt, case in sorted(cases.items())}
        for name, cases in found.items()
        if cases
    }


def _where(results: Results) -> str:
    where, own = results["provenance"], results["end_to_end"]
    weights = WEIGHTS[own["model"]["weights"]].format(name=own["model"]["name"])
    new_tokens = sorted({case["shape"]["new_tokens"] for case in results["cases"]})
    return (
        f"bfloat16, batch 1, {' or '.join(map(str, new_tokens))} greedy tokens, {weights}, on one {where['gpu']} "
        f"(driver {where['driver']}, torch {where['torch']}, transformers {where['transformers']}), commit "
        f"`{where['commit'][:12]}`, {where['date'][:10]}"
    )


def _heads(results: Results, first: str) -> list[str]:
    return [first, *(f"{prompt:,}" for prompt in prompts_of(results))]


def _rows(heads: Sequence[str], rows: Iterable[Cells]) -> str:
    found = list(rows)
    return table(heads, found) if found else _NOBODY


def _throughput(results: Results) -> str:
    absent = [TITLES[peer] for peer in PEERS if not by_prompt(results, REQUEST, peer)]
    words = f" Not measured: {'; '.join(absent)}." if absent else ""
    return f"""\
{_rows(_heads(results, "whole request, tok/s, by prompt"), rates(results, REQUEST))}
*Table 1.* Generated tokens ÷ (prefill + decode); loading and tokenisation are not in it. {_where(results)}.{words}

{_rows(_heads(results, "decode only, tok/s, by prompt"), rates(results, DECODE))}
*Table 2.* The tokens after the first: whole requests less those of one token, of the same runs.

![Tokens per second of decoding against the length of the prompt, with the floors](FIGURES/decode.svg)

*Figure 1.* Table 2, with what the bytes of a token allow at the measured
{results["ceilings"]["read_gbps"]:,.0f} GB/s: dotted, for a 16-bit and for an int8 head.
"""


def _headline(results: Results) -> str:
    """Ours and the peers, the slowest first, for README and the home page."""
    found = {TITLES[name]: by_prompt(results, DECODE, name) for name in (OURS, W8, *PEERS)}
    rates_of = {
        title: {prompt: case["tok_s"]["median"] for prompt, case in cases.items()} for title, cases in found.items()
    }
    prompts = prompts_of(results)
    rows = [
        [title, *(f"{of[prompt]:,.0f}" if prompt in of else "–" for prompt in prompts)]
        for title, of in sorted(rates_of.items(), key=lambda one: min(one[1].values(), default=0))
        if of
    ]
    return f"""\
{_rows(_heads(results, "decode, tokens per second, by prompt"), rows)}
{_where(results)}. Each column is of one run.
"""


def _ratios(results: Results) -> str:
    parts = [
        (3, "the same engine, int8 head ÷ 16-bit head", W8, (OURS,), "What the int8 head gains. It is another model."),
        (4, "ours ÷ theirs, both in bf16", OURS, PEERS, "The same weights: what the engine gains."),
        (5, "ours with an int8 head ÷ theirs in bf16", W8, PEERS, "Two changes at once: no measure of an engine."),
    ]
    out = []
    for number, title, of, overs, words in parts:
        requests = _rows(_heads(results, f"{title}: whole request"), ratio_rows(results, REQUEST, of, overs))
        decode = _rows(_heads(results, f"{title}: decode"), ratio_rows(results, DECODE, of, overs))
        out.append(f"{requests}\n{decode}\n*Table {number}.* {words}\n")
    interval = "Times as fast, the geometric mean over rounds of one run, with its 95 % interval in that run."
    return "\n".join([*out, interval, ""])


def _chain(results: Results, number: int) -> str:
    return f"""\
{_rows(_heads(results, "decode, tok/s, by prompt"), changes(results, CHAIN))}
*Table {number}.* From the first version to the last: each row adds one step, and says how many times as fast as the
row above it is. All rows are of one commit, with the same settings.
"""


def _ablation(results: Results) -> str:
    return f"""\
{_rows(_heads(results, "decode, tok/s, by prompt"), changes(results, ABLATIONS, OURS))}
*Table 7.* One stage off, all others on, and the change against the first row.
"""


def _bytes(results: Results) -> str:
    heads = ["prompt", "MB a token", "floor, tok/s", "reached", "MB, int8 head", "floor, tok/s", "reached"]
    return f"""\
{_rows(heads, byte_rows(results))}
*Table 8.* What a token reads and writes at the least, the mean over the steps of a request, and the most tokens per
second that {results["ceilings"]["read_gbps"]:,.0f} GB/s, measured in the same run, allow.
"""


def _memory(results: Results) -> str:
    own, prompts = results["end_to_end"], prompts_of(results)
    found = {(one["variant"], one["prompt"]): one for one in own["memory"]}
    rows = [
        [title, *(_mib(found.get((name, prompt))) for prompt in prompts)]
        for name, title in TITLES.items()
        if any((name, prompt) in found for prompt in prompts)
    ]
    return f"""\
{_rows(_heads(results, "MiB held (at most), by prompt"), rows)}
*Table 9.* Memory beside the {own["model"]["bytes"] / 2**20:,.0f} MiB of weights: held between two requests, and in
brackets the most that a request needed. Ours hold a cache of {own["max_length"]:,} tokens at every prompt; peers with
a fixed cache have one of just the request's size.
"""


def _mib(one: dict[str, int] | None) -> str:
    return "–" if one is None else f"{one['held_bytes'] / 2**20:,.0f} ({one['peak_bytes'] / 2**20:,.0f})"


def _first_token(results: Results) -> str:
    rows = []
    for name, title in TITLES.items():
        cases = by_prompt(results, FIRST, name)
        if cases:
            cells = [time_of(cases[n]["us"]["median"]) if n in cases else "–" for n in prompts_of(results)]
            rows.append([title, *cells])
    return f"""\
{_rows(_heads(results, "time to the first token, by prompt"), rows)}
*Table 10.* From the prompt’s ids to the first token on the host.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 11.* What was aimed at before anything was measured, and what came out.
"""
