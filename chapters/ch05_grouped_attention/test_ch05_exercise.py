"""Exercise 5 can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from chapters.ch05_grouped_attention.grouped_checks import (
    GROUPED_CHECKS,
    LARGE,
    check_one_token,
    check_packed_queries,
    check_single_heads,
)
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, files_asked, run_exercise, with_holes_filled

CHAPTER = "ch05_grouped_attention"
FOLDER = Path(__file__).parent / "exercise"
FILE = "paged_attention.cu"
IN_ORDER = (check_single_heads, check_one_token, check_packed_queries)
HOLES: Holes = {
    "take_token": (
        Edit(FILE, "kTakeTokenIsWritten = false;", "kTakeTokenIsWritten = true;"),
        Edit(
            FILE,
            "  (void)state, (void)score, (void)value;  // write it here\n",
            """  const float higher = fmaxf(state.m, score);
  const float factor = expf(state.m - higher), weight = expf(score - higher);
  state.m = higher;
  state.l = state.l * factor + weight;
  for (int i = 0; i < kMostDims; ++i) state.o[i] = state.o[i] * factor + weight * value[i];
""",
        ),
    ),
    "take_for_group": (
        Edit(FILE, "kGroupIsWritten = false;", "kGroupIsWritten = true;"),
        Edit(
            FILE,
            "  (void)group;  // and the other heads: write it here\n",
            """  for (int g = 1; g < group; ++g) {
    score = 0.0f;
    for (int i = 0; i < kMostDims; ++i) score += query[g][i] * key[i];
    take_token(states[g], warp_sum(score), value);
  }
""",
        ),
    ),
    "merge_warps": (
        Edit(FILE, "kMergeIsWritten = false;", "kMergeIsWritten = true;"),
        Edit(
            FILE,
            "  (void)state, (void)shared;  // write it here\n",
            """  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  shared[warp][lane] = state;
  __syncthreads();
  for (int w = 1; w < kWarps && warp == 0; ++w) {
    const State& other = shared[w][lane];
    const float higher = fmaxf(state.m, other.m);
    const float mine = expf(state.m - higher), its = expf(other.m - higher);
    state.m = higher;
    state.l = state.l * mine + other.l * its;
    for (int i = 0; i < kMostDims; ++i) state.o[i] = state.o[i] * mine + other.o[i] * its;
  }
  __syncthreads();
""",
        ),
    ),
}


def with_filled(count: int, variant: str = "plain") -> Library:
    return with_holes_filled(FOLDER, HOLES, count, variant)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """All that these tests run, in one parallel build."""
    build(*(with_filled(count) for count in range(4)), with_filled(0, "checked"), with_filled(3, "checked"))


def test_the_starter_of_exercise_5_names_chapter_and_hole() -> None:
    """What `make exercise 5` starts: only tests that run the learner's kernel are asked."""
    run = run_exercise(CHAPTER)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 5, hole 1 (take_token) is not written yet" in run.stdout
    assert files_asked(run.stdout) == {"test_ch05_operators.py"}


def test_the_words_of_exercise_5_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [[check for check in GROUPED_CHECKS if word in check.__name__] for word in words] == [[c] for c in IN_ORDER]


def test_holes_of_exercise_5_can_be_filled_in_order() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in IN_ORDER[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 5, hole {filled + 1} \({hole}\) is not written yet"):
                IN_ORDER[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_of_exercise_5_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in GROUPED_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_a_solution_without_the_last_barrier_is_caught() -> None:
    """The second barrier of hole 3, which the hint names."""
    solved = with_filled(3, "checked")
    (last,) = [edit for edit in solved.edits if "higher = fmaxf(state.m, other.m)" in edit.new]
    short = replace(last, new=last.new.removesuffix("  __syncthreads();\n"))
    edits = tuple(short if edit is last else edit for edit in solved.edits)
    with opened("sim", replace(solved, edits=edits)) as backend, pytest.raises(RuntimeError, match="race"):
        check_packed_queries(backend)
