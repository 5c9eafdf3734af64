"""The passages of chapter 10 that hold measured numbers: bfloat16, the heads of Qwen3-0.6B, a cold cache.

A shape of the writer is a number of tokens and a format; one of attention a context, a batch and, unless the cache is
one of 16 bits, a format.
"""

from __future__ import annotations

from chapters.ch10_quantized_kv.targets import FUSED_CONTEXTS, find_fused, judge
from docs.hooks.operator_tables import Case, Results, Shown, counted, measured_on, table, targets_table, time_of

OP, READER, PLAIN_READER = "norm_rope_hadamard_quant_store", "paged_attention_quantized", "paged_attention"
SHOWN = Shown(
    count="tokens",
    steps={
        "v1": "a thread per head",
        "v2": "a warp per head, in shared memory",
        "kernels/cuda": "what the engine uses",
    },
    peers={"ours": "ours", "ours_unfused": "ours, in turn", "torch_eager": "PyTorch, op by op"},
)
FP8, FP4 = "fp8", "nvfp4"
WRITTEN = {FP8: "FP8", FP4: "NVFP4"}
CACHES = {
    "bf16": "bf16",
    "fp8": "FP8, token by token",
    "fp8_sections": "FP8, codes then scales",
    "nvfp4": "NVFP4, token by token",
    "nvfp4_sections": "NVFP4, codes then scales",
}
BEST = {"fp8_sections": "FP8", "nvfp4_sections": "NVFP4"}  # without padding between rows


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "writers": _writers(results),
        "readers": _readers(results),
        "fused": _fused(results),
        "targets": _targets(results),
    }


def of_format(results: Results, name: str) -> Results:
    """The writer's results in one format."""
    cases = [case for case in results["cases"] if case["op"] == OP and case["shape"].get("format") == name]
    return results | {"cases": cases}


def reader(results: Results, cache: str, context: int, batch: int = 1, variant: str = "ours") -> Case | None:
    """The case of attention over one kind of cache, or None."""
    kind = {"op": PLAIN_READER if cache == "bf16" else READER, "variant": variant, "step": None, "cache": "cold"}
    shape = {"context": context, "batch": batch} | ({} if cache == "bf16" else {"format": cache})
    found = (c for c in results["cases"] if kind.items() <= c.items() and shape.items() <= c["shape"].items())
    return next(found, None)


def shapes(results: Results) -> list[tuple[int, int]]:
    """Batch and context of every comparison of caches, small ones first."""
    read = [case["shape"] for case in results["cases"] if case["op"] in (READER, PLAIN_READER)]
    return sorted({(shape["batch"], shape["context"]) for shape in read})


def _us(case: Case | None) -> str:
    return time_of(case["us"]["median"]) if case else "–"


def _times(of: Case | None, ours: Case | None) -> str:
    """How many times as fast ours is."""
    return f"{of['us']['median'] / ours['us']['median']:.2f} ×" if of and ours else "–"


def _question(results: Results) -> str:
    longest = max((context for batch, context in shapes(results) if batch == 1), default=0)
    context = min(8192, longest)
    plain = reader(results, "bf16", context)
    told = [
        f"{words} {_us(case)}, {_times(plain, case)} as fast for {case['bytes'] / plain['bytes']:.2f} of the bytes"
        for name, words in BEST.items()
        if plain and (case := reader(results, name, context))
    ]
    ends = f" At {context:,} tokens bf16 takes {_us(plain)}; {'; '.join(told)}." if told else ""
    return f"""\
![Time of attention over bf16, FP8 and FP4 caches against the context](figures/readers.svg)

*Figure 2.* Attention of one new token by the cache's format, cold, on one {results["provenance"]["gpu"]}.{ends}
"""


def _ladder(results: Results) -> str:
    own = of_format(results, FP8)
    if not SHOWN.series(own, OP, "ours"):
        return "*The ladder was not measured in FP8: `make bench-chapter 10` without `--quick` does.*\n"
    steps, last = SHOWN.ladder_table(own, OP)
    return f"""\
{steps}
*Table 3.* The write of K and V, 8 heads each, by each version of the ladder: FP8, groups of 32, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for {counted(last, "tokens")}.

![Time of each version against the number of tokens](figures/ladder.svg)

*Figure 9.* The same for all numbers of tokens. Dashed: the floor.
"""


def _writers(results: Results) -> str:
    found = [(name, of_format(results, name)) for name in WRITTEN]
    tables = [
        SHOWN.peers_table(own, OP, title=f"{WRITTEN[name]}, tokens")
        for name, own in found
        if SHOWN.series(own, OP, "ours")
    ]
    losses = " ".join(f"{WRITTEN[name]}: {SHOWN.losses(own, [OP])}" for name, own in found if own["cases"])
    inside = "\n".join(tables) or "Nothing was measured.\n"
    return f"""\
{measured_on(results)}
{inside}
*Table 5.* The write of K and V. *In turn*: our own operators, one for norm and rotation, one for the transform, two for
the stores. *Copy*: the driver's copy of as many bytes. {losses}
"""


def _readers(results: Results) -> str:
    names = [name for name in CACHES if any(reader(results, name, c, b) for b, c in shapes(results))]
    lines = []
    for batch, context in shapes(results):
        cases = {name: reader(results, name, context, batch) for name in names}
        plain = cases.get("bf16")
        size = f"{context:,} tokens" if batch == 1 else f"{batch} × {context:,} tokens"
        gains = [_times(plain, cases.get(name)) for name in BEST]
        lines.append([size, *(_us(case) for case in cases.values()), *gains])
    heads = ["context", *(CACHES[name] for name in names), *(f"bf16 ÷ {words}" for words in BEST.values())]
    return f"""\
{table(heads, lines)}
*Table 6.* Attention of one new token over each cache, by the plan for its context, cold. The keys of quantised caches
are transformed, and so are the queries, in the same launch.
"""


def _fused(results: Results) -> str:
    lines = []
    for context in FUSED_CONTEXTS:
        pairs = [[find_fused(results, name, context, who) for who in ("in_turn", "ours")] for name in BEST]
        cells = [cell for two, one in pairs for cell in (_us(two), _us(one), _times(two, one))]
        if any(case for pair in pairs for case in pair):
            lines.append([f"{context:,} tokens", *cells])
    heads = [f"{words}, {what}" for words in BEST.values() for what in ("in two", "in one", "two ÷ one")]
    inside = (
        table(["context", *heads], lines) if lines else "*Not measured yet: `make bench-chapter 10` on a GPU does.*\n"
    )
    return f"""\
{inside}
*Table 7.* From packed QKV to the output of attention, the new token's codes stored on the way, cold: the writer and the
reader as two launches, and as one.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 9.* What was aimed at before anything was measured, and what came out.
"""
