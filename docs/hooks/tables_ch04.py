"""The passages of chapter 4 that hold measured numbers: 16 heads of Q, 8 of K and of V, as in Qwen3-0.6B."""

from __future__ import annotations

from chapters.ch04_paged_kv.targets import judge
from docs.hooks.operator_tables import COPY, Results, Shown, counted, measured_on, targets_table, time_of

OP = "qk_norm_rope_cache_write"
SHOWN = Shown(
    count="tokens",
    steps={
        "v1": "a thread per head, three launches",
        "v2": "one launch",
        "v3": "a warp per head",
        "v4": "early loads, brought in early",
        "v5": "16-byte loads, eight lanes a head",
        "kernels/cuda": "what the engine uses",
    },
    peers={
        "ours": "ours",
        "vllm": "vLLM",
        "torch_compile": "torch.compile",
        "torch_eager": "PyTorch, op by op",
    },
)
LAYERS = 28  # of Qwen3-0.6B: so often in a decode step


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "ladder": _ladder(results),
        "peers": _peers(results),
        "bandwidth": _bandwidth(results),
        "targets": _targets(results),
    }


def _question(results: Results) -> str:
    many = SHOWN.many(results, OP)
    one, eager, more, more_eager = (
        SHOWN.us(results, OP, who, tokens=tokens) for tokens in (1, many) for who in ("ours", "torch_eager")
    )
    return f"""\
![From qkv to q and the cache, for one token and for {many:,}: the floor, ours, and others](figures/one-write.svg)

*Figure 1.* Norm, rotation and the write into the cache, for one token and for {many:,}, 16 + 8 + 8 heads, bfloat16, on
one {results["provenance"]["gpu"]}. Operation by operation PyTorch takes {time_of(eager)} for one token,
fetching the angles included, and a decode step does this {LAYERS} times: {time_of(LAYERS * eager)}.
One kernel takes {time_of(one)}. For {many:,} tokens it is {time_of(more_eager)} against {time_of(more)}.
"""


def _ladder(results: Results) -> str:
    steps, last = SHOWN.ladder_table(results, OP)
    return f"""\
{steps}
*Table 1.* `{OP}` by each version of the ladder, bfloat16, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for {counted(last, "tokens")}.

![Time of each version against the number of tokens](figures/ladder.svg)

*Figure 6.* The same for all numbers of tokens. Dashed: the floor. For few tokens that is the cost of a kernel that does
nothing.
"""


def _peers(results: Results) -> str:
    copied = SHOWN.series(results, OP, COPY)
    words = " *Copy* is the driver’s own copy of `qkv`, about as many bytes." if copied else ""
    return f"""\
{measured_on(results)}
{SHOWN.peers_table(results, OP, title="tokens")}
*Table 2.* 16 heads of Q, 8 of K and of V, blocks of 16 tokens in any order, bfloat16, cold.{words}
{SHOWN.losses(results, [OP])}
"""


def _bandwidth(results: Results) -> str:
    return f"""\
![Fraction of the floor that each implementation reaches, against the number of tokens](figures/floor.svg)

*Figure 7.* Floor ÷ time. The floor is the larger of two measured times: bytes ÷ the
{results["ceilings"]["copy_gbps"]:,.0f} GB/s at which this card copies, and one empty kernel in a CUDA graph.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 4.* What was aimed at before anything was measured, and what came out.
"""
