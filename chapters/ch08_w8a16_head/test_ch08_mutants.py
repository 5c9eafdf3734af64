"""Plausible faults in kernels/cuda/w8a16_linear.cu and its headers, one at a time: the checks must notice every one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chapters.ch08_w8a16_head.w8_checks import LARGE, W8_CHECKS
from qwen_cuda.building import Edit, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "w8a16_linear"
CHECKS = sorted(W8_CHECKS, key=lambda check: check in LARGE)

kernel = edit_of("w8a16_linear.cu")
rows = edit_of("head_rows.cuh")
inputs = edit_of("head_input.cuh")
weights = edit_of("head_weights.cuh")

HALF = "distance = kWarpSize / kCount / 2"
NEXT = "load_turn(next, "
GAIN = "value = value * factors[i] * gains[0][j];"

MUTANTS = (
    # Bytes and scales.
    Mutant("sign bit kept", "Bytes are taken for unsigned ones.", weights("word ^ 0x80808080u", "word")),
    Mutant("bias of 2^23 alone", "Each weight is 128 too large.", weights("8388736.0f;", "8388608.0f;")),
    Mutant("bytes in reverse", "The first column is taken for the fourth.", weights("0x7440 + i", "0x7443 - i")),
    Mutant(
        "words exchanged",
        "Columns 4 to 7 and 8 to 11 change places.",
        weights("j == 1 ? raw.y : j == 2 ? raw.z", "j == 1 ? raw.z : j == 2 ? raw.y"),
    ),
    Mutant("scale forgotten", "Integers are summed.", weights("fmaf(dot, loaded.scale, sum)", "sum + dot")),
    Mutant(
        "one scale for a row",
        "Every group takes that of the first.",
        weights("(groups == 1 ? 0 : c >> shift)", "0"),
    ),
    Mutant("groups half as wide", "Scales are read twice as far.", weights("< w.group)", "< w.group / 2)"), "checked"),
    Mutant("scales of one row", "Every row takes those of the first.", weights("scales + row * groups +", "scales +")),
    Mutant(
        "scales of a warp's first row", "Its others take them.", weights("at.scale[r * unsigned(groups)]", "*at.scale")
    ),
    Mutant(
        "16-byte loads at any address",
        "They are made although the weight is not aligned.",
        weights(" && rows_are_aligned(values, 0)", "", 2),
        "checked",
    ),
    Mutant(
        "16-byte loads of odd rows",
        "They are made although rows end inside a load.",
        weights("k % kColumns == 0 && ", "", 2),
        "checked",
    ),
    Mutant(
        "bytes beyond a row",
        "The end of the last row reads what follows.",
        weights("if (i < at.left) words", "words"),
        "checked",
    ),
    # x in shared memory.
    Mutant(
        "x read while it is written",
        "No barrier without a norm.",
        inputs("return __syncthreads();", "return;"),
        "checked",
    ),
    Mutant(
        "x read while it is normed",
        "No barrier after the norm.",
        inputs("    }\n  }\n  __syncthreads();\n}", "    }\n  }\n}"),
        "checked",
    ),
    Mutant("no zeros behind x", "What shared memory held is multiplied.", inputs("if (c >= padded)", "if (c >= k)")),
    Mutant(
        "rows of x beyond the batch",
        "A batch is rounded up, and what follows is read.",
        inputs("min(i, rows - 1) * stride", "i * stride"),
        "checked",
    ),
    Mutant(
        "columns of x beyond the last",
        "A thread reads four numbers of a row that has fewer.",
        inputs("row[min(first + j * kHeadThreads, k - 1)]", "row[first + j * kHeadThreads]"),
        "checked",
    ),
    Mutant("squares of one warp", "The others' are dropped.", inputs("sum += squares[i][w]", "sum = squares[i][w]")),
    Mutant("missing eps", "A row of zeros is divided by zero.", inputs(" + in.eps", "")),
    Mutant(
        "mean over the padding", "The mean is too small.", inputs("static_cast<float>(k)", "static_cast<float>(padded)")
    ),
    Mutant(
        "normed x is rounded",
        "To bf16, as a norm of its own would leave it.",
        inputs(GAIN, GAIN.replace("= value", "= to_float(from_float<__nv_bfloat16>(value").replace(";", "));")),
    ),
    # The walk.
    Mutant(
        "one pass",
        "Rows beyond those of all warps are left out.",
        rows("more = next_row <", "more = !ends_rows && next_row <"),
    ),
    Mutant("same rows again", "The next rows are loaded from these.", rows(f"{NEXT}next_row,", f"{NEXT}row,")),
    Mutant(
        "first step again",
        "Every step loads the first columns.",
        rows(f"{NEXT}next_row, next_step)", f"{NEXT}next_row, 0)"),
    ),
    Mutant(
        "rows beyond the weight",
        "The last ones of a warp are read where there are none.",
        rows("rows < kRows ? 0 : rows - kRows", "rows"),
        "checked",
    ),
    Mutant(
        "more rows than there are",
        "A weight of one row has a second.",
        rows("(places[s], min(r, rows - 1))", "(places[s], r)"),
        "checked",
    ),
    Mutant("sums kept for the next rows", "They grow from turn to turn.", rows("sums[q] = 0.0f;", "sums[q] *= 1.0f;")),
    Mutant(
        "rows and batch exchanged",
        "Sums are taken for another row's.",
        rows("r = s / kBatch,", "r = s % kRows,"),
    ),
    Mutant("x of the first row for all", "A batch gives one row.", rows("(i * steps + at_step) *", "at_step *")),
    Mutant(
        "later launches read the first rows",
        "Where shared memory holds few rows of x.",
        rows("first * input.x_stride * size", "0 * size * first"),
    ),
    Mutant(
        "half of the lanes",
        "The last shuffle is left out.",
        (Edit("warp_reduce.cuh", f"{HALF}; distance > 0", f"{HALF}; distance > 1"),),
    ),
    # The output.
    Mutant(
        "later launches write the first rows",
        "Where shared memory holds few rows of x.",
        kernel("first * weight.rows * out_size", "0 * first * out_size"),
    ),
    Mutant("logits of no row of x", "Batches are rounded up.", kernel(" && i < input.batch", ""), "checked"),
    Mutant(
        "out in float32 always",
        "Twice the bytes that out has.",
        kernel("if (dtype == qwen::Dtype::kFloat32)", "if (true)"),
        "checked",
    ),
)

# Not faults: what the kernel could choose.
CHOICES = {
    "as it is": (),
    "other rows in flight": rows("kBatch == 1 ? 2 : 4", "kBatch == 1 ? 4 : 2"),
    "one step in flight": weights("kSteps = 2,", "kSteps = 1,"),
    "128 threads a block": inputs("kHeadThreads = 256", "kHeadThreads = 128"),
    "6 blocks an SM": weights("kBlocks = 3", "kBlocks = 6"),
}


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize("variant", ["plain", "checked"])
@pytest.mark.parametrize("choice", CHOICES)
def test_w8a16_linear_passes_whatever_it_chooses(choice: str, variant: str) -> None:
    library = replace(default_library(SOURCE, "sim", variant), edits=CHOICES[choice], quick=True)
    build(library)
    with opened("sim", library) as backend:
        for check in CHECKS:
            check(backend)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_w8a16_linear_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
