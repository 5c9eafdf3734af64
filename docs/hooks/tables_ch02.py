"""The passages of chapter 2 that hold measured numbers: hidden size 1,024 unless they say otherwise."""

from __future__ import annotations

from chapters.ch02_rms_norm.targets import judge
from docs.hooks.operator_tables import COPY, Results, Shown, counted, measured_on, table, targets_table, time_of

HIDDEN = 1024
SHOWN = Shown(
    width="hidden",
    main=HIDDEN,
    steps={  # of rms_norm; v5 adds a residual, and is v4 when there is none
        "v1": "a thread per row",
        "v2": "a block per row",
        "v3": "warp shuffles",
        "v4": "16-byte loads, row in registers",
        "kernels/cuda": "what the engine uses",
    },
    peers={
        "ours": "ours",
        "vllm": "vLLM",
        "torch_compile": "torch.compile",
        "torch_rms_norm": "F.rms_norm",
        "torch_eager": "PyTorch, op by op",
    },
)
OPS = ("rms_norm", "add_rms_norm")
PAIRS = 56  # additions that a norm follows, in one step of Qwen3-0.6B: two in each of 28 layers


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
    many = SHOWN.many(results, "add_rms_norm")
    one, eager, more, more_eager = (
        SHOWN.us(results, "add_rms_norm", who, rows=rows) for rows in (1, many) for who in ("ours", "torch_eager")
    )
    return f"""\
![Addition and norm of one row and of {many:,} rows: the floor, ours, and others](figures/one-norm.svg)

*Figure 1.* A residual addition and the norm after it, for one token and for {many:,}, hidden size {HIDDEN:,},
bfloat16, on one {results["provenance"]["gpu"]}. Written in PyTorch, operation by operation, it takes
{time_of(eager)} for one token, and a decode step has {PAIRS} such pairs: {time_of(PAIRS * eager)}.
One kernel for both takes {time_of(one)}. For {many:,} tokens it is {time_of(more_eager)} against {time_of(more)}.
"""


def _ladder(results: Results) -> str:
    steps, last = SHOWN.ladder_table(results, "rms_norm")
    return f"""\
{steps}
*Table 1.* `rms_norm` by each version of the ladder, hidden size {HIDDEN:,}, bfloat16, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for {last:,} rows.

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
    tables = "\n".join(SHOWN.peers_table(results, op) for op in OPS)
    copied = SHOWN.series(results, "rms_norm", COPY)
    words = " *Copy* is the driver’s own copy of the bytes that `rms_norm` moves." if copied else ""
    return f"""\
{measured_on(results)}
{tables}
*Table 2.* Hidden size {HIDDEN:,}, bfloat16, cold.{words}
{SHOWN.losses(results, OPS)}
"""


def _fusion(results: Results) -> str:
    gains = ""
    for rows in (1, SHOWN.many(results, "add_rms_norm")):
        ours, apart = (SHOWN.find(results, "add_rms_norm", who, rows=rows) for who in ("ours", "ours_unfused"))
        if ours and apart:
            two, one = apart["us"]["median"], ours["us"]["median"]
            gains += f"\nFor {counted(rows)} two kernels take {time_of(two)}, one takes {time_of(one)}."
    return f"""\
![Time of two kernels and of others ÷ time of the fused kernel, against the number of rows](figures/fusion.svg)

*Figure 6.* What fusing the addition is worth, hidden size {HIDDEN:,}, bfloat16, cold.{gains}
"""


def _sizes(results: Results) -> str:
    return f"""\
{SHOWN.sizes_table(results, "rms_norm", "hidden size")}
*Table 3.* Floor ÷ time of our `rms_norm` for each shape, cold. Rows of 1,023 numbers are the odd case: no 16-byte load
fits.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 4.* What was aimed at before anything was measured, and what came out.
"""


def _copy(results: Results) -> str:
    """Our norm beside the driver's copy of the same bytes, as fractions of the bandwidth of a large copy."""
    ceiling = results["ceilings"]["copy_gbps"]
    copies = {c["shape"]["rows"]: c for c in SHOWN.series(results, "rms_norm", COPY)}
    ours = {c["shape"]["rows"]: c for c in SHOWN.series(results, "rms_norm", "ours")}
    lines = [
        [counted(n), *(f"{time_of(c['us']['median'])}, {c['gbps'] / ceiling:.0%}" for c in (copies[n], ours[n]))]
        for n in sorted(copies.keys() & ours.keys())
        if n >= 512
    ]
    return table(["", "the driver's copy", "`rms_norm`"], lines)
