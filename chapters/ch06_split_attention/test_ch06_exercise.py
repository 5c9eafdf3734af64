"""Exercise 6 can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from chapters.ch06_split_attention.launch_checks import LAUNCH_CHECKS
from chapters.ch06_split_attention.split_checks import (
    SPLIT_CHECKS,
    check_a_workspace_serves_many_calls,
    check_contexts_beyond_the_grid,
)
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, files_asked, run_exercise, with_holes_filled

CHAPTER = "ch06_split_attention"
FOLDER = Path(__file__).parent / "exercise"
FILE = "paged_attention_split.cu"
IN_ORDER = (*LAUNCH_CHECKS, check_contexts_beyond_the_grid)
ALL = (*LAUNCH_CHECKS, *SPLIT_CHECKS)
RESET = "atomicInc(arrived, blocks - 1)"
HOLES: Holes = {
    "merge": (
        Edit(FILE, "kMergeIsWritten = false;", "kMergeIsWritten = true;"),
        Edit(
            FILE,
            "  (void)m, (void)l, (void)o, (void)o_stride, (void)count;  // write it here\n  return 0.0f;\n",
            """  float largest = -INFINITY, sum = 0.0f, total = 0.0f;
  for (int p = 0; p < count; ++p) largest = fmaxf(largest, __ldcg(m + p));
  for (int p = 0; p < count; ++p) {
    const float its_l = __ldcg(l + p);
    if (its_l == 0.0f) continue;
    const float weight = exp2f(__ldcg(m + p) - largest);
    sum += weight * its_l;
    total += weight * __ldcg(o + p * o_stride);
  }
  return sum == 0.0f ? 0.0f : total / sum;
""",
        ),
    ),
    "comes_last": (
        Edit(FILE, "kComesLastIsWritten = false;", "kComesLastIsWritten = true;"),
        Edit(
            FILE,
            "  (void)arrived, (void)blocks;  // write it here\n  return false;\n",
            f"""  __threadfence();
  __syncthreads();
  const bool last = threadIdx.x == 0 && {RESET} == uint32_t(blocks - 1);
  const bool mine = __syncthreads_or(last);
  __threadfence();
  return mine;
""",
        ),
    ),
    "tokens_of_partition": (
        Edit(FILE, "kShareIsWritten = false;", "kShareIsWritten = true;"),
        Edit(
            FILE,
            "  (void)context, (void)partitions;  // and longer contexts: write it here\n",
            """  if (context > partition_size * partitions) {
    const int grains = (context - 1) / qwen::kPartitionGrain + 1;
    return ((grains - 1) / partitions + 1) * qwen::kPartitionGrain;
  }
""",
        ),
    ),
}


def with_filled(count: int, variant: str = "plain") -> Library:
    return with_holes_filled(FOLDER, HOLES, count, variant)


def without_reset() -> Library:
    """A solution whose counter is never 0 again."""
    solved = with_filled(3)
    edits = tuple(replace(e, new=e.new.replace(RESET, "atomicAdd(arrived, 1u)")) for e in solved.edits)
    return replace(solved, edits=edits)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """All that these tests run, in one parallel build."""
    build(*(with_filled(n) for n in range(4)), with_filled(0, "checked"), with_filled(3, "checked"), without_reset())


def test_the_starter_of_exercise_6_names_chapter_and_hole() -> None:
    """What `make exercise 6` starts: only tests that run a kernel are asked, and those of the fused one are skipped."""
    run = run_exercise(CHAPTER)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 6, hole 1 (merge) is not written yet" in run.stdout
    assert files_asked(run.stdout) == {"test_ch06_fused.py", "test_ch06_operators.py"}
    fused = [line for line in run.stdout.splitlines() if "test_ch06_fused.py::" in line]
    assert all("SKIPPED" in line for line in fused), fused


def test_the_words_of_exercise_6_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [[check for check in ALL if word in check.__name__] for word in words] == [[c] for c in IN_ORDER]


def test_holes_of_exercise_6_can_be_filled_in_order() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in IN_ORDER[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 6, hole {filled + 1} \({hole}\) is not written yet"):
                IN_ORDER[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_of_exercise_6_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in ALL:
            check(backend)


def test_a_solution_that_does_not_reset_the_counter_is_caught() -> None:
    """Its first call is right: only a workspace that serves two calls shows it."""
    with opened("sim", without_reset()) as backend, pytest.raises(AssertionError):
        check_a_workspace_serves_many_calls(backend)
