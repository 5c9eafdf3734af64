"""Chapter 8's tuning: kernels/cuda/w8a16_linear.cu with one idea changed at a time.

    python -m chapters.ch08_w8a16_head.tuning [--device cuda] [--output FILE] [--quick]

Each candidate is the kernel's own file with passages replaced, as a mutant is; it is held against float64 before it is
timed. docs/experiments.md tells what the figures mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch08_w8a16_head import candidates
from chapters.ch08_w8a16_head.candidates import Shape
from chapters.ch08_w8a16_head.targets import N
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch08_tuning"
ROWS_CUH, WEIGHTS_CUH, INPUT_CUH = "head_rows.cuh", "head_weights.cuh", "head_input.cuh"
BATCHES = (1, 2, 4, 8)
SIZES = (1024, 2560)
STEPS, BLOCKS = "kColumns = 16, kSteps = 2, kBlocks = 3;", "kBatch == 1 ? Weight::kBlocks : (kBatch <= 4 ? 2 : 1);"
NEXT = "    if (more) load_turn(next, next_row, next_step);\n"
CONVERT = "__uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 + i)) - 8388736.0f;  // 2^23 + 128"


def rows(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit(ROWS_CUH, old, new),)


def in_flight(rows_of_warp: int, steps: int, blocks: int) -> tuple[Edit, ...]:
    """For one row of x."""
    return (
        *rows("kHeadRows = kBatch == 1 ? 2", f"kHeadRows = kBatch == 1 ? {rows_of_warp}"),
        Edit(WEIGHTS_CUH, STEPS, f"kColumns = 16, kSteps = {steps}, kBlocks = {blocks};"),
    )


def threads(count: int, blocks: str) -> tuple[Edit, ...]:
    return (Edit(INPUT_CUH, "kHeadThreads = 256", f"kHeadThreads = {count}"), *rows(BLOCKS, blocks))


EDITS: dict[str, tuple[Edit, ...]] = {
    **{
        f"one row: {r} rows of the weight, {s} steps, {b} blocks": in_flight(r, s, b)
        for r, s, b in ((2, 1, 4), (2, 2, 2), (2, 2, 4), (4, 1, 3), (4, 2, 2), (8, 1, 2))
    },
    "several: 1 block an SM": rows(BLOCKS, "kBatch == 1 ? Weight::kBlocks : 1;"),
    "several: 2 rows of the weight": rows("kHeadRows = kBatch == 1 ? 2 : 4;", "kHeadRows = 2;"),
    "128 threads a block, twice the blocks": threads(128, "kBatch == 1 ? 6 : (kBatch <= 4 ? 4 : 2);"),
    "512 threads a block": threads(512, "1;"),
    "bytes converted by I2F": (
        Edit(WEIGHTS_CUH, CONVERT, "static_cast<float>(int8_t(word >> 8 * i));"),
        Edit(WEIGHTS_CUH, "  const unsigned biased = word ^ 0x80808080u;\n", ""),
    ),
    "weights through the first-level cache": (
        Edit("cuda_platform.cuh", "ld.global.L1::no_allocate.v4.u32", "ld.global.v4.u32"),
    ),
    "nothing in flight while a step is computed": (
        *rows(NEXT, ""),
        *rows("    row = next_row, step = next_step;\n", NEXT + "    row = next_row, step = next_step;\n"),
    ),
    "x read number by number": (Edit(INPUT_CUH, "kHeadNumbers = 4", "kHeadNumbers = 1"),),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for k in SIZES:
        for batch in BATCHES:
            shape = Shape(batch, k, N)
            run = next(candidates.variants("w8a16_linear", shape, device))
            made = candidates.operands("w8a16_linear", shape, device)
            work = candidates.work("w8a16_linear", shape)
            yield Trial(work, run, made, partial(candidates.truth, "w8a16_linear"))


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("w8a16_linear", "cuda"), EDITS)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
