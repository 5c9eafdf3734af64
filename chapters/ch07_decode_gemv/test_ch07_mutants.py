"""Plausible faults in kernels/cuda/decode_linear.cu and its headers, one at a time: the checks must notice all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chapters.ch07_decode_gemv.decode_linear_checks import DECODE_LINEAR_CHECKS, check_bits_do_not_depend_on_layout
from qwen_cuda.building import Edit, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.mutants import Mutant, MutantTrial

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "decode_linear"
CHECKS = (*DECODE_LINEAR_CHECKS, check_bits_do_not_depend_on_layout)


def kernel(old: str, new: str, count: int = 1) -> tuple[Edit, ...]:
    return (Edit("decode_linear.cu", old, new, count),)


def sums(old: str, new: str, count: int = 1) -> tuple[Edit, ...]:
    return (Edit("row_sums.cuh", old, new, count),)


def operands(old: str, new: str, count: int = 1) -> tuple[Edit, ...]:
    return (Edit("linear_operands.cuh", old, new, count),)


def columns(old: str, new: str, count: int = 1) -> tuple[Edit, ...]:
    return (Edit("lane_columns.cuh", old, new, count),)


VALUE = "fmaf(sum.product, scale, adds ? a.residual_of(residual) : 0.0f)"
SEGMENTS = "const int segments = chunks < kMostSegments ? int(chunks) : kMostSegments"
SQUARES = "chunk == segment ? squares : sums.squares[i] + squares"

MUTANTS = (
    # The sum.
    Mutant(
        "last pack of each lane dropped",
        "A quarter of each chunk is missing.",
        sums("for (int j = 0; j < kLanePacks; ++j)", "for (int j = 0; j < kLanePacks - 1; ++j)"),
    ),
    Mutant(
        "lanes not added", "Each sum is that of one lane.", sums("mine.product = sum", "mine.product = products[r][i]")
    ),
    Mutant(
        "rows of W and of x exchanged",
        "A lane takes the sum of another.",
        sums("lane == r * kBatch + i", "lane == i * kRows + r"),
    ),
    Mutant("last segment lost", "The whole ends one too early.", sums("s < segments", "s < segments - 1")),
    Mutant("no barrier", "Segments are added before they are there.", sums("    __syncthreads();\n", ""), "checked"),
    Mutant(
        "one meeting place for all turns",
        "The next rows overwrite sums that are being read.",
        kernel("turn ^= 1;", ""),
        "checked",
    ),
    Mutant(
        "groups meet in one place",
        "The segments of all groups of a block overwrite each other.",
        kernel("threadIdx.y * segments + segment", "segment"),
        "checked",
    ),
    Mutant("sum kept for the next rows", "It grows from group to group.", kernel("sums.clear_products();", "")),
    Mutant(
        "numbers of a pair exchanged",
        "The upper half of a word is taken for its first number.",
        columns("i % 2 == 0 ? pair << 16", "i % 2 == 1 ? pair << 16"),
    ),
    Mutant(
        "order by the number of rows of x",
        "A batch cuts its sums as nobody alone does.",
        kernel(SEGMENTS, SEGMENTS.replace("= chunks <", "= a.batch > 1 ? 1 : chunks <")),
    ),
    Mutant(
        "order by the number of rows of W",
        "A part of W cuts its sums as the whole does not.",
        kernel(SEGMENTS, SEGMENTS.replace("= chunks <", "= a.columns > 100 ? 1 : chunks <")),
    ),
    # The norm.
    Mutant("gain forgotten", "The norm has no weight.", columns("kNorm ? value * gain.number(j, i) : value", "value")),
    Mutant(
        "squares of what has the gain",
        "The root mean square is that of x * gain.",
        columns("fmaf(value, value, sum)", "fmaf(value * gain.number(j, i), value * gain.number(j, i), sum)"),
    ),
    Mutant("squares of the last chunk", "Those of the chunks before are lost.", kernel(SQUARES, "squares")),
    Mutant("squares of all groups", "They grow from group to group.", kernel(SQUARES, "sums.squares[i] + squares")),
    Mutant(
        "squares of one segment",
        "Those of the others are not added.",
        sums("        mine.squares += sums[warp + s][lane].squares;\n", ""),
    ),
    Mutant(
        "squares of another row",
        "A lane takes those of a neighbour in the batch.",
        sums("lane % kBatch == i", "lane / kRows == i"),
    ),
    Mutant("mean over a chunk", "It is divided by 1024.", operands("static_cast<float>(k)", "1024.0f")),
    Mutant(
        "missing eps",
        "Rows of zeros divide by zero.",
        operands("static_cast<float>(k) + eps)", "static_cast<float>(k))"),
    ),
    Mutant(
        "gain of the first chunk",
        "It is not read again for the next.",
        kernel("if (kNorm && !x_is_here)", "if (false)"),
    ),
    # After the sum.
    Mutant("SiLU of up", "gate and up are exchanged.", kernel("silu(value) * up", "value * silu(up)")),
    Mutant("up of the next row of x", "Its lane is one further.", kernel("value, kBatch);", "value, kBatch / 2 + 1);")),
    Mutant(
        "overflow kept",
        "The formula as it stands gives 0 or NaN for large gates.",
        operands("expf(-fabsf(z))", "expf(fabsf(z))"),
    ),
    Mutant(
        "residual scaled",
        "It goes through the norm.",
        kernel(VALUE, "(sum.product + (adds ? a.residual_of(residual) : 0.0f)) * scale"),
    ),
    Mutant(
        "rounds twice",
        "The product is rounded before the residual is added.",
        kernel(VALUE, VALUE.replace("fmaf(sum.product, scale, ", "to_float(from_float<W>(sum.product * scale)) + (")),
    ),
    Mutant("residual of the first row", "All rows add it.", kernel("residual_bits(mine, to)", "residual_bits(0, to)")),
    Mutant("residual without gaps", "Its rows are looked for at n.", operands("i * residual_stride", "i * columns")),
    # Where things lie.
    Mutant("x without gaps", "Its rows are looked for at k.", operands("x + i * x_stride", "x + i * k")),
    Mutant(
        "rows of x beyond the last",
        "A batch of 3 reads a fourth row.",
        kernel("min(first + i, a.batch - 1)", "(first + i)"),
        "checked",
    ),
    Mutant("rows of out beyond the last", "A batch of 3 writes four.", kernel("mine < a.batch && ", ""), "checked"),
    Mutant("rows of W beyond the last", "They are read.", sums("lane, to < a.columns);", "lane, true);"), "checked"),
    Mutant(
        "columns of out beyond the last",
        "They are written.",
        kernel("to < a.columns && !a.is_up", "!a.is_up"),
        "checked",
    ),
    Mutant(
        "up one row off",
        "The last gate is the first up.",
        operands("column + columns : column", "column + columns - 1 : column"),
    ),
    Mutant("a pack too many", "What follows a row is read.", columns("column >= size", "column > size"), "checked"),
    Mutant(
        "end of an odd row",
        "Its last pack is read whole.",
        columns("load_elements(row + column, size - column)", "load_elements(row + column, kWordNumbers)"),
        "checked",
    ),
    Mutant(
        "16-byte loads at any address",
        "The fast path is taken although x is not aligned.",
        operands("rows_are_aligned(a.x, a.x_stride)", "true"),
        "checked",
    ),
    # The walk and the launch.
    Mutant(
        "steps longer than the grid",
        "Groups between two turns are never computed.",
        kernel("group + gridDim.x * blockDim.y", "group + (gridDim.x + 1) * blockDim.y"),
    ),
    Mutant(
        "end by the last group of a block",
        "Where it has none any more, the others lose theirs.",
        kernel("(next_group - threadIdx.y, 0) >=", "(next_group - threadIdx.y + blockDim.y - 1, 0) >="),
    ),
    Mutant(
        "x of the first chunk", "It is not read again.", kernel("x_is_here = next_chunk == chunk", "x_is_here = true")
    ),
    Mutant(
        "one launch for several waves",
        "Groups beyond the grid are left out.",
        kernel("ceil_div(groups, groups_of_block),", "sms,"),
    ),
    Mutant("rows of an unaligned batch", "Only the first is computed.", kernel("(a.batch + kBatch - 1) / kBatch", "1")),
    Mutant("float16 taken for bfloat16", "One kernel for both.", operands("with(__half{})", "with(__nv_bfloat16{})")),
)

# Not faults: what the kernel could choose. Of the order of sums only the first two decide.
CHOICES = {
    "as it is": (),
    "two segments": kernel("kMostSegments = 4", "kMostSegments = 2"),
    "more rows a warp": (*kernel("kCutRows = 2", "kCutRows = 4"), *kernel("kWalkRows = 2", "kWalkRows = 4")),
    "fewer rows, small blocks": (
        *kernel("kLongRows = 4", "kLongRows = 2"),
        *kernel("kMostWarps = 16", "kMostWarps = 4"),
        *kernel("kWalkWarps = 8", "kWalkWarps = 4"),
    ),
    "always from group to group": kernel("kWaves = 2", "kWaves = 0"),
}


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize("choice", CHOICES)
def test_decode_linear_passes_whatever_it_chooses(choice: str) -> None:
    libraries = {name: replace(default_library(SOURCE, "sim"), edits=edits) for name, edits in CHOICES.items()}
    build(*libraries.values())
    with opened("sim", libraries[choice]) as backend:
        for check in CHECKS:
            check(backend)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("plain", 2), ("checked", 0)])
def test_decode_linear_as_it_is_passes(trial: MutantTrial, variant: str, seed: int) -> None:
    checked = Mutant("none", "Nothing.", (), "checked" if variant == "checked" else "plain", (seed,))
    assert trial.noticed(checked) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_decode_linear_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
