"""The passages of chapter 5 that hold measured numbers: the heads of Qwen3-0.6B, bfloat16 and a cold cache.

A shape is a number of sequences, all of one context; heads are written as in the results, "16/8 × 128".
"""

from __future__ import annotations

from chapters.ch05_grouped_attention.targets import HEADS, OP, find, judge
from docs.hooks.operator_tables import Case, Results, measured_on, table, targets_table, time_of

STEPS = {
    "v1": "head by head",
    "v2": "the group together",
    "v3": "16-byte loads, four tokens on their way",
    "v4": "eight warps",
    "kernels/cuda": "what the engine uses",
}
PEERS = {"sdpa": "PyTorch SDPA", "sdpa_cudnn": "cuDNN", "vllm_v1": "vLLM v1"}
LAYERS = 28  # of Qwen3-0.6B: so often in a decode step
SHORT, LONG, MANY = (128, 1), (8192, 1), (1024, 64)  # context and sequences
CLIMBED = (SHORT, (1024, 1), LONG, MANY)  # what the table of the ladder shows


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "peers": _peers(results),
        "alone": _alone(results),
        "shapes": _shapes(results),
        "targets": _targets(results),
    }


def series(results: Results, variant: str = "ours", step: str | None = None, *, context: int = 0) -> list[Case]:
    """The cases of one variant: of one sequence by context, or of one `context` by the number of sequences."""
    kind = {"op": OP, "variant": variant, "step": step, "dtype": "bfloat16", "cache": "cold"}
    found = []
    for case in results["cases"]:
        shape = case["shape"]
        usual = kind.items() <= case.items() and shape["heads"] == HEADS and "block_size" not in shape
        if usual and (shape["context"] == context if context else shape["batch"] == 1):
            found.append(case)
    return sorted(found, key=lambda c: int(c["shape"]["batch" if context else "context"]))


def step_case(results: Results, step: str, where: tuple[int, int]) -> Case | None:
    """Of a version of the ladder, the engine's kernel among them, at a context and a number of sequences."""
    return find(results, *where, step=step if step.startswith("v") else None)


def blocks_of(case: Case) -> int:
    """The blocks of the grouped kernel: one for each KV head of each sequence."""
    return int(case["shape"]["batch"]) * kv_heads_of(case)


def kv_heads_of(case: Case) -> int:
    return int(str(case["shape"]["heads"]).partition(" ")[0].partition("/")[2])


def _us(case: Case | None) -> str:
    return time_of(case["us"]["median"]) if case else "–"


def _question(results: Results) -> str:
    told = []
    for where in (SHORT, MANY):
        ours, apart, peer = (find(results, *where), step_case(results, "v1", where), _best(results, where))
        if ours is None:
            continue
        words = f"For {_sequences(where)} our kernel takes {_us(ours)}"
        others = []
        if peer is not None:
            others.append(f"the best of the others {_us(peer)} ({PEERS[peer['variant']]})")
        if apart is not None:
            others.append(f"and head by head it is {_us(apart)}")
        told.append(", ".join([words, *others]) + ".")
    return f"""\
![Attention of one token, for one short context and for many sequences: the floor, ours, others](figures/one-step.svg)

*Figure 2.* Attention of one new token a sequence in one layer, bfloat16, cold, on one {results["provenance"]["gpu"]}.
{" ".join(told)} A decode step does this {LAYERS} times.
"""


def _best(results: Results, where: tuple[int, int]) -> Case | None:
    """The fastest of the others."""
    found = [case for name in PEERS if (case := find(results, *where, variant=name)) is not None]
    return min(found, key=lambda c: float(c["us"]["median"]), default=None)


def _sequences(where: tuple[int, int]) -> str:
    context, batch = where
    return f"{batch:,} sequence{'s' * (batch > 1)} of {context:,} tokens"


def _ladder(results: Results) -> str:
    columns = [where for where in CLIMBED if any(step_case(results, step, where) for step in STEPS)]
    last = columns[-1]
    lines = []
    for step, title in STEPS.items():
        cases = [step_case(results, step, where) for where in columns]
        if any(cases):
            end = cases[-1]
            shares = [f"{end['gbps']:,.0f}", f"{end['floor_fraction']:.0%}"] if end else ["–", "–"]
            lines.append([f"{step}, {title}", *map(_us, cases), *shares])
    floors = [find(results, *where) for where in columns]
    lines.append(["floor", *(time_of(c["floor_us"]) if c else "–" for c in floors), "", ""])
    heads = [f"{batch} × {context:,}" for context, batch in columns]
    return f"""\
{table(["version, sequences × tokens", *heads, "GB/s", "of the floor"], lines)}
*Table 3.* `{OP}` by each version of the ladder, bfloat16, cold cache, one {results["provenance"]["gpu"]}. The last two
columns are for {_sequences(last)}; each byte that must be read counts once.

![Time of each version against the length of one context](figures/ladder.svg)

*Figure 5.* One sequence, by the length of its context. Dashed: the floor.
"""


def _peers(results: Results) -> str:
    there = {name: title for name, title in PEERS.items() if any(c["variant"] == name for c in results["cases"])}
    ours = [*series(results), *(c for n in (128, 1024, 4096) for c in series(results, context=n) if _many(c))]
    lines, lost = [], []
    for case in ours:
        where = case["shape"]["context"], case["shape"]["batch"]
        best = _best(results, where)
        ratio = best["us"]["median"] / case["us"]["median"] if best else None
        cells = [_us(find(results, *where, variant=name)) for name in there]
        name = f"{where[1]:,} × {where[0]:,}"
        gain = "–" if ratio is None else f"{ratio:.2f} ×"
        lines.append([name, time_of(case["floor_us"]), _us(case), *cells, gain])
        if ratio is not None and ratio < 1:
            lost.append(name.replace(" ", "\u00a0"))
    losses = f"Another is faster at {', '.join(lost)}." if lost else "No other is faster at any shape of the table."
    heads = ["sequences × tokens", "floor", "ours", *there.values(), "best other ÷ ours"]
    return f"""\
{measured_on(results)}
{table(heads, lines)}
*Table 4.* One new token a sequence, {HEADS}, bfloat16, cold. PyTorch's attention reads dense keys and values, and looks
nothing up; vLLM's reads its own layout of pages. {losses}
"""


def _many(case: Case) -> bool:
    return int(case["shape"]["batch"]) > 1


def _alone(results: Results) -> str:
    sms, most = int(results["provenance"]["sms"]), float(results["ceilings"]["read_gbps"])
    told = ""
    case = find(results, *LONG)
    if case is not None:
        blocks = blocks_of(case)
        each, share = case["gbps"] / blocks, most / sms
        verdict = "more" if each > share else "less"
        told = f"""
One sequence of {LONG[0]:,} tokens takes {_us(case)}: {case["gbps"]:,.0f} GB/s, {case["gbps"] / most:.0%} of the
{most:,.0f} at which this card reads. Each of the {blocks} SMs at work reads {each:.0f} GB/s. If all {sms} shared the
bandwidth, each would get {share:.0f}: the busy ones do {verdict} than their share, and {sms - blocks} do nothing.
"""
    return f"""\
![Left: time against the length of one context. Right: GB/s against the number of blocks](figures/idle.svg)

*Figure 7.* Left: one sequence. Right: bandwidth of our kernel at 1,024 tokens a sequence, against the number of its
blocks; dotted, one block for each of the {sms} SMs; dashed, what the card reads.
{told}"""


def _shapes(results: Results) -> str:
    kind = {"op": OP, "variant": "ours", "step": None, "cache": "cold"}
    found: dict[tuple[str, str, str], dict[int, Case]] = {}
    for case in results["cases"]:
        shape = case["shape"]
        if kind.items() <= case.items() and shape["context"] == 1024 and shape["batch"] in (1, 16):
            key = str(shape["heads"]), f"pages of {shape.get('block_size', 16)}", str(case["dtype"])
            found.setdefault(key, {})[int(shape["batch"])] = case
    most = float(results["ceilings"]["read_gbps"])
    lines = []
    for key, cases in found.items():
        sixteen = cases.get(16)
        share = f"{sixteen['gbps'] / most:.0%}" if sixteen else "–"
        lines.append([", ".join(key), _us(cases.get(1)), _us(sixteen), share])
    heads = ["query/KV heads × head_dim", "1 sequence", "16 sequences", "of what the card reads"]
    return f"""\
{table(heads, lines)}
*Table 5.* Our kernel on the heads of other models and other pages, 1,024 tokens a sequence, cold. The last column
is for 16 sequences.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 6.* What was aimed at before anything was measured, and what came out.
"""
