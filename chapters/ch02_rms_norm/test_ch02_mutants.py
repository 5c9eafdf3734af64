"""Plausible faults in kernels/cuda/rms_norm.cu and its headers, one at a time: the checks must notice every one."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch02_rms_norm.add_rms_norm_checks import ADD_RMS_NORM_CHECKS
from chapters.ch02_rms_norm.rms_norm_checks import LARGE, RMS_NORM_CHECKS
from qwen_cuda.building import Edit
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(900)  # all are built before the first test, on a busy machine in minutes
SOURCE = "rms_norm"
CHECKS = sorted((*RMS_NORM_CHECKS, *ADD_RMS_NORM_CHECKS), key=lambda check: check in LARGE)

kernel = edit_of("rms_norm.cu")

ROOT = "1.0f / sqrtf(mean + a.eps)"
X = "static_cast<const T*>(args.x)"
ADDITION = "intermediate<T, kHf>(value[j][k] + to_float(residual[j].values[k]))"

MUTANTS = (
    # The sum.
    Mutant(
        "shuffle distance too short",
        "The butterfly begins at 8, so each half of a warp keeps a sum of its own.",
        (Edit("warp_reduce.cuh", "distance = kWarpSize / 2", "distance = kWarpSize / 4"),),
    ),
    Mutant(
        "butterfly one step short",
        "Even and odd lanes keep sums of their own.",
        (Edit("warp_reduce.cuh", "kWarpSize / 2; distance > 0", "kWarpSize / 2; distance > 1"),),
    ),
    Mutant(
        "mask of half a warp",
        "The upper 16 lanes call the shuffle, but its mask does not name them.",
        (Edit("warp_reduce.cuh", "kAllLanes = 0xffffffffu", "kAllLanes = 0x0000ffffu"),),
    ),
    Mutant(
        "dropped barrier",
        "A warp reads the partial sums of others before they are written.",
        kernel("__syncthreads();", ""),
    ),
    Mutant(
        "barrier in a branch",
        "Only every other warp comes to the barrier.",
        kernel("__syncthreads();", "if (warp % 2 == 0) __syncthreads();"),
    ),
    Mutant(
        "partial sums collide",
        "Two warps write the same word of shared memory.",
        kernel("partial[j * warps + warp][lane]", "partial[j + warp][lane]"),
    ),
    Mutant(
        "last partial sum lost",
        "The sum misses the packs of the last warp.",
        kernel("p < kPacks * warps", "p < kPacks * warps - 1"),
    ),
    Mutant(
        "another order of additions where rows are many",
        "A row gives other bits in a large batch than alone.",
        kernel("(int j = 0; j < kPacks; ++j) sum += mine[j]", "(int j = kPacks - 1; j >= 0; --j) sum += mine[j]"),
    ),
    Mutant(
        "squares in the format of the row",
        "The square of 300 is beyond float16.",
        kernel("+= value[j][k] * value[j][k]", "+= to_float(from_float<T>(value[j][k] * value[j][k]))"),
    ),
    # The scale.
    Mutant("missing eps", "A row of zeros is divided by zero.", kernel(ROOT, "1.0f / sqrtf(mean)", 2)),
    Mutant("eps outside the root", "Small rows come out too large.", kernel(ROOT, "1.0f / (sqrtf(mean) + a.eps)", 2)),
    Mutant(
        "mean over whole packs",
        "The sum is divided by the row's size rounded up to a pack.",
        kernel("/ static_cast<float>(a.hidden)", "/ static_cast<float>(packs * kSize)", 2),
    ),
    Mutant(
        "rounds twice",
        "The scaled row is rounded before the weight is applied, as Hugging Face does.",
        kernel("intermediate<T, kHf>(value[j][k] * scale)", "intermediate<T, true>(value[j][k] * scale)"),
    ),
    Mutant(
        "weights of neighbours",
        "Each pair takes its weights crosswise.",
        kernel("weight[j].values[k]", "weight[j].values[k ^ 1]"),
    ),
    # The ends of rows, and where they lie.
    Mutant(
        "tail dropped",
        "What follows the last whole pack is neither summed nor written.",
        kernel("(a.hidden + kSize - 1) / kSize", "a.hidden / kSize", 2),
    ),
    Mutant(
        "tail read too far",
        "The element after the row's last one is summed too.",
        (Edit("vector_load.cuh", "k < count ? from[k]", "k <= count ? from[k]"),),
    ),
    Mutant(
        "tail written too short",
        "The last element of an odd row is not written.",
        (Edit("vector_load.cuh", "if (k < count) to[k]", "if (k < count - 1) to[k]"),),
    ),
    Mutant(
        "tail written too far",
        "The element after the row's last one is overwritten.",
        (Edit("vector_load.cuh", "if (k < count) to[k]", "if (k <= count) to[k]"),),
        "checked",
    ),
    Mutant(
        "whole packs of odd rows",
        "16-byte loads and stores reach beyond a row that ends inside a pack.",
        kernel("a.hidden % Pack<T>::kSize == 0 && ", ""),
        "checked",
    ),
    Mutant(
        "16-byte loads of x at any address",
        "The vector path is taken although x is not aligned.",
        kernel("rows_are_aligned(a.x.data, a.x.stride) &&", ""),
        "checked",
    ),
    Mutant(
        "16-byte loads of the weight at any address",
        "The vector path is taken although the weight is not aligned.",
        kernel("rows_are_aligned(a.weight, 0)", "true"),
        "checked",
    ),
    Mutant(
        "x read at the stride of out",
        "The gaps between the rows of x are taken for rows.",
        kernel(f"false>({{{{{X}, args.x_stride", f"false>({{{{{X}, args.out_stride"),
    ),
    Mutant(
        "sum written at the stride of the residual",
        "Rows of the sum land behind its end.",
        kernel("args.residual_out_stride", "args.residual_stride"),
        "checked",
    ),
    # The launch.
    Mutant(
        "last rows without a block",
        "The number of blocks is rounded down.",
        kernel("(a.rows + rows_of_block - 1) / rows_of_block", "a.rows / rows_of_block"),
    ),
    Mutant(
        "rows beyond the last",
        "The last block works on rows that do not exist.",
        kernel("if (r >= a.rows) return;", ""),
        "checked",
    ),
    Mutant(
        "odd warps rounded down",
        "Rows of an odd number of warps' packs lose their end.",
        kernel("(lane_packs + 1) / 2", "lane_packs / 2"),
    ),
    Mutant(
        "float16 taken for bfloat16",
        "One kernel is launched for both.",
        (Edit("number_types.cuh", "f(__half{})", "f(__nv_bfloat16{})"),),
    ),
    # The residual.
    Mutant("residual not added", "x is normed alone.", kernel(ADDITION, "value[j][k]")),
    Mutant(
        "sum rounded before it is normed",
        "The norm sees what the residual keeps, as two separate operators would.",
        kernel(ADDITION, ADDITION.replace("kHf", "true")),
    ),
    Mutant(
        "residual stored before the addition",
        "The residual stays what it was.",
        kernel("sum.values[k] = from_float<T>(value[j][k])", "sum.values[k] = residual[j].values[k]"),
    ),
    Mutant(
        "in-place hazard",
        "A long row's sum is stored before its residual is read again: wrong where both are one tensor.",
        kernel(
            "square_sum[0] += value[k] * value[k];",
            """{
        square_sum[0] += value[k] * value[k];
        if constexpr (kAdd) {
          if (q * kSize + k < a.hidden) a.residual_out.row(r)[q * kSize + k] = from_float<T>(value[k]);
        }
      }""",
        ),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("checked", 0)])
def test_the_kernel_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
