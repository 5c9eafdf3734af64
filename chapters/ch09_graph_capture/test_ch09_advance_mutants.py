"""Plausible faults in advance_decode, one at a time: the checks must notice every one."""

from __future__ import annotations

import pytest

from chapters.ch09_graph_capture.advance_checks import ADVANCE_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "advance_decode"

kernel = edit_of("advance_decode.cu")

MUTANTS = (
    Mutant("unknown tokens are read", "The embedding has no such row.", kernel("id >= a.vocab", "id > a.vocab")),
    Mutant("negative tokens are read", "As above.", kernel("id < 0 ||", "id < -1 ||")),
    Mutant("rows wake up", "A row at rest takes the next token.", kernel("position < 0 ||", "position < -9 ||")),
    Mutant("one token too many", "History is overrun.", kernel("position >= a.max", "position > a.max")),
    Mutant(
        "table overrun", "It has no such column.", kernel("index < a.max_blocks", "index <= a.max_blocks"), "checked"
    ),
    Mutant("table's block unchecked", "It is none of the cache.", kernel("block >= a.num_blocks", "false")),
    Mutant("block of the next token", "The last of a block goes astray.", kernel("position / a", "(position + 1) / a")),
    Mutant(
        "first row's table",
        "All rows write into one sequence.",
        kernel("row * a.block_table_stride", "0 * a.block_table_stride"),
    ),
    Mutant("length not counted", "Attention leaves the new token out.", kernel("next.position + 1", "next.position")),
    Mutant("old embedding at rest", "The row keeps a token's.", kernel("rests ? 0.0f : ", "")),
    Mutant("last tokens are not told", "The host waits for them.", kernel("== 0 && next.told)", "== 0 && !rests)")),
    Mutant("draws of resting rows", "Their random numbers move on.", kernel("if (next.told) a.draws", "a.draws")),
    Mutant("the same columns again", "Of wide rows.", kernel("a.hidden; load(first))", "a.hidden; load(threadIdx.x))")),
    Mutant("columns apart", "They are loaded twice.", kernel("token[first + c * kThreads]", "token[first]")),
    Mutant(
        "read after it is written",
        "Threads that come late see the new length.",
        kernel("  __syncthreads();  // all have read context_lens\n", ""),
        "checked",
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, ADVANCE_CHECKS)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_advance_decode_as_it_is_passes(variant: str, trial: MutantTrial) -> None:
    assert trial.noticed(Mutant("none", "nothing", (), variant)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_advance_decode_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
