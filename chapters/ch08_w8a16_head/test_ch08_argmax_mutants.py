"""Plausible faults in the argmax of a head, of int8 and of 16 bits, one at a time: the checks must notice every one."""

from __future__ import annotations

import pytest

from chapters.ch08_w8a16_head.argmax_checks import HEAD_ARGMAX_CHECKS, W8_ARGMAX_CHECKS
from qwen_cuda import loading
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "w8a16_argmax"

argmax = edit_of("head_argmax.cuh")
weights = edit_of("head_weights.cuh")

INT8_MUTANTS = (
    Mutant(
        "ties to the highest id",
        "The id is not complemented.",
        (
            *argmax("Key(~unsigned(id))", "Key(unsigned(id))"),
            *argmax("int64_t(~unsigned(key))", "int64_t(unsigned(key))"),
        ),
    ),
    Mutant("-0 below 0", "The bits of -0 are less than those of 0.", argmax("logit + 0.0f", "logit")),
    Mutant(
        "negative logits in reverse",
        "Their bits grow as they fall.",
        argmax("bits & 0x80000000u ? ~bits : bits | 0x80000000u", "bits & 0x80000000u ? bits : bits | 0x80000000u"),
    ),
    Mutant("NaN is the smallest", "It is passed over.", argmax(": 0xffffffffu", ": 0u")),
    Mutant("infinity is a logit", "A broken model goes on.", argmax("= 0xff7fffffu;", "= 0xff800000u;")),
    Mutant("-inf is a logit", "So it goes on if all are.", argmax("kLowest = 0x00800000u", "kLowest = 0x007fffffu")),
    Mutant(
        "the lowest number is none", "Nor is the largest.", argmax("kLowest = 0x00800000u", "kLowest = 0x00800001u")
    ),
    Mutant("one warp of a block", "The others' best are dropped.", argmax("of_warps[w][lane])", "of_warps[0][lane])")),
    Mutant(
        "one row in two",
        "The first shuffle over rows is the only one.",
        argmax("distance >= kWarpSize / kHeadRows", "distance > kWarpSize / kHeadRows"),
    ),
    Mutant(
        "keys read while they are written",
        "No barrier between the warps.",
        argmax("  __syncthreads();\n  if (warp != 0) return;", "  if (warp != 0) return;"),
        "checked",
    ),
    Mutant(
        "keys are not reset",
        "The next call begins with this one's best.",
        argmax("atomicExch(keys + lane, Key(0))", "atomicMax(keys + lane, Key(0))"),
    ),
    Mutant(
        "the count is not reset",
        "The next call has no last block.",
        argmax("(result.workspace), blocks - 1)", "(result.workspace), ~0u)"),
    ),
    Mutant(
        "the first block finishes", "The others come too late.", argmax("blocks - 1) == blocks - 1", "blocks - 1) == 0")
    ),
    Mutant(
        "later launches write the first ids",
        "Where shared memory holds few rows of x.",
        argmax("of_rows{result.ids + first,", "of_rows{result.ids + 0 * first,"),
    ),
    Mutant(
        "keys of rows that x does not have",
        "A batch is rounded up, and the workspace is not reset there.",
        argmax("  if (lane < input.batch) {\n    best", "  if (lane < kBatch) {\n    best"),
    ),
)

FLOAT_MUTANTS = (
    Mutant(
        "last step alone",
        "Sums of steps are not added.",
        weights("{ return sum + dot; }", "{ return sum * 0.0f + dot; }"),
    ),
    Mutant("neighbours exchanged", "Columns are taken crosswise.", weights("4 * j + i)", "4 * j + (i ^ 1))")),
    Mutant(
        "ends of rows",
        "What follows a row is read.",
        weights("load_elements(from, at.left)", "load_elements(from, 8)"),
        "checked",
    ),
)
MUTANTS = (*INT8_MUTANTS, *FLOAT_MUTANTS)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    loading.backend("sim")  # whose logits are held against the ids
    return MutantTrial(SOURCE, INT8_MUTANTS, W8_ARGMAX_CHECKS)


@pytest.fixture(scope="module")
def float_trial() -> MutantTrial:
    return MutantTrial("head_argmax", FLOAT_MUTANTS, HEAD_ARGMAX_CHECKS)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_the_true_argmax_passes(variant: str, trial: MutantTrial, float_trial: MutantTrial) -> None:
    true = Mutant("none", "nothing", (), variant)  # type: ignore[arg-type]
    assert trial.noticed(true) is None
    assert float_trial.noticed(true) is None


@pytest.mark.parametrize("mutant", INT8_MUTANTS, ids=str)
def test_mutant_of_an_int8_argmax_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))


@pytest.mark.parametrize("mutant", FLOAT_MUTANTS, ids=str)
def test_mutant_of_a_float_argmax_is_caught(mutant: Mutant, float_trial: MutantTrial, tally: list[str]) -> None:
    tally.append(float_trial.catch(mutant))
