"""The passages of chapter 6 that hold measured numbers: one sequence, the heads of Qwen3-0.6B, unless they say more."""

from __future__ import annotations

from chapters.ch05_grouped_attention.targets import HEADS
from chapters.ch06_split_attention.targets import FUSED_OP, OP, judge
from docs.hooks.operator_tables import Case, Results, Shown, measured_on, table, targets_table, time_of

SHOWN = Shown(
    count="context",
    width="batch",
    main=1,
    steps={},
    peers={
        "ours": "ours",
        "sdpa": "PyTorch’s SDPA",
        "sdpa_cudnn": "cuDNN",
        "flashinfer": "FlashInfer",
        "vllm_v1": "vLLM v1",
    },
)
WAYS = {
    "ours_grouped": "chapter 5’s kernel: a block a KV head",
    "ours_two_launches": "partitions, merged by a second launch",
    "ours_last_block": "partitions, merged by the last block",
    "ours_cluster": "partitions, merged by a cluster",
    "ours": "by the table",
    "ours_long_graph": "by the table, captured for 32,768 tokens",
}
FUSED = {
    "in_turn": "the write, then attention: two launches or more",
    "ours_last_block": "fused, merged by the last block",
    "ours_cluster": "fused, merged by a cluster",
    "ours": "fused, by the table",
}
SHORTER = (128, 512, 1024, 4096, 8192, 32768)  # contexts that a table has room for


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    own = with_heads(results)
    return {
        "question": _question(own),
        "ways": _ways(own),
        "fused": _fused(own),
        "peers": _peers(own),
        "bandwidth": _bandwidth(own),
        "batched": _batched(own),
        "models": _models(results),
        "targets": _targets(results),
    }


def with_heads(results: Results, heads: str = HEADS) -> Results:
    """The results of one model's heads alone."""
    return results | {"cases": [case for case in results["cases"] if case["shape"].get("heads") == heads]}


def longest_common(results: Results, *variants: str) -> int:
    """8,192 tokens, or the longest context below that was measured with all of these.

    Raises:
        KeyError: there is none.
    """
    both = set.intersection(*({SHOWN.of(c) for c in SHOWN.series(results, OP, name)} for name in variants))
    if not both:
        raise KeyError(f"{results['chapter']}: no context has {', '.join(variants)}; run the full benchmark.")
    return max((context for context in both if context <= 8192), default=max(both))


def _question(results: Results) -> str:
    context = longest_common(results, "ours_grouped")
    case = SHOWN.find(results, OP, "ours_grouped", context=context)
    assert case is not None  # longest_common says so
    sms = results["provenance"]["sms"]
    return f"""\
![Time of chapter 5’s kernel against the context, and the floor](figures/one-block.svg)

*Figure 1.* One block for each of 8 KV heads, one sequence, bfloat16, cold, on one {results["provenance"]["gpu"]}. At
{context:,} tokens it takes {time_of(case["us"]["median"])} where {time_of(case["floor_us"])} would do: it reads
{case["gbps"]:,.0f} GB/s, with 8 of {sms} SMs, or {case["gbps"] / 8:.0f} GB/s for each of them.
"""


def side_by_side(results: Results, op: str, ways: dict[str, str]) -> str:
    """A table: for each way that was measured its time by context, and the floor. Empty if there is none."""
    found = {name: {SHOWN.of(c): c for c in SHOWN.series(results, op, name)} for name in ways}
    found = {name: cases for name, cases in found.items() if cases}
    contexts = [context for context in SHORTER if any(context in cases for cases in found.values())]
    lines = [
        [ways[name], *(time_of(cases[c]["us"]["median"]) if c in cases else "–" for c in contexts)]
        for name, cases in found.items()
    ]
    if not lines:
        return ""
    floors = {c: case["floor_us"] for cases in found.values() for c, case in cases.items()}
    lines.append(["floor", *(time_of(floors[context]) for context in contexts)])
    return table(["one sequence, tokens of context", *(f"{context:,}" for context in contexts)], lines)


def _ways(results: Results) -> str:
    return f"""\
{side_by_side(results, OP, WAYS)}
*Table 2.* Each way to compute the same attention, bfloat16, cold, on one {results["provenance"]["gpu"]}. Merges in one
launch have the cut of the table. A dash: that has a single partition, so there is nothing to merge, or a number of them
that no cluster has.

![Time of each way against the context](figures/crossover.svg)

*Figure 6.* The same for all contexts that were measured. {crossing(results)} Dashed: the floor.
"""


def _fused(results: Results) -> str:
    rows = side_by_side(results, FUSED_OP, FUSED)
    if not rows:
        return "*Fused decode attention is not among the results yet: `make bench-chapter 6` on a GPU adds it.*\n"
    return f"""\
{rows}
*Table 9.* From packed QKV to the output of attention, bfloat16, cold, on one {results["provenance"]["gpu"]}. Fused, all
but qkv is asked for before the kernel ahead has ended.
"""


def crossing(results: Results) -> str:
    """From which context on partitions win, as a sentence."""
    whole = {SHOWN.of(c): c["us"]["median"] for c in SHOWN.series(results, OP, "ours_grouped")}
    parts = {SHOWN.of(c): c["us"]["median"] for c in SHOWN.series(results, OP, "ours_long_graph")}
    both = sorted(whole.keys() & parts.keys())
    wins = [context for context in both if parts[context] < whole[context]]
    if not wins:
        return "One block a KV head is faster at every context."
    lost = [context for context in both if context not in wins]
    if not lost:
        return "Partitions are faster at every context."
    return f"One block a KV head is faster up to {max(lost):,} tokens, partitions from {min(wins):,} tokens on."


def _peers(results: Results) -> str:
    absent = [SHOWN.peers[name] for name in SHOWN.peers if not SHOWN.series(results, OP, name)]
    words = f" Not measured: {', '.join(absent)}." if absent else ""
    return f"""\
{measured_on(results)}
{SHOWN.peers_table(results, OP)}
*Table 5.* One sequence, tokens of context, bfloat16, cold. PyTorch’s SDPA and cuDNN read dense keys and values, without
a table of blocks; vLLM v1 is `paged_attention_v1` on vLLM’s own layout of the cache.{words}
{SHOWN.losses(results, [OP])}
"""


def _bandwidth(results: Results) -> str:
    return f"""\
![Fraction of the floor that each implementation reaches, against the context](figures/floor.svg)

*Figure 8.* Floor ÷ time, one sequence. The floor is the larger of two measured times: bytes ÷ the
{results["ceilings"]["read_gbps"]:,.0f} GB/s at which this card reads, and one empty kernel in a CUDA graph.
"""


def _shape_lines(results: Results, names: list[str], shapes: list[dict[str, int]]) -> list[list[str]]:
    lines = []
    for shape in shapes:
        found: dict[str, Case | None] = {
            name: SHOWN.find(results, OP, name, context=shape["context"], batch=shape["batch"]) for name in names
        }
        floor = next(case["floor_us"] for case in found.values() if case)
        times = [time_of(case["us"]["median"]) if case else "–" for case in found.values()]
        lines.append([f"{shape['batch']} × {shape['context']:,}", time_of(floor), *times])
    return lines


def _batched(results: Results) -> str:
    names = [name for name in SHOWN.peers if SHOWN.series(results, OP, name)]
    ours = [
        c["shape"]
        for c in results["cases"]
        if (c["op"], c["variant"], c["dtype"], c["cache"]) == (OP, "ours", "bfloat16", "cold")
    ]
    shapes = [{"batch": s["batch"], "context": s["context"]} for s in ours if s["batch"] > 1]
    shapes.sort(key=lambda s: (s["context"], s["batch"]))
    if not shapes:
        return "*No batch has been measured.*\n"
    heads = ["sequences × tokens", "floor", *(SHOWN.peers[name] for name in names)]
    return f"""\
{table(heads, _shape_lines(results, names, shapes))}
*Table 6.* Several sequences of one length, bfloat16, cold.
"""


def _models(results: Results) -> str:
    lines = []
    models = sorted({str(c["shape"]["heads"]) for c in results["cases"] if "heads" in c["shape"]} - {HEADS})
    for heads in [HEADS, *models]:
        own = with_heads(results, heads)
        for context in (128, 1024, 8192):
            case = SHOWN.find(own, OP, "ours", context=context)
            if case:
                figures = time_of(case["floor_us"]), time_of(case["us"]["median"]), f"{case['floor_fraction']:.0%}"
                lines.append([f"{heads}, {context:,} tokens", *figures])
    return f"""\
{table(["query/KV heads × head_dim", "floor", "ours", "of the floor"], lines)}
*Table 7.* Heads of other models: Qwen3-8B has 32/8, 14B 40/8, 32B 64/8. One sequence, bfloat16, cold.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 8.* What was aimed at before anything was measured, and what came out.
"""
