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
ROWS_CUH, WEIGHTS_CUH = "head_rows.cuh", "head_weights.cuh"
BATCHES = (1, 2, 4, 8)
SIZES = (1024, 2560)
BLOCKS = "return batch == 1 ? 3 : batch <= 4 ? 2 : 1;"
CONVERT = "__uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 + i)) - 8388736.0f;  // 2^23 + 128"


def rows(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit(ROWS_CUH, old, new),)


EDITS: dict[str, tuple[Edit, ...]] = {
    "1 block an SM": rows(BLOCKS, "return 1;"),
    "2 blocks an SM": rows(BLOCKS, "return batch <= 4 ? 2 : 1;"),
    "4 blocks an SM, for one row of x": rows(BLOCKS, "return batch == 1 ? 4 : batch <= 4 ? 2 : 1;"),
    "128 threads a block, twice the blocks": (
        *rows("kHeadThreads = 256", "kHeadThreads = 128"),
        *rows(BLOCKS, "return batch == 1 ? 6 : batch <= 4 ? 4 : 2;"),
    ),
    "512 threads a block": (
        *rows("kHeadThreads = 256", "kHeadThreads = 512"),
        *rows(BLOCKS, "return batch == 1 ? 2 : 1;"),
    ),
    "2 rows in flight": rows("kHeadRows = 4", "kHeadRows = 2"),
    "8 rows in flight, for up to 4 rows of x": (
        *rows("kHeadRows = 4", "kHeadRows = 8"),
        *rows(BLOCKS, "return batch == 1 ? 2 : 1;"),
        *rows("weight.aligned() ? 8 : 1", "weight.aligned() ? 4 : 1"),
        *rows("f(first, rows, integral_constant<int, 8>{}, std::true_type{});", "return;"),
    ),
    "bytes converted by I2F": (
        Edit(WEIGHTS_CUH, CONVERT, "static_cast<float>(int8_t(word >> 8 * i));"),
        Edit(WEIGHTS_CUH, "  const unsigned biased = word ^ 0x80808080u;\n", ""),
    ),
    "weights through the first-level cache": (
        Edit("cuda_platform.cuh", "ld.global.L1::no_allocate.v4.u32", "ld.global.v4.u32"),
    ),
    "nothing in flight while a step is computed": (
        *rows(
            "      load_next(last ? row + stride : row, last ? 0 : step + 1);\n",
            "",
        ),
        *rows(
            "now[s / kBatch]);\n    }\n",
            "now[s / kBatch]);\n      load_next(last ? row + stride : row, last ? 0 : step + 1);\n    }\n",
        ),
    ),
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
