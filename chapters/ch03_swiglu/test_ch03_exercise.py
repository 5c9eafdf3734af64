"""The exercise can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from chapters.ch03_swiglu.silu_mul_checks import (
    LARGE,
    SILU_MUL_CHECKS,
    check_odd_rows,
    check_rows_of_whole_packs,
    check_short_rows,
)
from qwen_cuda.building import ROOT, Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, exercise_libraries, files_asked, run_exercise, with_holes_filled

FOLDER = Path(__file__).parent / "exercise"
FILE = "silu_mul.cu"
EMPTY = "  (void)gate, (void)up, (void)out;  // write it here\n}\n\n// ---- "
HOLES: Holes = {
    "silu_mul": (
        Edit(FILE, "kProductIsWritten = false;", "kProductIsWritten = true;"),
        Edit(FILE, "return gate * up;  // write it here", "return gate / (1.0f + expf(-gate)) * up;"),
    ),
    "silu_mul_elements": (
        Edit(FILE, "kElementsAreWritten = false;", "kElementsAreWritten = true;"),
        Edit(
            FILE,
            f"{EMPTY}Hole 3",
            """  for (int64_t i = threadIdx.x; i < args.size; i += blockDim.x) {
    out[i] = from_float<T>(silu_mul(to_float(gate[i]), to_float(up[i])));
  }
}

// ---- Hole 3""",
        ),
    ),
    "silu_mul_packs": (
        Edit(FILE, "kPacksAreWritten = false;", "kPacksAreWritten = true;"),
        Edit(
            FILE,
            f"{EMPTY}Given",
            """  constexpr int kSize = Pack<T>::kSize;
  for (int64_t i = threadIdx.x * kSize; i < args.size; i += blockDim.x * kSize) {
    const Pack<T> g = load_pack(gate + i), u = load_pack(up + i);
    Pack<T> pack;
    for (int k = 0; k < kSize; ++k) {
      pack.values[k] = from_float<T>(silu_mul(to_float(g.values[k]), to_float(u.values[k])));
    }
    store_pack(out + i, pack);
  }
}

// ---- Given""",
        ),
    ),
}


def with_filled(count: int, variant: str = "plain") -> Library:
    return with_holes_filled(FOLDER, HOLES, count, variant)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """All that these tests run, in one parallel build."""
    build(*(with_filled(count) for count in range(4)), with_filled(0, "checked"), with_filled(3, "checked"))


def test_the_starter_of_chapter_3_fails_and_names_its_hole() -> None:
    """And only tests that run the learner's kernel are asked."""
    run = run_exercise("ch03_swiglu")
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 3, hole 1 (silu_mul) is not written yet" in run.stdout
    assert "1 failed" in run.stdout
    assert files_asked(run.stdout) == {"test_ch03_operators.py"}
    assert "reference" not in run.stdout


def test_words_of_the_exercises_page_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    chosen = [[check for check in SILU_MUL_CHECKS if word in check.__name__] for word in words]
    assert chosen == [[check_short_rows], [check_odd_rows]]


def test_holes_of_silu_mul_can_be_filled_one_after_the_other() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    checks = (check_short_rows, check_odd_rows, check_rows_of_whole_packs)
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in checks[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 3, hole {filled + 1} \({hole}\) is not written yet"):
                checks[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_passes_every_check_of_silu_mul(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in SILU_MUL_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_the_products_kernel_passes_what_the_exercise_asks() -> None:
    """kernels/cuda/silu_mul.cu in the place of the learner's file."""
    with opened("sim", Library("sim", (ROOT / "kernels" / "cuda" / FILE,))) as backend:
        assert backend.offered == {"silu_mul"}
        for check in SILU_MUL_CHECKS:
            check(backend)


def test_the_product_is_back_after_a_learners_silu_mul() -> None:
    gate_up = torch.ones(2, 16)
    with opened("sim") as backend:
        expected = backend.op("silu_mul")(gate_up)
        with (
            opened("sim", *exercise_libraries(FOLDER, "sim")) as learners,
            pytest.raises(RuntimeError, match="chapter 3"),
        ):
            learners.op("silu_mul")(gate_up)
        assert torch.equal(backend.op("silu_mul")(gate_up), expected)
