"""Chapter 6's tuning: kernels/cuda/paged_attention_split.cu with one idea changed at a time.

    python -m chapters.ch06_split_attention.tuning [--device cuda] [--output FILE] [--quick]

Each candidate is the kernel's own file with passages replaced, as a mutant is, under the plan that a graph for long
contexts has; it is held against float64 before it is timed. docs/experiments.md tells what the figures mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention.candidates import LONGEST, by_plan
from chapters.ch06_split_attention.dispatch import plan_for
from chapters.ch06_split_attention.targets import OP
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch06_tuning"
CONTEXTS = (128, 512, 1024, 4096, 8192, 32768)
KERNEL, READER, MERGE = "paged_attention_split.cu", "paged_attention.cuh", "partition_merge.cuh"


def constant(file: str, name: str, value: int) -> tuple[Edit, ...]:
    """Another value in place of whatever the file gives the constant."""
    return (Edit(file, f"constexpr int {name} = ", f"constexpr int {name} = {value}, {name}AsItIs = "),)


EDITS: dict[str, tuple[Edit, ...]] = {
    "4 warps a block": constant(READER, "kAttentionWarps", 4),
    "2 tokens of a stream in a turn": constant(READER, "kRun", 2),
    "8 tokens of a stream in a turn": constant(READER, "kRun", 8),
    "8 dimensions a lane": constant(READER, "kDims", 8),
    "8 partials asked for at once in the merge": constant(MERGE, "kMergeBatch", 8),
    "keys and values through the first-level cache": (
        Edit("cuda_platform.cuh", "ld.global.L1::no_allocate.v4.u32", "ld.global.v4.u32"),
    ),
    "first page guessed before the length is known": (
        Edit(
            KERNEL,
            "  const int context = a.context(sequence);",
            "  const int likely = partition * partition_size;\n"
            "  const int likely_block = head.block_of(likely + offset, INT32_MAX);\n"
            "  const int context = a.context(sequence);",
        ),
        Edit(
            KERNEL,
            "head.block_of(begin + offset, end);",
            "begin == likely ? likely_block : head.block_of(begin + offset, end);",
        ),
    ),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for context in CONTEXTS:
        shape = Shape(context)
        run = by_plan("ours", shape, plan_for(1, shape.kv_heads, LONGEST, device), device)
        operands = grouped.operands(shape, device, peers=False)
        yield Trial(grouped.work(OP, shape), run, operands, partial(grouped.truth, shape))


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("paged_attention_split", "cuda"), EDITS, launches=(MERGE,))
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
