"""Exercise 8 can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chapters.ch08_w8a16_head.w8_checks import (
    LARGE,
    PLAIN_CHECKS,
    check_group_scales,
    check_short_rows,
    check_whole_row_scales,
)
from qwen_cuda.building import ROOT, Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, files_asked, run_exercise, with_holes_filled

CHAPTER = "ch08_w8a16_head"
FOLDER = Path(__file__).parent / "exercise"
FILE = "w8a16_linear.cu"
IN_ORDER = (check_short_rows, check_whole_row_scales, check_group_scales)
HOLES: Holes = {
    "bytes_to_floats": (
        Edit(FILE, "kConversionIsWritten = false;", "kConversionIsWritten = true;"),
        Edit(FILE, "q[j] = 0.0f;  // write it here", "q[j] = static_cast<float>(int8_t(word >> 8 * j));"),
    ),
    "row_product": (
        Edit(FILE, "kRowIsWritten = false;", "kRowIsWritten = true;"),
        Edit(
            FILE,
            "  (void)q, (void)in, (void)i, (void)lane;  // write it here\n  return 0.0f;\n",
            """  float sum = 0.0f;
  for (int64_t c = 4 * lane; c < in.k; c += 4 * kWarpSize) {
    float w[4];
    bytes_to_floats(four_bytes(q + c, in.k - c), w);
    for (int j = 0; j < 4 && j < in.k - c; ++j) sum += x_at(in, i, c + j) * w[j];
  }
  return warp_sum(sum);
""",
        ),
    ),
    "grouped_product": (
        Edit(FILE, "kGroupsAreWritten = false;", "kGroupsAreWritten = true;"),
        Edit(
            FILE,
            "  (void)q, (void)scales, (void)group, (void)in, (void)i, (void)lane;  // write it here\n  return 0.0f;\n",
            """  float sum = 0.0f;
  for (int64_t c = 16 * lane; c < in.k; c += 16 * kWarpSize) {
    const uint4 raw = sixteen_bytes(q + c);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    float dot = 0.0f;
    for (int j = 0; j < 16; j += 4) {
      float w[4];
      bytes_to_floats(words[j / 4], w);
      for (int e = 0; e < 4; ++e) dot += x_at(in, i, c + j + e) * w[e];
    }
    sum += dot * scales[c / group];
  }
  return warp_sum(sum);
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


def test_the_starter_of_exercise_8_names_chapter_and_hole() -> None:
    """What `make exercise 8` starts: only tests that run the learner's kernel are asked."""
    run = run_exercise(CHAPTER)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 8, hole 1 (bytes_to_floats) is not written yet" in run.stdout
    assert files_asked(run.stdout) == {"test_ch08_operators.py"}


def test_the_words_of_exercise_8_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [[check for check in PLAIN_CHECKS if word in check.__name__] for word in words] == [[c] for c in IN_ORDER]


def test_holes_of_exercise_8_can_be_filled_in_order() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in IN_ORDER[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 8, hole {filled + 1} \({hole}\) is not written yet"):
                IN_ORDER[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_of_exercise_8_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in PLAIN_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_the_products_kernel_passes_what_exercise_8_asks() -> None:
    """kernels/cuda/w8a16_linear.cu in the place of the learner's file."""
    with opened("sim", Library("sim", (ROOT / "kernels" / "cuda" / FILE,))) as backend:
        assert backend.offered == {"w8a16_linear"}
        for check in PLAIN_CHECKS:
            check(backend)
