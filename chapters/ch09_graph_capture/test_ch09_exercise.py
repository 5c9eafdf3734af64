"""Exercise 9 can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chapters.ch09_graph_capture.advance_checks import ADVANCE_CHECKS, check_one_row, check_rows_go_on
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, files_asked, run_exercise, with_holes_filled

CHAPTER = "ch09_graph_capture"
FOLDER = Path(__file__).parent / "exercise"
FILE = "advance_decode.cu"
IN_ORDER = (check_one_row, check_rows_go_on)
HOLES: Holes = {
    "next_of": (
        Edit(FILE, "kNextIsWritten = false;", "kNextIsWritten = true;"),
        Edit(
            FILE,
            "  (void)a, (void)row, (void)id;\n  return {0, -1, false};  // write it here\n",
            """  const int64_t position = a.context_lens[row], index = position / a.block_size;
  if (id < 0 || id >= a.vocab || position < 0 || position >= a.max_context) return {0, -1, false};
  const int64_t block = index < a.max_blocks ? a.block_table[row * a.block_table_stride + index] : -1;
  if (block < 0 || block >= a.num_blocks) return {int(position), -1, true};
  return {int(position), int(block * a.block_size + position % a.block_size), true};
""",
        ),
    ),
    "advance_rows": (
        Edit(FILE, "kRowsAreWritten = false;", "kRowsAreWritten = true;"),
        Edit(
            FILE,
            "  (void)a;                 // write it here\n",
            """  const int64_t row = blockIdx.x, id = a.ids[row];
  const Next next = next_of(a, row, id);
  for (int64_t i = threadIdx.x; i < a.hidden; i += kThreads) store_column<T>(a, row, id, next, i);
  __syncthreads();
  if (threadIdx.x == 0) store_state(a, row, id, next);
""",
        ),
    ),
}


def with_filled(count: int, variant: str = "checked") -> Library:
    return with_holes_filled(FOLDER, HOLES, count, variant)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """All that these tests run, in one parallel build."""
    build(*(with_filled(count) for count in range(3)))


def test_the_starter_of_exercise_9_names_chapter_and_hole() -> None:
    """What `make exercise 9` starts: only tests that run the learner's kernel are asked."""
    run = run_exercise(CHAPTER)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 9, hole 1 (next_of) is not written yet" in run.stdout
    assert files_asked(run.stdout) == {"test_ch09_advance.py"}


def test_the_words_of_exercise_9_choose_tests() -> None:
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [[check for check in ADVANCE_CHECKS if word in check.__name__] for word in words] == [[check_one_row]]


def test_holes_of_exercise_9_can_be_filled_in_order() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in IN_ORDER[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 9, hole {filled + 1} \({hole}\) is not written yet"):
                IN_ORDER[filled](backend)


def test_a_solution_of_exercise_9_passes_every_check() -> None:
    with opened("sim", with_filled(2)) as backend:
        assert backend.offered == {"advance_decode"}
        for check in ADVANCE_CHECKS:
            check(backend)
