"""Tables of a chapter whose benchmark compares one operator at several sizes: which cases they show, and how.

A case is in bfloat16, on a cold cache and of the chapter's main width, unless it is asked for otherwise. What was not
measured is left out of a table; it is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]
Case = dict[str, Any]

COPY = "copy"  # the driver's copy of the bytes of an operator: what this size can reach at all, and no rival
_COUNTS = (1, 128, 1024, 8192)
_MARKS = {True: "met", False: "**missed**", None: "not measured"}


@dataclass(frozen=True)
class Shown:
    """What a chapter shows of its results.

    `count` names the number of a shape that the tables go by, such as rows. `width` names a second one, if there is
    one, and `main` is the width that most tables are for. `steps` and `peers` give titles to the steps of the ladder
    and to the variants of a comparison, in the order of the tables.
    """

    steps: dict[str, str]
    peers: dict[str, str]
    count: str = "rows"
    width: str | None = None
    main: int = 0

    def series(
        self,
        results: Results,
        op: str,
        variant: str,
        step: str | None = None,
        dtype: str = "bfloat16",
        cache: str = "cold",
        **shape: int,
    ) -> list[Case]:
        """The cases of one variant, by their count. `shape` may name the count, and a width other than the main one."""
        kind = {"op": op, "variant": variant, "step": step, "dtype": dtype, "cache": cache}
        sizes = ({self.width: self.main} if self.width else {}) | shape
        found = [c for c in results["cases"] if kind.items() <= c.items() and sizes.items() <= c["shape"].items()]
        return sorted(found, key=self.of)

    def of(self, case: Case) -> int:
        """The count of a case."""
        return int(case["shape"][self.count])

    def find(self, results: Results, op: str, variant: str, step: str | None = None, **wanted: Any) -> Case | None:
        """The only such case, or None."""
        found = self.series(results, op, variant, step, **wanted)
        return found[0] if found else None

    def at(self, results: Results, op: str, variant: str, count: int) -> Case | None:
        """The case of a variant for so many rows or tokens, or None."""
        return next((case for case in self.series(results, op, variant) if self.of(case) == count), None)

    def us(self, results: Results, op: str, variant: str, **wanted: Any) -> float:
        """The median time of the only such case.

        Raises:
            KeyError: there is none.
        """
        case = self.find(results, op, variant, **wanted)
        if case is None:
            raise KeyError(f"{results['chapter']}: there is no case {op}, {variant}, {wanted}; run the full benchmark.")
        return float(case["us"]["median"])

    def ladder_of(self, results: Results, op: str) -> dict[str, list[Case]]:
        """Step → its cases; a step that was not measured is left out."""
        found = {step: self.series(results, op, "ours", step if step.startswith("v") else None) for step in self.steps}
        return {step: cases for step, cases in found.items() if cases}

    def many(self, results: Results, op: str) -> int:
        """8,192 rows or tokens, a long prefill, or the largest number measured below."""
        counts = [self.of(c) for c in self.series(results, op, "ours")]
        return max((count for count in counts if count <= 8192), default=max(counts))

    def ladder_table(self, results: Results, op: str) -> tuple[str, int]:
        """Times of each step, and the count that its last two columns are for."""
        steps = self.ladder_of(results, op)
        measured = set.intersection(*({self.of(c) for c in cases} for cases in steps.values()))
        counts = [count for count in _COUNTS if count in measured] or sorted(measured)
        lines = []
        for step, cases in steps.items():
            by_count = {self.of(c): c for c in cases}
            last = by_count[counts[-1]]
            times = [time_of(by_count[count]["us"]["median"]) for count in counts]
            lines.append(
                [f"{step}, {self.steps[step]}", *times, f"{last['gbps']:,.0f}", f"{last['floor_fraction']:.0%}"]
            )
        floors = [time_of(c["floor_us"]) for count in counts for c in cases if self.of(c) == count]
        lines.append(["floor", *floors, "", ""])
        heads = [counted(count, self.count) for count in counts]
        return table(["version", *heads, "GB/s", "of the floor"], lines), counts[-1]

    def peers_table(self, results: Results, op: str, title: str | None = None) -> str:
        """Ours beside everybody else, by their count. `title` stands over the counts, or the operator's name."""
        copies = {self.of(c): c for c in self.series(results, op, COPY)}
        others = {name: self.series(results, op, name) for name in self.peers if name != "ours"}
        others = {name: cases for name, cases in others.items() if cases}
        lines = []
        for case in self.series(results, op, "ours"):
            count = self.of(case)
            peers = [self.at(results, op, name, count) for name in others]
            best = min([p["us"]["median"] for p in peers if p], default=None)
            shown = [*([copies.get(count)] if copies else []), case, *peers]
            times = [time_of(c["us"]["median"]) if c else "–" for c in shown]
            gain = "–" if best is None else f"{best / case['us']['median']:.2f} ×"
            lines.append([f"{count:,}", time_of(case["floor_us"]), *times, gain])
        heads = [*(["copy"] if copies else []), "ours", *(self.peers[name] for name in others)]
        return table([title or f"`{op}`, {self.count}", "floor", *heads, "best other ÷ ours"], lines)

    def losses(self, results: Results, ops: Sequence[str]) -> str:
        """Every shape at which somebody else is faster, of all that were measured in bfloat16 and cold."""
        lost: dict[str, list[str]] = {}
        for case in results["cases"]:
            kind = (case["variant"], case["step"], case["dtype"], case["cache"])
            if case["op"] not in ops or kind != ("ours", None, "bfloat16", "cold"):
                continue
            rivals = [self.find(results, case["op"], name, **case["shape"]) for name in self.peers if name != "ours"]
            fastest = min((r for r in rivals if r), key=lambda r: float(r["us"]["median"]), default=None)
            if fastest is not None and fastest["us"]["median"] < case["us"]["median"]:
                by = case["us"]["median"] / fastest["us"]["median"] - 1
                other = f"\u00a0×\u00a0{case['shape'][self.width]:,}" if self.width else ""
                size = f"{self.of(case):,}{other} (by\u00a0{by:.0%})"
                lost.setdefault(f"{self.peers[fastest['variant']]}’s `{case['op']}` at ", []).append(size)
        if not lost:
            return "No other is faster at any shape that was measured."
        return f"Faster than ours: {'; '.join(who + ', '.join(sizes) for who, sizes in lost.items())}."

    def sizes_table(self, results: Results, op: str, title: str) -> str:
        """Floor ÷ time of ours for each dtype, width and count. Only for shapes that have a width."""
        assert self.width is not None
        kind = {"op": op, "variant": "ours", "step": None, "cache": "cold"}
        mine = [c for c in results["cases"] if kind.items() <= c.items()]
        kinds = sorted({(c["dtype"] != "bfloat16", c["dtype"], c["shape"][self.width]) for c in mine})
        counts = sorted({self.of(c) for c in mine})
        lines = []
        for _, dtype, width in kinds:
            found = self.series(results, op, "ours", dtype=dtype, **{self.width: width})
            by_count = {self.of(c): f"{c['floor_fraction']:.0%}" for c in found}
            lines.append([f"{dtype}, {width:,}", *(by_count.get(n, "–") for n in counts)])
        return table([f"dtype, {title}", *(counted(count, self.count) for count in counts)], lines)


def measured_on(results: Results) -> str:
    """Where, when and how, as a paragraph without its end."""
    where = results["provenance"]
    return f"""\
Measured on one {where["gpu"]} ({where["sms"]} SMs, driver {where["driver"]}, torch {where["torch"]}),
commit `{where["commit"][:12]}`, {where["date"][:10]}. Medians of kernels replayed in a CUDA graph, operands
cold in every cache, all candidates in one process, each checked against float64 before it is timed.
"""


def targets_table(verdicts: Iterable[Any]) -> str:
    """What was aimed at, from `Verdict`s of a chapter."""
    lines = [[v.name, v.target, v.measured, _MARKS[v.passed]] for v in verdicts]
    return table(["what", "target", "measured", ""], lines, numbers=False)


def time_of(us: float) -> str:
    """A time with three digits, as operators are compared: 1.74 µs, 20.9 µs, 320 µs, 1.25 ms."""
    if us >= 1e3:
        return f"{us / 1e3:,.2f} ms"
    return f"{us:.{2 if us < 10 else 1 if us < 100 else 0}f} µs"


def counted(count: int, what: str = "rows") -> str:
    """A number and what it counts: 1 row, 8 rows."""
    return f"{count:,} {what if count > 1 else what.removesuffix('s')}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A Markdown table, the first column to the left; ends with an empty line."""
    rule = "|---|" + ("---:|" if numbers else "---|") * (len(heads) - 1)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""])
