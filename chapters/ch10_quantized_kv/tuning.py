"""Chapter 10's tuning: the kernel with each size of block forced, and with single ideas undone.

    python -m chapters.ch10_quantized_kv.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses the warps of a block by the number of heads. Each candidate is the kernel's own file with one
passage replaced, as a mutant is, and its codes are held against the unfused pipeline's before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch10_quantized_kv import candidates
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch10_tuning"
SOURCE = "norm_rope_hadamard_quant_store.cu"
TOKENS = (1, 8, 32, 64, 128, 512, 1024, 8192, 32768)
CHOICE = "rows <= 512 ? 1 : kMostWarps"
MOST = "kMostWarps = 4;"
EARLY = """\
    const float* turns = a.cos_sin + (place.known ? place.position : 0) * a.cos_sin_stride;
    angles = load_angles<kChunks>(turns, a.rotary_dim, a.interleaved, a.conjugate, lane);
"""
EDITS = {
    **{
        f"{warps} warps a block": (
            Edit(SOURCE, MOST, f"kMostWarps = {max(warps, 4)};"),
            Edit(SOURCE, CHOICE, str(warps)),
        )
        for warps in (1, 2, 4, 8)
    },
    "software conversions": (Edit("narrow_floats.cuh", "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890", "#if 0"),),
    "angles asked for after the norm": (
        Edit(SOURCE, EARLY, ""),
        Edit(SOURCE, "    rotate(head, angles,", f"{EARLY}    rotate(head, angles,"),
    ),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for name in ("fp8", "nvfp4"):
        for tokens in TOKENS:
            operands, truth = candidates.operands(tokens, name, device), partial(candidates.truth, name)
            yield Trial(candidates.work(tokens, name), candidates.ours(name), operands, truth)


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("norm_rope_hadamard_quant_store", "cuda"), EDITS)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
