"""Chapter 2's tuning: kernels/cuda/rms_norm.cu with each shape of block forced, and with single ideas undone.

    python -m chapters.ch02_rms_norm.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses a shape by rows and length. The choice rests on these figures; docs/experiments.md tells what they
mean. Each candidate is the kernel's own file with one passage replaced, as a mutant is, and it is held against float64
before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch02_rms_norm import candidates
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch02_tuning"
SOURCE = "rms_norm.cu"
ROWS = (1, 128, 512, 1024, 2048, 4096, 8192, 32768)
HIDDEN = (1024, 2560, 4096)
CHOICE = "  if constexpr (!kAdd) {\n    if (lane_packs <= 4 && a.rows > 4096) {"
FORCED = {  # what stands before the choice, so that it is never reached
    "one pack a lane": (
        "if (lane_packs <= 16) {"
        "return launch_rows<T>(a, norm_rows<T, 1, 16, true, kAdd, kAligned, kHf>, "
        "lane_packs * kWarpSize, 1, stream); }\n"
    ),
    "two packs, weight last": (
        "return launch_rows<T>(a, norm_rows<T, 2, 32, false, kAdd, kAligned, kHf>, "
        "(lane_packs + 1) / 2 * kWarpSize, 1, stream);\n"
    ),
    "two packs, weight first": (
        "return launch_rows<T>(a, norm_rows<T, 2, 32, true, kAdd, kAligned, kHf>, "
        "(lane_packs + 1) / 2 * kWarpSize, 1, stream);\n"
    ),
    "a warp a row, four rows a block": (
        "if (lane_packs <= 4) {"
        "return launch_rows<T>(a, norm_rows<T, 4, 1, true, kAdd, kAligned, kHf>, "
        "kWarpSize, kRowsOfBlock, stream); }\n"
    ),
    "a warp a row, one row a block": (
        "if (lane_packs <= 4) {"
        "return launch_rows<T>(a, norm_rows<T, 4, 1, true, kAdd, kAligned, kHf>, kWarpSize, 1, stream); }\n"
    ),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for op in candidates.OPS:
        (run,) = (one for one in candidates.ours(op, torch.bfloat16) if one.name == "ours")
        for hidden in HIDDEN:
            # A warp keeps four packs a lane in registers: 1024 elements of 16 bits.
            left_out = tuple(name for name in FORCED if name.startswith("a warp")) if hidden > 1024 else ()
            for rows in ROWS:
                shape = (op, rows, hidden, torch.bfloat16)
                operands = candidates.operands(*shape, device)
                yield Trial(candidates.work(*shape), run, operands, partial(candidates.truth, op), left_out)


def main(argv: list[str] | None = None) -> int:
    edits = {name: (Edit(SOURCE, CHOICE, f"  {passage}{CHOICE}"),) for name, passage in FORCED.items()}
    libraries = variants(default_library("rms_norm", "cuda"), edits)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
