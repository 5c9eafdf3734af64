"""Exercise 10 can be failed and can be solved: the starter names its chapter, and a solution passes every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chapters.ch10_quantized_kv.rounding_checks import check_every_power_of_two
from chapters.ch10_quantized_kv.store_checks import STORE_CHECKS, check_hadamard, check_same_bits_in_any_batch
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.testing.backends import opened
from qwen_cuda.testing.exercise import Holes, files_asked, run_exercise, with_holes_filled

CHAPTER = "ch10_quantized_kv"
FOLDER = Path(__file__).parent / "exercise"
FILE = "norm_rope_hadamard_quant_store.cu"
IN_ORDER = (check_hadamard, check_same_bits_in_any_batch, check_every_power_of_two)
HOLES: Holes = {
    "transform_chunk": (
        Edit(FILE, "kTransformIsWritten = false;", "kTransformIsWritten = true;"),
        Edit(
            FILE,
            "  (void)v, (void)scale, (void)lane;  // write it here\n",
            """  for (int bit = 1; bit < kOfLane; bit *= 2) {
    for (int i = 0; i < kOfLane; ++i) {
      if (i & bit) continue;
      const float u = v[i], w = v[i + bit];
      v[i] = u + w;
      v[i + bit] = u - w;
    }
  }
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    for (int i = 0; i < kOfLane; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, v[i], distance);
      v[i] = lane & distance ? other - v[i] : v[i] + other;
    }
  }
  for (int i = 0; i < kOfLane; ++i) v[i] *= scale;
""",
        ),
    ),
    "quantize_chunk": (
        Edit(FILE, "kCodesAreWritten = false;", "kCodesAreWritten = true;"),
        Edit(
            FILE,
            "  (void)v, (void)to, (void)data, (void)scales, (void)stored, (void)c, (void)lane;  // write it here\n",
            """  const int lanes = to.group / kOfLane, first = c * kChunk + kOfLane * lane;
  unsigned amax = 0;
  for (int i = 0; i < kOfLane; ++i) amax = max(amax, __float_as_uint(v[i]) & 0x7fffffffu);
  for (int distance = 1; distance < lanes; distance *= 2) {
    amax = max(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }
  const GroupScale scale = group_scale(amax, to);
  divide(v, scale, to.scale_format);
  const uint32_t codes = encode(v, to.values);
  if (stored) {
    const int bits = to.values == ValueFormat::kE4M3 ? 8 : 4;
    for (int b = 0; b < bits / 2; ++b) data[first * bits / 8 + b] = uint8_t(codes >> 8 * b);
    if (lane % lanes == 0) {
      const int width = to.scale_format == ScaleFormat::kFloat32 ? 4 : 1;
      for (int b = 0; b < width; ++b) scales[first / to.group * width + b] = uint8_t(scale.code >> 8 * b);
    }
  }
  for (int i = 0; i < kOfLane; ++i) v[i] = decode(codes, i, to.values) * scale.value;
""",
        ),
    ),
    "power_of_two_code": (
        Edit(FILE, "kPowerIsWritten = false;", "kPowerIsWritten = true;"),
        Edit(
            FILE,
            "  (void)amax_bits, (void)e4m3;  // write it here\n  return 127;\n",
            """  const unsigned below = e4m3 ? 0x1fffffu : 0x3fffffu;
  const int exponent = int((amax_bits + below) >> 23) - (e4m3 ? 8 : 2);
  return exponent < 0 ? 0 : unsigned(exponent);
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


def test_the_starter_of_exercise_10_names_chapter_and_hole() -> None:
    """What `make exercise 10` starts: tests that take a backend, of which those of attention skip themselves."""
    run = run_exercise(CHAPTER)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: chapter 10, hole 1 (transform_chunk) is not written yet" in run.stdout
    attention = {"test_ch10_attention_operators.py", "test_ch10_fused.py"}
    assert files_asked(run.stdout) == attention | {"test_ch10_operators.py"}


def test_the_words_of_exercise_10_choose_tests() -> None:
    """pytest's -k looks into the names of tests, which hold those of the checks."""
    words = re.findall(r'ARGS="-k (\w+)"', (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [[check for check in STORE_CHECKS if word in check.__name__] for word in words] == [[c] for c in IN_ORDER]


def test_holes_of_exercise_10_can_be_filled_in_order() -> None:
    """Each one filled makes one more check pass, and the next one name the next hole."""
    for filled, hole in enumerate(HOLES):
        with opened("sim", with_filled(filled)) as backend:
            for check in IN_ORDER[:filled]:
                check(backend)
            with pytest.raises(RuntimeError, match=rf"chapter 10, hole {filled + 1} \({hole}\) is not written yet"):
                IN_ORDER[filled](backend)


@pytest.mark.parametrize("variant", ["plain", "checked"])
def test_a_solution_of_exercise_10_passes_every_check(variant: str) -> None:
    with opened("sim", with_filled(3, variant)) as backend:
        for check in STORE_CHECKS:
            check(backend)
