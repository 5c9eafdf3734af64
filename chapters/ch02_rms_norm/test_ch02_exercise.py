"""The exercise can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from chapters.ch02_rms_norm.rms_norm_checks import (
    LARGE,
    RMS_NORM_CHECKS,
    check_odd_rows,
    check_rows_of_one_warp,
    check_rows_of_whole_packs,
)
from qwen_cuda.building import BuildError, Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, exercise_libraries, files_asked, run_exercise, with_holes_filled

FOLDER = Path(__file__).parent / "exercise"
FILE = "rms_norm.cu"
HOLES: Holes = {
    "warp_sum": (
        Edit(FILE, "kWarpSumIsWritten = false;", "kWarpSumIsWritten = true;"),
        Edit(
            FILE,
            "  return value;  // write it here\n",
            """  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(0xffffffffu, value, d);
  return value;
""",
        ),
    ),
    "block_sum": (
        Edit(FILE, "kBlockSumIsWritten = false;", "kBlockSumIsWritten = true;"),
        Edit(
            FILE,
            "  return value + partial[0];  // write it here\n",
            """  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += partial[w];
  return total;
""",
        ),
    ),
    "rms_norm_packs": (
        Edit(FILE, "kPacksAreWritten = false;", "kPacksAreWritten = true;"),
        Edit(
            FILE,
            "  (void)x, (void)weight, (void)out, (void)partial;  // write it here\n",
            """  const int64_t first = threadIdx.x * Pack<T>::kSize, step = blockDim.x * Pack<T>::kSize;
  float sum = 0.0f;
  for (int64_t i = first; i < args.hidden; i += step) {
    const Pack<T> pack = load_pack(x + i);
    for (const T value : pack.values) sum += to_float(value) * to_float(value);
  }
  const float scale = 1.0f / sqrtf(block_sum(sum, partial) / static_cast<float>(args.hidden) + args.eps);
  for (int64_t i = first; i < args.hidden; i += step) {
    Pack<T> pack = load_pack(x + i);
    const Pack<T> gain = load_pack(weight + i);
    for (int k = 0; k < Pack<T>::kSize; ++k) {
      pack.values[k] = from_float<T>(to_float(pack.values[k]) * scale * to_float(gain.values[k]));
    }
    store_pack(out + i, pack);
  }
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


def test_the_starter_fails_and_names_chapter_and_hole() -> None:
    """And only tests that run the learner's kernel are asked."""
    run = run_exercise("ch02_rms_norm")
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 2, hole 1 (warp_sum) is not written yet" in run.stdout
    assert "1 failed" in run.stdout
    assert files_asked(run.stdout) == {"test_ch02_operators.py"}
    assert "reference" not in run.stdout


def test_the_words_of_the_readme_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    chosen = [[check for check in RMS_NORM_CHECKS if word in check.__name__] for word in words]
    assert chosen == [[check_rows_of_one_warp], [check_odd_rows]]


def test_holes_can_be_filled_one_after_the_other() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    checks = (check_rows_of_one_warp, check_odd_rows, check_rows_of_whole_packs)
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in checks[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 2, hole {filled + 1} \({hole}\) is not written yet"):
                checks[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        assert not backend.offers("add_rms_norm"), "the exercise ends with rms_norm"
        for check in RMS_NORM_CHECKS:
            if variant == "plain" or check not in LARGE:
                check(backend)


def test_the_learners_kernels_are_checked_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWEN_SIM", raising=False)
    assert [library.variant for library in exercise_libraries(FOLDER, "sim")] == ["checked"]
    monkeypatch.setenv("QWEN_SIM", "plain")
    assert [library.variant for library in exercise_libraries(FOLDER, "sim")] == ["plain"]
    assert [library.kind for library in exercise_libraries(FOLDER, "cuda")] == ["cuda"]


def test_an_empty_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"holds no .cu file: restore it"):
        exercise_libraries(tmp_path, "sim")


def test_the_product_is_back_after_a_learners_file() -> None:
    """A solution in between leaves the operators as they were."""
    x, weight = torch.ones(2, 8), torch.ones(8)
    with opened("sim") as backend:
        expected = backend.op("rms_norm")(x, weight, 1e-6)
        with opened("sim", *exercise_libraries(FOLDER, "sim")) as learners:
            with pytest.raises(RuntimeError, match="chapter 2"):
                learners.op("rms_norm")(x, weight, 1e-6)
            with pytest.raises(AssertionError, match="add_rms_norm is none of the operators of this library"):
                learners.op("add_rms_norm")
        assert torch.equal(backend.op("rms_norm")(x, weight, 1e-6), expected)
