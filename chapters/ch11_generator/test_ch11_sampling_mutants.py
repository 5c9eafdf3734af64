"""Plausible faults in kernels/cuda/sample_tokens.cu and its headers, one at a time: the checks must notice every one.

A grid_dependency_wait() too few is none of them: the simulator runs one kernel after the other.
test_ch11_sampling_cuda.py asks a GPU for it.
"""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch11_generator.sampling_checks import CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "sample_tokens"

kernel = edit_of(f"{SOURCE}.cu")
noise = edit_of("gumbel.cuh")
kept = edit_of("kept_tokens.cuh")
row = edit_of("row_slice.cuh")

MUTANTS = (
    # The noise.
    Mutant(
        "u near 1 is rounded",
        "The largest noise has the digits of 1 − u that a float next to 1 has.",
        noise("if (word < 1u << 30)", "if (false)"),
    ),
    Mutant(
        "draws of 32 bits",
        "After 2^32 draws the numbers come again.",
        kernel("unsigned(draw), unsigned(draw >> 32)", "unsigned(draw), 0"),
    ),
    Mutant(
        "a bound that is too low",
        "Tokens that would win are passed over.",
        noise("float(__clz(int(word)) + 1)", "float(__clz(int(word)))"),
    ),
    Mutant(
        "each slice has the same noise",
        "The token's number in its slice counts, not that in the row.",
        kernel("words_of((slice.begin + i) / 4)", "words_of(i / 4)"),
    ),
    # The search.
    Mutant(
        "the threshold itself is out",
        "A sum that just reaches the limit does not count as reached.",
        kept("if (from_here >= limit &&", "if (from_here > limit &&"),
    ),
    Mutant(
        "weight above the interval is forgotten",
        "A second pass looks for the whole limit inside its interval.",
        kept("  from_here += in.above;\n", ""),
    ),
    Mutant(
        "bins of one block",
        "Each block of a cluster looks at its own histogram.",
        kept("shared_of(&mine, rank)", "shared_of(&mine, cluster_rank())"),
    ),
    Mutant(
        "bins of one warp",
        "Those of the warps above are not added.",
        kept("for (int w = warp + 1;", "for (int w = kBinWarps;"),
    ),
    Mutant(
        "all of a bin is kept",
        "A bin of a share is taken whole as soon as it is found.",
        kept("settled = count == 1 ||", "settled = by_mass ||"),
    ),
    Mutant(
        "the total is that of the interval",
        "Tokens far below the largest have no part in 1.",
        kept("(key < in.low && !with_total)", "(key < in.low)"),
    ),
    Mutant(
        "top-p of all tokens",
        "It is not that of what top-k has kept.",
        kept("if (key < at_least || (key < in.low", "if ((key < in.low"),
    ),
    Mutant(
        "bins filled before they are empty",
        "No barrier between the two.",
        kept("to.total = 0;\n    __syncthreads();", "to.total = 0;"),
        "checked",
    ),
    Mutant(
        "one histogram for all passes",
        "It is emptied while another block reads it.",
        kept("state.histograms[pass++ % 2]", "state.histograms[0 * pass]"),
        "checked",
    ),
    Mutant(
        "bins read before all have filled theirs",
        "No barrier of the cluster.",
        kept("      cluster_arrive();\n      cluster_wait();\n", "      __syncthreads();\n"),
        "checked",
    ),
    # The row.
    Mutant(
        "negative logits are divided",
        "The penalty makes them likelier.",
        row("x < 0.0f ? __fmul_rn(x, penalty) : __fdiv_rn(x, penalty)", "__fdiv_rn(x, penalty)"),
    ),
    Mutant(
        "ties to the last token",
        "The token is not complemented.",
        (*row("Key(~unsigned(token))", "Key(unsigned(token))"), *row("int(~unsigned(key))", "int(unsigned(key))")),
    ),
    Mutant(
        "a NaN is passed over",
        "It is the smallest.",
        row(": 0xffffffffu;", ": 0u;"),
    ),
    Mutant(
        "the end of the row is not its end",
        "The last group of four is read whole.",
        kernel("if (i + j >= slice.size) continue;", ""),
        "checked",
    ),
    Mutant(
        "min-p is never asked for",
        "Only the thresholds count.",
        kernel("if (kept.min_mass > 0 &&", "if (false &&"),
    ),
    Mutant(
        "other bits of the word are lost",
        "The drawn token replaces those seen before.",
        kernel("atomicOr(word,", "atomicExch(word,"),
    ),
)
ONE_BLOCK = Mutant("none", "One block takes a row.", kernel("wanted < kMostBlocks &&", "wanted < 1 &&"))


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, (*MUTANTS, ONE_BLOCK), CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_sampling_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


def test_one_block_a_row_draws_the_same_tokens(trial: MutantTrial) -> None:
    """As on a GPU without clusters. The checks hold each token against the reference's."""
    assert trial.noticed(ONE_BLOCK) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_sampling_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
