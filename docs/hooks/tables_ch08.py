"""The passages of chapter 8 that hold measured numbers: the head of Qwen3-0.6B, group 128, unless they say otherwise.

A shape is a number of rows of x, and the head's sizes; logits are written by `linear` operations, ids by `argmax` ones.
"""

from __future__ import annotations

from chapters.ch08_w8a16_head.benchmark import BATCHES, GROUPS, SIZES
from chapters.ch08_w8a16_head.targets import GROUP, K, N, find, judge
from docs.hooks.operator_tables import Case, Results, counted, measured_on, table, targets_table, time_of

STEPS = {
    "v1": "four bytes a lane",
    "v2": "converted by a permutation",
    "v3": "16 bytes a lane, four rows at once",
    "kernels/cuda": "what the engine uses",
}
LOGITS = {
    ("w8a16_linear", "ours"): "ours, int8",
    ("w8a16_linear", "vllm_machete"): "Machete, int8",
    ("bf16_linear", "cublas"): "cuBLAS, bf16",
}
IDS = {
    ("w8a16_argmax", "ours"): "int8, fused",
    ("w8a16_argmax", "ours_two_launches"): "int8, logits first",
    ("head_argmax", "ours"): "bf16, fused",
    ("head_argmax", "cublas"): "bf16, cuBLAS first",
}
MODELS = {1024: "Qwen3-0.6B", 2048: "Qwen3-1.7B", 2560: "Qwen3-4B"}


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "ids": _ids(results),
        "peers": _peers(results),
        "groups": _groups(results),
        "models": _models(results),
        "targets": _targets(results),
    }


def by_batch(results: Results, op: str, variant: str, k: int = K, step: str | None = None) -> dict[int, Case]:
    """Rows of x → the case, of those that were measured."""
    found = {batch: find(results, op, variant, batch, k, step=step) for batch in BATCHES}
    return {batch: case for batch, case in found.items() if case is not None}


def step_cases(results: Results, step: str) -> dict[int, Case]:
    """The same of a version of the ladder, the engine's kernel among them."""
    return by_batch(results, "w8a16_linear", "ours", step=step if step.startswith("v") else None)


def _us(case: Case | None) -> str:
    return time_of(case["us"]["median"]) if case else "–"


def _times(of: Case | None, ours: Case | None) -> str:
    """How many times as fast ours is."""
    return f"{of['us']['median'] / ours['us']['median']:.2f} ×" if of and ours else "–"


def _question(results: Results) -> str:
    ours, bf16 = find(results, "w8a16_linear", "ours"), find(results, "bf16_linear", "cublas")
    told = ""
    if ours and bf16:
        told = (
            f" cuBLAS takes {_us(bf16)} with bf16 weights, our kernel {_us(ours)} with int8 ones: "
            f"{_times(bf16, ours)} as fast, for {ours['bytes'] / bf16['bytes']:.3f} of the bytes."
        )
    return f"""\
![Left: logits of one token by bf16 and by int8 weights. Right: the id of the largest](figures/one-head.svg)

*Figure 1.* The head of Qwen3-0.6B for one token, cold, on one {results["provenance"]["gpu"]}. Left all
{N:,} logits, right the id of the largest one.{told}
"""


def _ladder(results: Results) -> str:
    lines = []
    for step, title in STEPS.items():
        cases = step_cases(results, step)
        if cases:
            one = cases.get(1)
            shares = [f"{one['gbps']:,.0f}", f"{one['floor_fraction']:.0%}"] if one else ["–", "–"]
            lines.append([f"{step}, {title}", *(_us(cases.get(batch)) for batch in BATCHES), *shares])
    floors = step_cases(results, "kernels/cuda")
    lines.append(["floor", *(time_of(floors[n]["floor_us"]) if n in floors else "–" for n in BATCHES), "", ""])
    heads = [counted(batch) for batch in BATCHES]
    return f"""\
{table(["version", *heads, "GB/s", "of the floor"], lines)}
*Table 5.* `w8a16_linear` by each version of the ladder for 1 to 8 rows of x, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for one row.

![Time of each version against the number of rows of x](figures/ladder.svg)

*Figure 5.* The same. Dashed: the floor, which counts the weights once.
"""


def _ids(results: Results) -> str:
    cases = {kind: by_batch(results, *kind) for kind in IDS}
    lines = [[counted(batch), *(_us(of.get(batch)) for of in cases.values())] for batch in BATCHES]
    return f"""\
{table(["rows of x", *IDS.values()], lines)}
*Table 6.* The ids of the largest logits, by one launch and by two, cold, one {results["provenance"]["gpu"]}.
*First*: the logits are written, in fp32 by our kernel and in bf16 by cuBLAS, and `torch.argmax` reads them.
"""


def _peers(results: Results) -> str:
    cases = {kind: of for kind in LOGITS if (of := by_batch(results, *kind))}
    ours, bf16 = cases.get(("w8a16_linear", "ours"), {}), cases.get(("bf16_linear", "cublas"), {})
    lines, lost = [], []
    for batch in BATCHES:
        one, other = ours.get(batch), bf16.get(batch)
        floors = [time_of(case["floor_us"]) if case else "–" for case in (one, other)]
        shown = [_us(of.get(batch)) for of in cases.values()]
        lines.append([counted(batch), floors[0], *shown, floors[1], _times(other, one)])
        lost += [
            f"{LOGITS[kind]} at {counted(batch)}".replace(" ", "\u00a0")
            for kind, of in cases.items()
            if one and batch in of and of[batch]["us"]["median"] < one["us"]["median"]
        ]
    losses = f"Faster than ours: {'; '.join(lost)}." if lost else "No other is faster."
    words = [LOGITS[kind] for kind in cases]
    return f"""\
{measured_on(results)}
{table(["rows of x", "floor, int8", *words, "floor, bf16", "cuBLAS ÷ ours"], lines)}
*Table 7.* All {N:,} logits from {K:,} columns, cold. {losses}
"""


def _groups(results: Results) -> str:
    lines = []
    for group in (None, GROUP, *(size for size in GROUPS if size)):
        case = find(results, "w8a16_linear", "ours", group=group or K)
        if case is not None:
            name = f"{group} columns" if group else "a whole row"
            weight = N * (K + 4 * K // (group or K))
            lines.append([name, f"{weight / 2**20:.1f} MiB", _us(case), f"{case['floor_fraction']:.0%}"])
    return f"""\
{table(["a scale for", "weight and scales", "one row of x", "of the floor"], lines)}
*Table 8.* What scales cost in time: `w8a16_linear` for each size of a group, cold.
"""


def _models(results: Results) -> str:
    lines = []
    for k in SIZES:
        for batch in (BATCHES[0], BATCHES[-1]):
            ours, bf16 = (
                find(results, *kind, batch, k) for kind in (("w8a16_linear", "ours"), ("bf16_linear", "cublas"))
            )
            share = f"{ours['floor_fraction']:.0%}" if ours else "–"
            lines.append([f"{MODELS[k]}, {k:,} columns, {counted(batch)}", _us(ours), share, _times(bf16, ours)])
    return f"""\
{table(["head", "ours", "of the floor", "cuBLAS ÷ ours"], lines)}
*Table 9.* The heads of three models with one vocabulary, cold.

![How many times as fast as bf16 the int8 head is, against the number of rows](figures/gain.svg)

*Figure 6.* Time of cuBLAS with bf16 weights ÷ time of ours with int8 ones. Dashed: what the bytes allow.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 11.* What was aimed at before anything was measured, and what came out.
"""
