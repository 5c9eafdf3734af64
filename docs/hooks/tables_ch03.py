"""The passages of chapter 3 that hold measured numbers: 3,072 columns of gate and of up unless they say otherwise."""

from __future__ import annotations

from chapters.ch03_swiglu.targets import judge
from docs.hooks.operator_tables import COPY, Case, Results, Shown, counted, measured_on, table, targets_table, time_of

SIZE = 3072
OP = "silu_mul"
SHOWN = Shown(
    width="size",
    main=SIZE,
    steps={
        "v1": "a thread per element",
        "v2": "16-byte loads",
        "v3": "full blocks, brought in early",
        "kernels/cuda": "what the engine uses",
    },
    peers={
        "ours": "ours",
        "vllm": "vLLM",
        "torch_compile": "torch.compile",
        "torch_eager": "PyTorch, op by op",
    },
)
PACKINGS = {"gate_up_linear": "gate and up", "qkv_linear": "q, k and v"}
PRODUCTS = {"gate_up_linear": 2, "qkv_linear": 3}  # of the unpacked form
LAYERS = 28  # of Qwen3-0.6B: so many of these products in a decode step


def texts(results: Results) -> dict[str, str]:
    """Name of a passage in the lesson → its Markdown."""
    return {
        "question": _question(results),
        "packing": _packing(results),
        "ladder": _ladder(results),
        "peers": _peers(results),
        "bandwidth": _bandwidth(results),
        "sizes": _sizes(results),
        "targets": _targets(results),
    }


def packing_cases(results: Results, op: str) -> list[tuple[Case, Case]]:
    """The matrix products packed and apart, by rows: in bfloat16 and on a cold cache."""
    kind = {"op": op, "dtype": "bfloat16", "cache": "cold"}
    packed, apart = (
        {c["shape"]["rows"]: c for c in results["cases"] if (kind | {"variant": name}).items() <= c.items()}
        for name in ("cublas_packed", "cublas_apart")
    )
    return [(packed[rows], apart[rows]) for rows in sorted(packed.keys() & apart.keys())]


def _question(results: Results) -> str:
    many = SHOWN.many(results, OP)
    one, eager, more, more_eager = (
        SHOWN.us(results, OP, who, rows=rows) for rows in (1, many) for who in ("ours", "torch_eager")
    )
    return f"""\
![SiLU and product of one row and of {many:,} rows: the floor, ours, and others](figures/one-product.svg)

*Figure 1.* `silu(gate) · up` for one token and for {many:,}, {SIZE:,} columns, bfloat16, on one
{results["provenance"]["gpu"]}. PyTorch's two operations take {time_of(eager)} for one token, and a decode step does
this {LAYERS} times: {time_of(LAYERS * eager)}. One kernel takes {time_of(one)}. For {many:,} tokens it is
{time_of(more_eager)} against {time_of(more)}.
"""


def _packing(results: Results) -> str:
    lines = []
    for op, title in PACKINGS.items():
        for packed, apart in packing_cases(results, op):
            one, several = packed["us"]["median"], apart["us"]["median"]
            launches = f"{PRODUCTS[op]}, 1"
            times = [time_of(us) for us in (packed["floor_us"], several, one)]
            lines.append([f"{title}, {counted(packed['shape']['rows'])}", launches, *times, f"{several / one:.2f} ×"])
    heads = ["projections of Qwen3-0.6B", "products apart, packed", "floor", "apart", "packed", "apart ÷ packed"]
    return f"""\
{table(heads, lines)}
*Table 1.* The projections of one input by cuBLAS, with a weight each and with one packed weight, bfloat16, cold, in a
CUDA graph, on one {results["provenance"]["gpu"]}.
"""


def _ladder(results: Results) -> str:
    steps, last = SHOWN.ladder_table(results, OP)
    return f"""\
{steps}
*Table 2.* `silu_mul` by each version of the ladder, {SIZE:,} columns, bfloat16, cold cache, one
{results["provenance"]["gpu"]}. The last two columns are for {last:,} rows.

![Time of each version against the number of rows](figures/ladder.svg)

*Figure 6.* The same for all numbers of rows. Dashed: the floor. For few rows that is the cost of a kernel that does
nothing.
"""


def _peers(results: Results) -> str:
    copied = SHOWN.series(results, OP, COPY)
    words = " *Copy* is the driver’s own copy, of as many bytes." if copied else ""
    return f"""\
{measured_on(results)}
{SHOWN.peers_table(results, OP)}
*Table 3.* {SIZE:,} columns, bfloat16, cold.{words}
{SHOWN.losses(results, [OP])}
{_asides(results)}
"""


def _asides(results: Results) -> str:
    """Two more figures of the comparison: what Hugging Face's roundings cost us, and PyTorch without packed rows."""
    told = []
    asides = {
        "ours_hf_rounding": ("ours", "with `hf_rounding` ours takes"),
        "torch_eager_unpacked": ("torch_eager", "on two matrices instead of packed rows PyTorch takes"),
    }
    for name, (like, words) in asides.items():
        times = []
        for rows in (1, SHOWN.many(results, OP)):
            other, usual = (SHOWN.find(results, OP, who, rows=rows) for who in (name, like))
            if other and usual:
                both = " instead of ".join(time_of(case["us"]["median"]) for case in (other, usual))
                times.append(f"{both} for {counted(rows)}")
        if times:
            sentence = f"{words} {' and '.join(times)}."
            told.append(sentence[0].upper() + sentence[1:])
    return "\n".join(told)


def _bandwidth(results: Results) -> str:
    return f"""\
![Fraction of the floor that each implementation reaches, against the number of rows](figures/floor.svg)

*Figure 7.* Floor ÷ time of `silu_mul`. The floor is the larger of two measured times: bytes ÷ the
{results["ceilings"]["copy_gbps"]:,.0f} GB/s at which this card copies, and one empty kernel in a CUDA graph.
"""


def _sizes(results: Results) -> str:
    return f"""\
{SHOWN.sizes_table(results, OP, "columns")}
*Table 4.* Floor ÷ time of our `silu_mul` for each shape, cold. At an odd number of columns no 16-byte load fits.
"""


def _targets(results: Results) -> str:
    return f"""\
{targets_table(judge(results))}
*Table 6.* What was aimed at before anything was measured, and what came out.
"""
