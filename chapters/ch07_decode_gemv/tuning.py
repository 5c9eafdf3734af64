"""Chapter 7's tuning: kernels/cuda/decode_linear.cu with one constant or one idea changed at a time.

    python -m chapters.ch07_decode_gemv.tuning [--device cuda] [--output FILE] [--quick]

Each candidate is the kernel's own file with passages replaced, as a mutant is; it is held against float64 before it is
timed, on each layer, those of Qwen3-4B too, and on the chain of all. Kernels that follow each other overlap: the chain
decides, not the layer alone. docs/experiments.md tells what the figures mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from chapters.ch07_decode_gemv import candidates, chain
from chapters.ch07_decode_gemv.benchmark import OTHER_LAYERS
from chapters.ch07_decode_gemv.candidates import LAUNCHES, LAYERS
from chapters.ch07_decode_gemv.targets import STACK
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch07_tuning"
KERNEL = "decode_linear.cu"
BATCHES = (4, 8)


WAVES, ROWS_16 = "kWaves = 16;", "} else if (wide) {"
WALK = "kWalkRows = 2, kWalkSegments = 4;"
TRIGGER = "  grid_dependency_trigger();\n"
WAIT = "  grid_dependency_wait();  // before it nothing is read that a kernel may have written\n"


def kernel(*pairs: tuple[str, str]) -> tuple[Edit, ...]:
    return tuple(Edit(KERNEL, old, new) for old, new in pairs)


def tiles(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("tile_rows.cuh", old, new),)


def turns(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("row_turns.cuh", old, new),)


def walk(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("row_walk.cuh", old, new),)


EDITS: dict[str, tuple[Edit, ...]] = {
    # How the work of a layer is shared out.
    "16 rows a warp, always": kernel((ROWS_16, ROWS_16.replace("wide", "segments <= kMostWarps<16>"))),
    "8 rows a warp, always": kernel((ROWS_16, ROWS_16.replace("wide", "false"))),
    "registers as the compiler likes": kernel(
        ("(kRows > 8 ? 20 : 16)", "(kRows > 8 ? 12 : 16)"), ("kRows > 8 || !kOne ? 1 : 2", "1")
    ),
    "one wave of blocks before a walk": kernel((WAVES, "kWaves = 1;")),
    # How many bytes are on their way.
    "half a line of each row at a time": tiles("kLine = 2;", "kLine = 1;"),
    "two lines at a time": tiles("kLine = 2;", "kLine = 4;"),
    "all lines at once": tiles("kLine = 2;", "kLine = 8;"),
    "half lines come alone": tiles("no_allocate.L2::128B.v4", "no_allocate.v4"),
    # When the next kernel may come in.
    "the next kernel may start when the weights are here": kernel((TRIGGER, ""), (WAIT, WAIT + TRIGGER)),
    "the next kernel may start when all weights are asked for": kernel((TRIGGER, ""), (WAIT, TRIGGER + WAIT)),
    # Single ideas, undone.
    "without Tensor Cores": kernel(("ComputeCapabilityMajor) >= 8", "ComputeCapabilityMajor) >= 99")),
    "x always in three parts": kernel(("a.wide_out ? launch_tiles<3, kNorm>", "true ? launch_tiles<3, kNorm>")),
    "one sum in place of two": tiles("sums[h][j % 2]", "sums[h][0]"),
    "exact exponential and division": (
        Edit("linear_operands.cuh", "if (wide_out) {\n      const float power", "{\n      const float power"),
    ),
    # Without Tensor Cores: long rows.
    "turns: blocks of 4 warps": turns("kTurnWarps = 8", "kTurnWarps = 4"),
    "turns: blocks of 16 warps": turns("kTurnWarps = 8", "kTurnWarps = 16"),
    # The walk: the head.
    "turns, never a walk": kernel(("groups_of(a, kWalkRows) < walkers", "true")),
    "walk: 4 rows, 2 segments of each": walk(WALK, "kWalkRows = 4, kWalkSegments = 2;"),
    "walk: 2 rows, 2 segments, 3 blocks": (
        *walk(WALK, "kWalkRows = 2, kWalkSegments = 2;"),
        *walk("kWalkBlocks = 2;", "kWalkBlocks = 3;"),
    ),
    "walk: blocks of 4 warps": walk("kWalkWarps = 8, kWalkBlocks = 2;", "kWalkWarps = 4, kWalkBlocks = 4;"),
    "walk: blocks of 16 warps": walk("kWalkWarps = 8, kWalkBlocks = 2;", "kWalkWarps = 16, kWalkBlocks = 1;"),
    "walk: weights through the first-level cache": (
        Edit("cuda_platform.cuh", "ld.global.L1::no_allocate.v4.u32", "ld.global.v4.u32"),
    ),
}


def trials(device: torch.device) -> Iterator[Trial]:
    run = next(chain.variants(STACK, on_gpu=False))
    yield Trial(chain.work(STACK), run, chain.operands(STACK, device), partial(chain.truth, STACK))
    batches = (replace(layer, rows=rows) for rows in BATCHES for layer in LAYERS)
    for layer in (*LAYERS, *batches, *OTHER_LAYERS):
        run = next(candidates.ours(layer, on_gpu=False))
        yield Trial(candidates.work(layer), run, candidates.operands(layer, device), partial(candidates.truth, layer))


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("decode_linear", "cuda"), EDITS, launches=LAUNCHES)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
