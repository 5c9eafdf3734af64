"""Chapter 10's tuning of the reader: kernels/cuda/paged_attention_quantized.cu with one idea changed at a time.

    python -m chapters.ch10_quantized_kv.reader_tuning [--device cuda] [--output FILE] [--quick]

Each candidate is the kernel's own file with passages replaced, as a mutant is, and is held against float64 before it is
timed. The plans are about one block for each SM and two, for candidates of which two fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.tuning import constant
from chapters.ch10_quantized_kv import reader_candidates as reader
from qwen_cuda.benchmarking.tuning import Trial, tune, variants
from qwen_cuda.building import Edit
from qwen_cuda.loading import default_library

RESULTS = "ch10_reader_tuning"
CONTEXTS = (128, 1024, 8192, 32768)
NAMES = ("fp8_sections", "nvfp4_sections")
PARTITIONS = (16, 32)  # of 8 KV heads: 128 and 256 blocks
PARTITION_SIZE = 128
KERNEL, PAGES, READER, MERGE = (
    "paged_attention_quantized.cu",
    "quantized_pages.cuh",
    "paged_attention.cuh",
    "partition_merge.cuh",
)
TWO_BLOCKS = Edit(KERNEL, "__launch_bounds__(kAttentionThreads)", "__launch_bounds__(kAttentionThreads, 2)")

EDITS: dict[str, tuple[Edit, ...]] = {
    "1 turn ahead": constant(PAGES, "kAhead", 1),
    "1 turn ahead, two blocks an SM": (*constant(PAGES, "kAhead", 1), TWO_BLOCKS),
    "1 turn ahead of 8 tokens of a stream": (*constant(PAGES, "kAhead", 1), *constant(READER, "kRun", 8)),
    "8 dimensions a lane": constant(READER, "kDims", 8),
    "8 dimensions a lane, two blocks an SM": (*constant(READER, "kDims", 8), TWO_BLOCKS),
    "software conversions": (Edit(PAGES, "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890", "#if 0"),),
}


def trials(device: torch.device) -> Iterator[Trial]:
    for name in NAMES:
        for context in CONTEXTS:
            for partitions in PARTITIONS:
                shape, plan = Shape(context), Plan(PARTITION_SIZE, partitions, "last_block")
                work = reader.work(name, shape)
                work = replace(work, shape=work.shape | {"partitions": partitions})
                run = reader.by_plan(name, "ours", shape, plan, device)
                yield Trial(work, run, reader.operands(name, shape, device), partial(reader.truth, name, shape))


def main(argv: list[str] | None = None) -> int:
    libraries = variants(default_library("paged_attention_quantized", "cuda"), EDITS, launches=MERGE)
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
