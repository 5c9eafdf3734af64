"""docs/results/<gpu>/ch06_plans.json → how the time depends on the number of partitions: two tables and a figure.

They show paged attention; the plans of fused decode attention go into chapter 6's dispatch.json only.
"""

from __future__ import annotations

from pathlib import Path

from chapters.ch06_split_attention.targets import OP
from docs.hooks import measured
from docs.hooks.operator_tables import Results, table
from docs.hooks.plot_style import ACC, OTHER, K, Q, V, W, drawing, svg

KV_HEADS = 8
CONTEXTS = (512, 1024, 4096, 8192, 32768)  # of the figure
CLOSE = 1.01  # a plan within one part in a hundred of the fastest is as good
_NOTHING = (
    "*No plans are in the repository yet: `python -m chapters.ch06_split_attention.plan_table` on a GPU writes them.*\n"
)

Times = dict[tuple[int, int], dict[int, float]]  # (batch, context) → partitions → µs, by the best size and merge


def stored(root: Path) -> Results | None:
    """The measured plans of the main GPU, else of the first that there is."""
    return measured.stored(root, "ch06_plans")


def times(results: Results) -> Times:
    """The variants are named as in `plan_table.name_of`: partitions × tokens, and perhaps the merge."""
    found: Times = {}
    for case in (case for case in results["cases"] if case["op"] == OP):
        partitions = int(str(case["variant"]).partition(" × ")[0])
        by_count = found.setdefault((case["shape"]["batch"], case["shape"]["context"]), {})
        us = float(case["us"]["median"])
        by_count[partitions] = min(us, by_count.get(partitions, us))
    return found


def passages(root: Path) -> dict[str, str]:
    """Name of a passage → its Markdown."""
    results = stored(root)
    if results is None:
        return {"plans": _NOTHING, "batches": _NOTHING}
    return {"plans": _plans(results), "batches": _batches(results)}


def figures(root: Path) -> dict[str, str]:
    """File name → SVG; none where nothing has been measured."""
    results = stored(root)
    return {} if results is None else {"plans.svg": drawn(results)}


def _plans(results: Results) -> str:
    found = {context: by for (batch, context), by in sorted(times(results).items()) if batch == 1}
    counts = sorted({n for by in found.values() for n in by})
    lines = []
    for context, by in found.items():
        best = min(by.values())
        cells = ["–" if n not in by else _cell(by[n], by[n] <= CLOSE * best) for n in counts]
        lines.append([f"{context:,}", *cells])
    heads = ["tokens, by partitions", *(str(n) for n in counts)]
    sms = results["provenance"]["sms"]
    return f"""\
![Time against the number of blocks, for five contexts](figures/plans.svg)

*Figure 7.* Time against the number of blocks, {KV_HEADS} for each partition, one sequence, on one
{results["provenance"]["gpu"]} with {sms} SMs.

{table(heads, lines)}
*Table 3.* µs by the number of partitions, each with its best partition size and merge. Bold: the fastest, and what lies
within 1 % of it.
"""


def _cell(us: float, good: bool) -> str:
    text = f"{us:.2f}" if us < 10 else f"{us:.1f}"
    return f"**{text}**" if good else text


def _batches(results: Results) -> str:
    found = times(results)
    batches, contexts = sorted({b for b, _ in found}), sorted({c for _, c in found})
    lines = []
    for batch in batches:
        cells = []
        for context in contexts:
            by = found.get((batch, context))
            cells.append("–" if by is None else str(fewest(by)))
        lines.append([f"{batch}, or {batch * KV_HEADS} KV heads", *cells])
    return f"""\
{table(["sequences", *(f"{context:,}" for context in contexts)], lines)}
*Table 4.* The fewest partitions that come within 1 % of the fastest plan, by sequences and tokens of context.
"""


def fewest(by: dict[int, float]) -> int:
    """The smallest number of partitions that is as good as the best."""
    best = min(by.values())
    return min(count for count, us in by.items() if us <= CLOSE * best)


def drawn(results: Results) -> str:
    """µs against blocks, a line for each context; the SMs as a vertical."""
    fig, ax = drawing(height=3.4)
    found, sms = times(results), results["provenance"]["sms"]
    ticks: set[int] = set()
    for context, colour in zip(CONTEXTS, (W, OTHER, Q, K, ACC), strict=True):
        by = dict(sorted(found.get((1, context), {}).items()))
        if not by:
            continue
        blocks = [KV_HEADS * n for n in by]
        ticks.update(blocks)
        ax.loglog(blocks, list(by.values()), "o-", color=colour, ms=4)
        best = min(by, key=lambda n: by[n])
        ax.plot(KV_HEADS * best, by[best], "o", color=colour, ms=8, mfc="none")
        start = (blocks[0], by[min(by)])
        words = f"{context:,} tokens"
        ax.annotate(
            words, start, (-8, 0), textcoords="offset points", va="center", ha="right", color=colour, fontsize=9
        )
    ax.axvline(sms, color=V, ls="--", lw=1)
    ax.text(sms * 1.04, ax.get_ylim()[1], f"{sms} SMs", color=V, va="top", fontsize=9)
    shown = [n for n in sorted(ticks) if not any(n < other < 1.2 * n for other in ticks)]
    ax.set_xticks(shown, labels=[str(n) for n in shown])
    marks = [us for us in (5, 10, 20, 50, 100, 200, 500) if ax.get_ylim()[0] <= us <= ax.get_ylim()[1]]
    ax.set_yticks(marks, labels=[str(us) for us in marks])
    ax.minorticks_off()
    ax.set(xlabel="blocks", ylabel="µs", xlim=(0.3 * min(ticks), 1.2 * max(ticks)))
    return svg(fig)
