"""The exercise can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from chapters.ch07_decode_gemv.decode_linear_checks import (
    DECODE_LINEAR_CHECKS,
    LARGE,
    check_every_batch,
    check_rows_of_one_segment,
    check_small_products,
)
from qwen_cuda.building import ROOT, Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, exercise_libraries, files_asked, run_exercise, with_holes_filled

FOLDER = Path(__file__).parent / "exercise"
FILE = "decode_linear.cu"
HOLES: Holes = {
    "sum_of_elements": (
        Edit(FILE, "kElementsAreWritten = false;", "kElementsAreWritten = true;"),
        Edit(
            FILE,
            "  (void)row, (void)k, (void)lane, (void)x;  // write it here\n  return 0.0f;\n}\n\n// ---- Hole 2",
            """  float sum = 0.0f;
  for (int c = lane; c < k; c += kWarpSize) sum = fmaf(to_float(row[c]), x(c), sum);
  return sum;
}

// ---- Hole 2""",
        ),
    ),
    "sum_of_packs": (
        Edit(FILE, "kPacksAreWritten = false;", "kPacksAreWritten = true;"),
        Edit(
            FILE,
            "  (void)row, (void)k, (void)lane, (void)x;  // write it here\n  return 0.0f;\n}\n\n// ---- Hole 3",
            """  constexpr int kSize = Pack<W>::kSize;
  float sum = 0.0f;
  for (int c = lane * kSize; c < k; c += kWarpSize * kSize) {
    const Pack<W> pack = load_pack(row + c);
    for (int j = 0; j < kSize; ++j) sum = fmaf(to_float(pack.values[j]), x(c + j), sum);
  }
  return sum;
}

// ---- Hole 3""",
        ),
    ),
    "finished": (
        Edit(FILE, "kFinishIsWritten = false;", "kFinishIsWritten = true;"),
        Edit(
            FILE,
            "  (void)up, (void)squares, (void)i, (void)to;  // write it here\n  return product;\n",
            """  const float scale = a.norm_weight != nullptr ? a.norm_scale(squares) : 1.0f;
  if (a.silu_mul) return a.silu(product * scale) * (up * scale);
  return product * scale + (a.residual != nullptr ? a.residual_of(a.residual_bits(i, to)) : 0.0f);
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


def test_the_starter_of_chapter_7_fails_and_names_its_hole() -> None:
    """And only tests that run the learner's kernel are asked."""
    run = run_exercise("ch07_decode_gemv")
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 7, hole 1 (sum_of_elements) is not written yet" in run.stdout
    assert "1 failed" in run.stdout
    assert files_asked(run.stdout) == {"test_ch07_operators.py"}
    assert "reference" not in run.stdout


def test_words_of_the_page_of_exercise_7_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    chosen = [[check for check in DECODE_LINEAR_CHECKS if word in check.__name__] for word in words]
    assert chosen == [[check_small_products], [check_rows_of_one_segment]]


def test_holes_of_decode_linear_can_be_filled_one_after_the_other() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    checks = (check_small_products, check_rows_of_one_segment, check_every_batch)
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in checks[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 7, hole {filled + 1} \({hole}\) is not written yet"):
                checks[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_passes_every_check_of_decode_linear(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in DECODE_LINEAR_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_the_products_kernel_passes_what_exercise_7_asks() -> None:
    """kernels/cuda/decode_linear.cu in the place of the learner's file."""
    with opened("sim", Library("sim", (ROOT / "kernels" / "cuda" / FILE,))) as backend:
        assert backend.offered == {"decode_linear"}
        for check in DECODE_LINEAR_CHECKS:
            check(backend)


def test_the_product_is_back_after_a_learners_decode_linear() -> None:
    given = torch.ones(1, 16).bfloat16(), torch.ones(2, 16).bfloat16()
    with opened("sim") as backend:
        expected = backend.op("decode_linear")(*given)
        with (
            opened("sim", *exercise_libraries(FOLDER, "sim")) as learners,
            pytest.raises(RuntimeError, match="chapter 7"),
        ):
            learners.op("decode_linear")(*given)
        assert torch.equal(backend.op("decode_linear")(*given), expected)
