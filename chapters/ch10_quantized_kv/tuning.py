"""Chapter 10's tuning: the kernel with each size of block forced, and with single ideas undone.

    python -m chapters.ch10_quantized_kv.tuning [--device cuda] [--output FILE] [--quick]

The kernel chooses the warps of a block by the number of warps. Each candidate is the kernel's own file with one
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
CHOICE = "warps <= 512 ? 1 : kMostWarps"
FOUR, MOST = "four_heads_store.cuh", "kMostWarps = 4;"
ANGLES = """\
  PartAngles angles;
  if (f.cos_sin != nullptr) {
    const char* turns = f.cos_sin + uint64_t(known ? position.value : 0) * f.angle_bytes;
    angles = load_part_angles(turns, part);
  }
"""
BEFORE_V = "\n  const int shift = f.group_shift;\n"
EDITS = {
    **{
        f"{warps} warps a block": (
            Edit(FOUR, MOST, f"kMostWarps = {max(warps, 4)};"),
            Edit(SOURCE, CHOICE, str(warps)),
        )
        for warps in (1, 2, 4, 8)
    },
    "a warp for each head": (Edit(SOURCE, "if (suits_four_heads(args))", "if (false)"),),
    "angles asked for before V": (Edit(FOUR, ANGLES, ""), Edit(FOUR, BEFORE_V, ANGLES + BEFORE_V)),
    "codes of FP4 one by one": (Edit("group_codes.cuh", "kPacked = !kE4M3 && kWide;", "kPacked = false;"),),
    "software conversions": (Edit("narrow_floats.cuh", "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890", "#if 0"),),
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
