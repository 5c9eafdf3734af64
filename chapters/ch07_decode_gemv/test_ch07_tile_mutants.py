"""Plausible faults in how decode_linear uses Tensor Cores, one at a time: the checks must notice all."""

from __future__ import annotations

import pytest

from chapters.ch07_decode_gemv.decode_linear_checks import DECODE_LINEAR_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes

SOURCE = "decode_linear"

kernel = edit_of("decode_linear.cu")
tiles = edit_of("tile_rows.cuh")

MUTANTS = (
    # Tensor Cores: their operands.
    Mutant(
        "words of x as they come",
        "Columns are multiplied by the weights of others.",
        tiles("words.x, words.z, words.y, words.w", "words.x, words.y, words.z, words.w"),
    ),
    Mutant("the nearest twice", "What is left of x is forgotten.", tiles("if (p > 0) near", "if (false) near")),
    Mutant(
        "always cut in two",
        "A result in fp32 lacks eight bits.",
        kernel("a.wide_out ? launch_tiles<3, kNorm>(a, stream) :", ""),
    ),
    Mutant("one half of a pack", "All lanes read words 0 and 2 of x.", tiles(" + lane / 4 % 2 * 4", "")),
    Mutant(
        "rows of x beyond those that are there",
        "A tile that is not full reads what nobody wrote.",
        tiles("min(first_row + lane / 8 / kSlots, rows - 1)", "first_row + lane / 8 / kSlots"),
        "checked",
    ),
    Mutant("gate and up by turns", "Rows of W are exchanged.", tiles("q / kHalf * a.columns", "q % 2 * a.columns")),
    Mutant(
        "rows of W beyond the last",
        "They are read.",
        tiles("min(group * kRows + q, a.columns - 1)", "group * kRows + q"),
        "checked",
    ),
    Mutant("columns of W beyond the last", "They are read.", tiles("if (left > 0) packs", "packs"), "checked"),
    Mutant(
        "squares without columns",
        "The last ones are counted once more.",
        tiles("return counts ? squares : 0.0f;", "return squares;"),
    ),
    Mutant(
        "products without columns",
        "An infinity in the last ones is multiplied by zeros.",
        tiles("counts ? raw.words[0] : make_uint4(0, 0, 0, 0)", "raw.words[0]"),
    ),
    # Their sums.
    Mutant(
        "another column of d", "Sums of other products are added.", tiles("(even[3] + odd[3])", "(even[2] + odd[2])")
    ),
    Mutant(
        "every other pack",
        "Half of the products are lost.",
        tiles("(even[0] + odd[0]) + (even[3] + odd[3])", "even[0] + even[3]"),
    ),
    Mutant(
        "the slot that no number has",
        "Some part is counted twice.",
        tiles("if (kSlots > 2 && lane % 4 == 3) sum = 0.0f;", ""),
    ),
    Mutant(
        "x before it is there",
        "The groups of a block do not wait.",
        kernel("  __syncthreads();\n\n  if (kNorm)", "\n  if (kNorm)"),
        "checked",
    ),
    Mutant(
        "no barrier",
        "Segments are added before they are there.",
        kernel("  __syncthreads();\n\n  const auto finish", "\n  const auto finish"),
        "checked",
    ),
    Mutant(
        "groups meet in one place",
        "The segments of all groups of a block overwrite each other.",
        kernel("meeting.products[threadIdx.y * parts + part][i", "meeting.products[part][i"),
        "checked",
    ),
    Mutant(
        "sums of rows that are not there",
        "They overwrite those of another warp.",
        kernel("lane % Input::kSlots == 0 && i < batch", "lane % Input::kSlots == 0"),
        "checked",
    ),
    Mutant(
        "squares of the last row alone",
        "Where a warp has several rows of x, the others' are not left.",
        kernel(", leave_squares(row);\n      read", ";\n      read"),
    ),
    Mutant(
        "memory for one row",
        "The rows of a batch lie beyond the block's shared memory.",
        kernel("size_t(segments * a.batch) *", "size_t(segments) *"),
        "checked",
    ),
    Mutant(
        "the way by the batch",
        "A row alone is multiplied by tiles, and in a batch not.",
        kernel("if (groups_of(a, 8) >", "if (a.batch > 1 || groups_of(a, 8) >"),
    ),
    # What stands behind them.
    Mutant(
        "residual of the first row", "A warp's next row of x adds it again.", kernel("      residual = added(i);\n", "")
    ),
    Mutant(
        "up of the row before", "Its lane is one nearer.", kernel("residual, kRows / 2)", "residual, kRows / 2 - 1)")
    ),
    Mutant(
        "columns of out beyond the last",
        "They are written.",
        kernel("lane < kRows && to < a.columns && !is_up", "lane < kRows && !is_up"),
        "checked",
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, DECODE_LINEAR_CHECKS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_of_the_tiles_of_decode_linear_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
