"""The passages of chapter 2 that hold measured numbers, and which cases of its results they and the figures show.

A case is in bfloat16 and on a cold cache, with hidden size 1,024, unless it is asked for otherwise. What was not
measured is left out of a table; it is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chapters.ch02_rms_norm.targets import judge

Results = dict[str, Any]
Case = dict[str, Any]

HIDDEN = 1024
STEPS = {  # of rms_norm; v5 adds a residual, and is v4 when there is none
    "v1": "a thread per row",
    "v2": "a block per row",
    "v3": "warp shuffles",
    "v4": "16-byte loads, row in registers",
    "kernels/cuda": "what the engine uses",
}
PEERS = {
    "ours": "ours",
    "vllm": "vLLM",
    "torch_compile": "torch.compile",
    "torch_rms_norm": "F.rms_norm",
    "torch_eager": "PyTorch, op by op",
}
COPY = "copy"  # the driver's copy of the bytes of rms_norm: what this size can reach at all, and no rival
PAIRS = 56  # additions that a norm follows, in one step of Qwen3-0.6B: two in each of 28 layers
_ROWS = (1, 128, 1024, 8192)


def series(results: Results, op: str, variant: str, step: str | None = None, **wanted: Any) -> list[Case]:
    """The cases of one variant, by rows. `wanted` may name rows, hidden, dtype and cache."""
    shape = {"hidden": wanted.pop("hidden", HIDDEN)} | ({"rows": wanted.pop("rows")} if "rows" in wanted else {})
    kind = {"op": op, "variant": variant, "step": step, "dtype": "bfloat16", "cache": "cold"} | wanted
    found = [c for c in results["cases"] if kind.items() <= c.items() and shape.items() <= c["shape"].items()]
    return sorted(found, key=lambda c: int(c["shape"]["rows"]))


def find(results: Results, op: str, variant: str, step: str | None = None, **wanted: Any) -> Case | None:
    """The only such case, or None."""
    found = series(results, op, variant, step, **wanted)
    return found[0] if found else None


def ladder_of(results: Results) -> dict[str, list[Case]]:
    """Step → its cases of rms_norm; a step that was not measured is left out."""
    found = {step: series(results, "rms_norm", "ours", step if step.startswith("v") else None) for step in STEPS}
    return {step: cases for step, cases in found.items() if cases}


def many_rows(results: Results) -> int:
    """8,192 rows, a long prefill, or the largest number measured below."""
    rows = [c["shape"]["rows"] for c in series(results, "add_rms_norm", "ours")]
    return max((count for count in rows if count <= 8192), default=max(rows))


def time_of(us: float) -> str:
    """A time with three digits, as operators are compared: 1.74 µs, 20.9 µs, 320 µs, 1.25 ms."""
    if us >= 1e3:
        return f"{us / 1e3:,.2f} ms"
    return f"{us:.{2 if us < 10 else 1 if us < 100 else 0}f} µs"


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "bandwidth": _bandwidth(results),
        "peers": _peers(results),
        "fusion": _fusion(results),
        "sizes": _sizes(results),
        "targets": _targets(results),
        "copy": _copy(results),
    }


def _question(results: Results) -> str:
    many = many_rows(results)
    one, eager, more, more_eager = (
        _must(results, "add_rms_norm", who, rows=rows)["us"]["median"]
        for rows in (1, many)
        for who in ("ours", "torch_eager")
    )
    return f"""\
![Addition and norm of one row and of {many:,} rows: the floor, ours, and others](figures/one-norm.svg)

*Figure 1.* A residual addition and the norm after it, for one token and for {many:,}, hidden size {HIDDEN:,},
bfloat16, on one {results["provenance"]["gpu"]}. Written in PyTorch, operation by operation, it takes
{time_of(eager)} for one token, and a decode step has {PAIRS} such pairs: {time_of(PAIRS * eager)}.
One kernel for both takes {time_of(one)}. For {many:,} tokens it is {time_of(more_eager)} against {time_of(more)}.
"""


def _ladder(results: Results) -> str:
    steps = ladder_of(results)
    measured = set.intersection(*({c["shape"]["rows"] for c in cases} for cases in steps.values()))
    counts = [count for count in _ROWS if count in measured] or sorted(measured)
    table = []
    for step, cases in steps.items():
        by_rows = {c["shape"]["rows"]: c for c in cases}
        last = by_rows[counts[-1]]
        times = [time_of(by_rows[count]["us"]["median"]) for count in counts]
        table.append([f"{step}, {STEPS[step]}", *times, f"{last['gbps']:,.0f}", f"{last['floor_fraction']:.0%}"])
    floors = [time_of(c["floor_us"]) for count in counts for c in cases if c["shape"]["rows"] == count]
    table.append(["floor", *floors, "", ""])
    heads = [_rows(count) for count in counts]
    return f"""\
{_table(["version", *heads, "GB/s", "of the floor"], table)}
*Table 1.* `rms_norm` by each version of the ladder, hidden size {HIDDEN:,}, bfloat16, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for {counts[-1]:,} rows.

![Time of each version against the number of rows](figures/ladder.svg)

*Figure 7.* The same for all numbers of rows. Dashed: the floor. For few rows that is the cost of a kernel that does
nothing.
"""


def _bandwidth(results: Results) -> str:
    ceilings = results["ceilings"]
    return f"""\
![Fraction of the floor that each implementation reaches, against the number of rows](figures/floor.svg)

*Figure 8.* Floor ÷ time of `rms_norm`. The floor is the larger of two measured times: bytes ÷ the
{ceilings["copy_gbps"]:,.0f} GB/s at which this card copies, and one empty kernel in a CUDA graph.
"""


def _peers(results: Results) -> str:
    where = results["provenance"]
    lines = [
        f"Measured on one {where['gpu']} ({where['sms']} SMs, driver {where['driver']}, torch {where['torch']}),",
        f"commit `{where['commit'][:12]}`, {where['date'][:10]}. Medians of kernels replayed in a CUDA graph, operands",
        "cold in every cache, all candidates in one process, each checked against float64 before it is timed.",
        "",
    ]
    for op in ("rms_norm", "add_rms_norm"):
        ours = series(results, op, "ours")
        copies = {c["shape"]["rows"]: c for c in series(results, op, COPY)}
        others = {name: series(results, op, name) for name in PEERS if name != "ours"}
        others = {name: cases for name, cases in others.items() if cases}
        table = []
        for case in ours:
            rows = case["shape"]["rows"]
            peers = [find(results, op, name, rows=rows) for name in others]
            best = min([p["us"]["median"] for p in peers if p], default=None)
            shown = [*([copies.get(rows)] if copies else []), case, *peers]
            times = [time_of(c["us"]["median"]) if c else "–" for c in shown]
            gain = "–" if best is None else f"{best / case['us']['median']:.2f} ×"
            table.append([f"{rows:,}", time_of(case["floor_us"]), *times, gain])
        heads = [*(["copy"] if copies else []), "ours", *(PEERS[name] for name in others)]
        lines += [_table([f"`{op}`, rows", "floor", *heads, "best other ÷ ours"], table)]
    copied = series(results, "rms_norm", COPY)
    words = " *Copy* is the driver’s own copy of the bytes that `rms_norm` moves." if copied else ""
    lines += [f"*Table 2.* Hidden size {HIDDEN:,}, bfloat16, cold.{words}", _losses(results), ""]
    return "\n".join(lines)


def _losses(results: Results) -> str:
    """Every shape at which somebody else is faster, of all that were measured in bfloat16 and cold."""
    lost: dict[str, list[str]] = {}
    for case in results["cases"]:
        if (case["variant"], case["step"], case["dtype"], case["cache"]) != ("ours", None, "bfloat16", "cold"):
            continue
        rivals = [find(results, case["op"], name, **case["shape"]) for name in PEERS if name != "ours"]
        fastest = min((r for r in rivals if r), key=lambda r: float(r["us"]["median"]), default=None)
        if fastest is not None and fastest["us"]["median"] < case["us"]["median"]:
            by = case["us"]["median"] / fastest["us"]["median"] - 1
            size = f"{case['shape']['rows']:,}\u00a0×\u00a0{case['shape']['hidden']:,} (by\u00a0{by:.0%})"
            lost.setdefault(f"{PEERS[fastest['variant']]}’s `{case['op']}` at ", []).append(size)
    if not lost:
        return "No other is faster at any shape that was measured."
    return f"Faster than ours: {'; '.join(who + ', '.join(sizes) for who, sizes in lost.items())}."


def _fusion(results: Results) -> str:
    gains = ""
    for rows in (1, many_rows(results)):
        ours, apart = (find(results, "add_rms_norm", who, rows=rows) for who in ("ours", "ours_unfused"))
        if ours and apart:
            two, one = apart["us"]["median"], ours["us"]["median"]
            gains += f"\nFor {_rows(rows)} two kernels take {time_of(two)}, one takes {time_of(one)}."
    return f"""\
![Time of two kernels and of others ÷ time of the fused kernel, against the number of rows](figures/fusion.svg)

*Figure 6.* What fusing the addition is worth, hidden size {HIDDEN:,}, bfloat16, cold.{gains}
"""


def _sizes(results: Results) -> str:
    mine = [c for c in results["cases"] if c["op"] == "rms_norm" and c["variant"] == "ours" and c["step"] is None]
    mine = [c for c in mine if c["cache"] == "cold"]
    kinds = sorted({(c["dtype"] != "bfloat16", c["dtype"], c["shape"]["hidden"]) for c in mine})
    counts = sorted({c["shape"]["rows"] for c in mine})
    table = []
    for _, dtype, hidden in kinds:
        cases = {c["shape"]["rows"]: c for c in series(results, "rms_norm", "ours", dtype=dtype, hidden=hidden)}
        cells = [f"{cases[n]['floor_fraction']:.0%}" if n in cases else "–" for n in counts]
        table.append([f"{dtype}, {hidden:,}", *cells])
    return f"""\
{_table(["dtype, hidden size", *map(_rows, counts)], table)}
*Table 3.* Floor ÷ time of our `rms_norm` for each shape, cold. Rows of 1,023 numbers are the odd case: no 16-byte load
fits.
"""


def _targets(results: Results) -> str:
    marks = {True: "met", False: "**missed**", None: "not measured"}
    table = [[v.name, v.target, v.measured, marks[v.passed]] for v in judge(results)]
    return f"""\
{_table(["what", "target", "measured", ""], table, numbers=False)}
*Table 4.* What was aimed at before anything was measured, and what came out.
"""


def _copy(results: Results) -> str:
    """Our norm beside the driver's copy of the same bytes, as fractions of the bandwidth of a large copy."""
    ceiling = results["ceilings"]["copy_gbps"]
    copies = {c["shape"]["rows"]: c for c in series(results, "rms_norm", COPY)}
    ours = {c["shape"]["rows"]: c for c in series(results, "rms_norm", "ours")}
    table = [
        [_rows(n), *(f"{time_of(c['us']['median'])}, {c['gbps'] / ceiling:.0%}" for c in (copies[n], ours[n]))]
        for n in sorted(copies.keys() & ours.keys())
        if n >= 512
    ]
    return _table(["", "the driver's copy", "`rms_norm`"], table)


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count > 1)}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A Markdown table, the first column to the left; ends with an empty line."""
    rule = "|---|" + ("---:|" if numbers else "---|") * (len(heads) - 1)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""])


def _must(results: Results, op: str, variant: str, step: str | None = None, **wanted: Any) -> Case:
    case = find(results, op, variant, step, **wanted)
    if case is None:
        raise KeyError(f"{results['chapter']}: there is no case {op}, {variant}, {wanted}; run the full benchmark.")
    return case
