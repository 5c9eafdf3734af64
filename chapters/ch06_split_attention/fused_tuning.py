"""Chapter 6's tuning of the fused kernel: kernels/cuda/fused_decode_attention.cu with one idea changed at a time.

    python -m chapters.ch06_split_attention.fused_tuning [--device cuda] [--output FILE] [--quick]

Each candidate is the kernel's own file with passages replaced, under the plan of its context, and reads ahead as in a
decode step; it is held against float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import fused_candidates as fused
from chapters.ch06_split_attention.dispatch import plan_for
from chapters.ch06_split_attention.tuning import MERGE
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch06_fused_tuning"
CONTEXTS = (128, 1024, 8192, 32768)
EDITS: dict[str, tuple[Edit, ...]] = {
    "one turn ahead": (Edit("fused_decode_attention.cu", " && copies_are_async()", " && false"),),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for context in CONTEXTS:
        shape = Shape(context)
        plan = plan_for(shape.batch, shape.kv_heads, context, device, op=fused.OP)
        run = fused.by_plan("ours", shape, plan, device)
        yield Trial(fused.work(shape), run, fused.operands(shape, device), partial(fused.truth, shape))


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library(fused.OP, "cuda"), EDITS, launches=(MERGE,))
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
