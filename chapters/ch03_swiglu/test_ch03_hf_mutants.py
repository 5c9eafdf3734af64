"""Faults in Hugging Face's order of roundings in kernels/cuda/rms_norm.cu: the checks of that order notice each."""

from __future__ import annotations

import pytest

from chapters.ch03_swiglu.hf_rounding_checks import HF_NORM_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(600)
SOURCE = "rms_norm"
SCALED = ("intermediate<T, kHf>(value[j][k] * scale)", "intermediate<T, kHf>(value[k] * scale)")
SUM = "intermediate<T, kHf>(value[j][k] + to_float(residual[j].values[k]))"

kernel = edit_of("rms_norm.cu")

MUTANTS = (
    Mutant("rounds once", "x * scale is kept in float32.", kernel(SCALED[0], "(value[j][k] * scale)")),
    Mutant("long rows round once", "The same, where a row is read twice.", kernel(SCALED[1], "(value[k] * scale)")),
    Mutant(
        "norm of the exact sum", "The sum is rounded only where it is stored.", kernel(SUM, SUM.replace("kHf", "false"))
    ),
    Mutant(
        "norm of a long row's exact sum",
        "The same, where a row is read twice.",
        kernel("intermediate<T, kHf>(value[k] + to_float", "intermediate<T, false>(value[k] + to_float"),
    ),
    Mutant(
        "weight before the rounding",
        "round(x * scale * weight), as the operator does without the switch.",
        kernel(
            f"from_float<T>({SCALED[0]} * to_float(weight[j].values[k]))",
            "from_float<T>(intermediate<T, kHf>(value[j][k] * scale * to_float(weight[j].values[k])))",
        ),
    ),
    Mutant("scale is rounded", "round(scale) * x.", kernel(SCALED[0], "(value[j][k] * intermediate<T, kHf>(scale))")),
    Mutant(
        "switch ignored",
        "There is one rounding whatever is asked for.",
        kernel("dispatch_switch(hf_rounding", "dispatch_switch(false"),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, HF_NORM_CHECKS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_of_the_hf_order_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))


def test_the_norm_as_it_is_keeps_hugging_faces_order(trial: MutantTrial) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", ())) is None
