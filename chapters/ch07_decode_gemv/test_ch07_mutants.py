"""Plausible faults in decode_linear without Tensor Cores, one at a time: the checks notice all. And its choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chapters.ch07_decode_gemv.decode_linear_checks import (
    AROUND,
    DECODE_LINEAR_CHECKS,
    check_bits_do_not_depend_on_layout,
)
from chapters.ch07_decode_gemv.linear_cases import BF16, FP16, FP32, linear_case, run
from qwen_cuda.building import Edit, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "decode_linear"
CHECKS = (*DECODE_LINEAR_CHECKS, check_bits_do_not_depend_on_layout)

kernel = edit_of("decode_linear.cu")
turns = edit_of("row_turns.cuh")
sums = edit_of("row_sums.cuh")
walk = edit_of("row_walk.cuh")
operands = edit_of("linear_operands.cuh")
columns = edit_of("lane_columns.cuh")

VALUE = "fmaf(sum.product, scale, adds ? a.residual_of(residual) : 0.0f)"

MUTANTS = (
    # The sum.
    Mutant(
        "rows of W and of x exchanged",
        "A lane takes the sum of another.",
        turns("products[q * kBatch + b]", "products[b * kRows + q]"),
    ),
    Mutant(
        "lanes without columns count",
        "They read the last ones once more.",
        turns("counts ? x.dot(rows[q]) : 0.0f", "x.dot(rows[q])"),
    ),
    Mutant("last segment lost", "The whole ends one too early.", sums("s < count ?", "s < count - 1 ?")),
    Mutant(
        "order by the rows of a warp",
        "Sixteen rows add their segments from the last on, eight from the first.",
        sums("from[first + s][i]", "from[first + (kCount == 16 ? count - 1 - s : s)][i]"),
    ),
    Mutant(
        "no barrier",
        "Segments are added before they are there.",
        turns("    __syncthreads();\n", ""),
        "checked",
    ),
    Mutant(
        "one meeting place for all turns",
        "The next sums overwrite those that are being read.",
        turns("turn ^= 1;", ""),
        "checked",
    ),
    Mutant(
        "groups meet in one place",
        "The segments of all groups of a block overwrite each other.",
        turns("here.products[threadIdx.y * parts + part]", "here.products[part]"),
        "checked",
    ),
    Mutant(
        "sum kept for the next rows",
        "It grows from group to group.",
        walk("if (first == 0) sum.product = 0.0f;", ""),
    ),
    # The norm.
    Mutant(
        "squares of what has the gain",
        "The root mean square is that of x * gain.",
        columns("fmaf(value, value, squares)", "fmaf(value * gain.number(i), value * gain.number(i), squares)"),
    ),
    Mutant(
        "squares of the last turn",
        "Those of the segments before are lost.",
        turns("here.add(sum.squares,", "here.add(0.0f,"),
    ),
    Mutant(
        "squares of another row",
        "A lane takes those of a neighbour in the batch.",
        turns("0, count, lane % kBatch)", "0, count, lane / kRows)"),
    ),
    Mutant(
        "gain of the first segment",
        "It is not read again for the next.",
        turns("    read_gain();\n    load_rows", "    load_rows"),
    ),
    Mutant(
        "missing eps",
        "Rows of zeros divide by zero.",
        operands("fmaf(squares, mean_factor, eps)", "squares * mean_factor"),
    ),
    # After the sum.
    Mutant(
        "up of the row before", "Its lane is one nearer.", turns("residual, kSums / 2)", "residual, kSums / 2 - 1)")
    ),
    Mutant(
        "overflow kept",
        "The formula as it stands gives 0 or NaN for large gates.",
        operands("expf(-fabsf(z))", "expf(fabsf(z))", 2),
    ),
    Mutant(
        "residual scaled",
        "It goes through the norm.",
        sums(VALUE, "(sum.product + (adds ? a.residual_of(residual) : 0.0f)) * scale"),
    ),
    Mutant(
        "rounds twice",
        "The product is rounded before the residual is added.",
        sums(VALUE, VALUE.replace("fmaf(sum.product, scale, ", "to_float(from_float<W>(sum.product * scale)) + (")),
    ),
    # Where things lie.
    Mutant("x without gaps", "Its rows are looked for at k.", operands("x + i * x_stride", "x + i * k")),
    Mutant(
        "rows of x beyond the last",
        "A batch of 3 reads a fourth row.",
        turns("min(first + b + c, a.batch - 1)", "(first + b + c)"),
        "checked",
    ),
    Mutant("rows of W beyond the last", "They are read.", sums("min(r, last)", "r"), "checked"),
    Mutant(
        "columns of out beyond the last",
        "They are written.",
        turns("to < a.columns && !is_up", "!is_up"),
        "checked",
    ),
    Mutant(
        "16-byte loads at any address",
        "The fast path is taken although x is not aligned.",
        operands("rows_are_aligned(a.x, a.x_stride)", "true"),
        "checked",
    ),
    # The walk.
    Mutant(
        "steps longer than the grid",
        "Groups between two turns are never computed.",
        walk("group + gridDim.x * kWalkWarps", "group + (gridDim.x + 1) * kWalkWarps"),
    ),
    Mutant(
        "whole groups alone",
        "The last one, which has fewer rows, is left out.",
        walk("(a.columns + group_columns - 1) / group_columns", "a.columns / group_columns"),
    ),
    Mutant("x of the first turn", "It is not read again.", walk("x_is_here = next_first == first", "x_is_here = true")),
    Mutant(
        "squares counted again",
        "Where x is read again for each group, they grow from one to the next.",
        walk("if (kNorm && first == 0 && !x_is_here) sum.squares = 0.0f;", ""),
    ),
    Mutant("first segment for all", "A lane adds its sum again and again.", walk(" + s * (kWarpSize / kSums)", "")),
    Mutant(
        "last segments backwards",
        "A walk adds them in another order than a block does.",
        walk("r * kRowLanes + s *", "r * kRowLanes + (kWalkSegments - 1 - s) *"),
    ),
)

# Not faults: how the kernel could share out its work. No sum knows of it.
CHOICES: dict[str, tuple[Edit, ...]] = {
    "blocks for all groups": kernel("kWaves = 1;", "kWaves = 10000;"),
    "small blocks": (
        *kernel("kRows > 8 ? 12 : 16;", "kRows > 8 ? 9 : 10;"),
        *turns("kTurnWarps = 8", "kTurnWarps = 4"),
    ),
    "16 rows a warp": kernel("} else if (wide) {", "} else if (segments <= kMostWarps<16>) {"),
    "8 rows a warp": kernel("} else if (wide) {", "} else if (false) {"),
    "always a walk": kernel("groups_of(a, kWalkRows) < walkers", "false"),
}


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize("choice", CHOICES)
def test_decode_linear_has_the_same_bits_whatever_it_chooses(choice: str) -> None:
    plain = replace(default_library(SOURCE, "sim"), quick=True)
    other = replace(plain, edits=CHOICES[choice])
    build(plain, other)
    cases = [
        linear_case(1, n, k, dtype=dtype, out_dtype=FP32, **around)
        for n, k in ((30, 2304), (6, 4360))
        for dtype in (BF16, FP16)
        for around in AROUND
    ]
    with opened("sim", plain) as backend:
        expected = [run(backend, some) for some in cases]
    with opened("sim", other) as backend:
        for some, bits in zip(cases, expected, strict=True):
            assert_same_bits(run(backend, some), bits)
        for check in CHECKS:
            check(backend)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_decode_linear_as_it_is_passes(trial: MutantTrial, variant: str, seed: int) -> None:
    checked = Mutant("none", "Nothing.", (), "checked" if variant == "checked" else "plain", (seed,))
    assert trial.noticed(checked) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_decode_linear_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
