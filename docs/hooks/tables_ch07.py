"""The passages of chapter 7 that hold measured numbers: one row of x, bfloat16 and cold, unless they say more."""

from __future__ import annotations

from dataclasses import replace

from chapters.ch07_decode_gemv import chain
from chapters.ch07_decode_gemv.benchmark import BATCHES, ODD, OTHER_LAYERS
from chapters.ch07_decode_gemv.candidates import LAYERS, Layer
from chapters.ch07_decode_gemv.targets import STACK, find, judge
from docs.hooks.operator_tables import Case, Results, measured_on, table, targets_table, time_of
from qwen_cuda.benchmarking import targets

TITLES = {"qkv": "QKV", "o": "O", "gate_up": "gate/up", "down": "down", "head": "head"}
STEPS = {
    "v1": "a warp for a row",
    "v2": "words in flight",
    "v3": "rows cut",
    "v4": "weights read ahead",
    None: "kernels/cuda: tiles, a line at a time",
}
PEERS = {
    "ours_without_pdl": "ours, launched alone",
    "cublas": "cuBLAS, the product alone",
    "cublas_and_ours": "cuBLAS and our norm, SiLU, sum",
    "torch_compile": "torch.compile",
}


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "peers": _peers(results),
        "chain": _chain(results),
        "batches": _batches(results),
        "models": _models(results),
        "targets": _targets(results),
    }


def step_case(results: Results, layer: Layer | None, step: str | None) -> Case | None:
    """Our kernel, or a step of the ladder, on a layer, or on the chain of all."""
    if layer is None:
        shape: dict[str, int | str] = {"layers": STACK.layers, "rows": STACK.rows}
        return targets.find(results, chain.OP, "ours", shape, step=step)
    return targets.find(results, layer.op, "ours", {"rows": layer.rows, "n": layer.n, "k": layer.k}, step=step)


def chain_case(results: Results, variant: str, rows: int = 1) -> Case | None:
    return targets.find(results, chain.OP, variant, {"layers": STACK.layers, "rows": rows})


def _time(case: Case | None, parts: int = 1) -> str:
    return time_of(case["us"]["median"] / parts) if case else "–"


def _floor(*cases: Case | None) -> str:
    return next((time_of(case["floor_us"]) for case in cases if case), "–")


def _question(results: Results) -> str:
    o = find(results, next(layer for layer in LAYERS if layer.op == "o"), "cublas")
    said = ""
    if o:
        said = f" cuBLAS takes {_time(o)} for O, [2048] → [1024]: {o['gbps']:,.0f} GB/s."
    return f"""\
![Fraction of the floor that each implementation reaches, for each linear layer](figures/layers.svg)

*Figure 1.* Floor ÷ time of the linear layers of Qwen3-0.6B for one token, bfloat16, cold, each alone, on one
{results["provenance"]["gpu"]}.{said}
"""


def _ladder(results: Results) -> str:
    lines = []
    for step, title in STEPS.items():
        cases = [step_case(results, layer, step) for layer in LAYERS]
        whole = step_case(results, None, step)
        if any(cases) or whole:
            name = f"{step}, {title}" if step else title
            lines.append([name, *map(_time, cases), _time(whole, STACK.layers)])
    floors = [_floor(step_case(results, layer, None)) for layer in LAYERS]
    of_chain = step_case(results, None, None)
    lines.append(["floor", *floors, time_of(of_chain["floor_us"] / STACK.layers) if of_chain else "–"])
    return f"""\
{table(["version", *TITLES.values(), "a layer of the chain"], lines)}
*Table 2.* Each version on each layer, with the norm, SiLU or sum that belongs to it, and on the four products of a
layer in turn, 28 layers in one graph. One token, bfloat16, cold, one {results["provenance"]["gpu"]}.

![Time of the four products of a layer by each version, and the floor](figures/ladder.svg)

*Figure 6.* Its last column.
"""


def _shape_of(layer: Layer) -> str:
    return f"{TITLES.get(layer.op, layer.op)}, {layer.k:,} → {layer.n:,}"


def _peers(results: Results) -> str:
    who = [name for name in PEERS if any(find(results, layer, name) for layer in LAYERS)]
    lines = []
    for layer in LAYERS:
        ours, *others = (find(results, layer, name) for name in ("ours", *who))
        best = min((c["us"]["median"] for n, c in zip(who, others, strict=True) if c and n in PEERS_ONLY), default=None)
        gain = f"{best / ours['us']['median']:.2f} ×" if best and ours else "–"
        share = f"{ours['floor_fraction']:.0%}" if ours else "–"
        lines.append([_shape_of(layer), _floor(ours, *others), _time(ours), share, *map(_time, others), gain])
    heads = ["one token", "floor", "ours", "of the floor", *(PEERS[name] for name in who), "best other ÷ ours"]
    return f"""\
{measured_on(results)}
{table(heads, lines)}
*Table 3.* The linear layers of Qwen3-0.6B. Ours and torch.compile compute the norm, SiLU or sum with the product;
cuBLAS alone does not. *Launched alone*: without programmatic dependent launch.
"""


PEERS_ONLY = {"cublas", "cublas_and_ours", "torch_compile"}


def _chain(results: Results) -> str:
    lines = []
    for name, title in {"ours": "ours", "ours_waits_first": "ours, nothing read ahead", **PEERS}.items():
        case = chain_case(results, name)
        if case:
            share = f"{case['floor_fraction']:.0%}"
            lines.append([title, _time(case, STACK.layers), _time(case), f"{case['gbps']:,.0f}", share])
    if not lines:
        return "*The chain is not among the results yet: `make bench-chapter 7` on a GPU adds it.*\n"
    return f"""\
{table(["one token", "a layer", "28 layers", "GB/s", "of the floor"], lines)}
*Table 4.* QKV, O, gate/up and down of 28 layers in one CUDA graph, each product with the result of the one before,
without attention, bfloat16.
"""


def _batches(results: Results) -> str:
    lines = []
    for rows in (1, *BATCHES):
        for name, title in (("ours", "ours"), ("cublas", "cuBLAS, the product alone")):
            cases = [find(results, replace(layer, rows=rows), name) for layer in LAYERS]
            if any(cases):
                lines.append([f"{rows} rows, {title}".replace("1 rows", "1 row"), *map(_time, cases)])
    return f"""\
{table(["rows of x", *TITLES.values()], lines)}
*Table 5.* The same weights for several tokens, bfloat16, cold.
"""


def _models(results: Results) -> str:
    lines = []
    for layer in (*OTHER_LAYERS, ODD):
        ours, compiled, cublas = (find(results, layer, name) for name in ("ours", "torch_compile", "cublas"))
        if ours:
            share = f"{ours['floor_fraction']:.0%}"
            lines.append([_shape_of(layer), _floor(ours), _time(ours), share, _time(compiled), _time(cublas)])
    if not lines:
        return "*No other model has been measured.*\n"
    return f"""\
{table(["one token", "floor", "ours", "of the floor", "torch.compile", "cuBLAS, the product alone"], lines)}
*Table 6.* The layers of Qwen3-4B, and an odd size, whose rows no 16-byte load fits. bfloat16, cold.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 7.* What was aimed at before anything was measured, and what came out.
"""
