"""The exercise can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chapters.ch04_paged_kv.cache_write_checks import (
    CACHE_WRITE_CHECKS,
    LARGE,
    NO_SLOTS,
    check_norm_alone,
    check_rotation,
    check_slots,
    sized,
)
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, exercise_libraries, files_asked, run_exercise, with_holes_filled

FOLDER = Path(__file__).parent / "exercise"
FILE = "qk_norm_rope_cache_write.cu"
HOLES: Holes = {
    "norm": (
        Edit(FILE, "kNormIsWritten = false;", "kNormIsWritten = true;"),
        Edit(
            FILE,
            "  (void)own, (void)weight, (void)eps, (void)lane;  // write it here\n",
            """  float sum = 0.0f;
  for (const float value : own) sum += value * value;
  const float scale = 1.0f / sqrtf(warp_sum(sum) / 128 + eps);
  for (int j = 0; j < kOwn; ++j) own[j] = own[j] * scale * to_float(weight[lane + 32 * j]);
""",
        ),
    ),
    "rotate": (
        Edit(FILE, "kRotationIsWritten = false;", "kRotationIsWritten = true;"),
        Edit(
            FILE,
            "  (void)own, (void)row, (void)lane;  // write it here\n",
            """  for (int j = 0; j < 2; ++j) {
    const float u = own[j], v = own[j + 2], c = row[lane + 32 * j], s = row[64 + lane + 32 * j];
    own[j] = u * c - v * s;
    own[j + 2] = v * c + u * s;
  }
""",
        ),
    ),
    "place_in_cache": (
        Edit(FILE, "kSlotIsWritten = false;", "kSlotIsWritten = true;"),
        Edit(
            FILE,
            "  return nullptr;  // write it here\n",
            """  if (slot < 0 || slot >= num_slots) return nullptr;
  return cache + (slot * num_kv_heads + kv_head) * 128;
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


def test_the_starter_of_chapter_4_fails_and_names_its_hole() -> None:
    """And only tests that run the learner's kernel are asked."""
    run = run_exercise("ch04_paged_kv")
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 4, hole 1 (norm) is not written yet" in run.stdout
    assert "1 failed" in run.stdout
    assert files_asked(run.stdout) == {"test_ch04_operators.py"}


def test_the_words_of_the_readme_choose_tests_of_chapter_4() -> None:
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    chosen = [[check for check in CACHE_WRITE_CHECKS if word in check.__name__] for word in words]
    assert [some[0] for some in chosen] == [check_norm_alone, check_rotation]


def test_holes_of_chapter_4_can_be_filled_one_after_the_other() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    checks = (check_norm_alone, check_rotation, check_slots)
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in checks[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 4, hole {filled + 1} \({hole}\) is not written yet"):
                checks[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_of_chapter_4_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in CACHE_WRITE_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_the_product_is_back_after_a_learners_file_of_chapter_4() -> None:
    with opened("sim") as backend:
        with (
            opened("sim", *exercise_libraries(FOLDER, "sim")) as learners,
            pytest.raises(RuntimeError, match="chapter 4"),
        ):
            sized(learners, NO_SLOTS, 1)
        sized(backend, NO_SLOTS, 1)
