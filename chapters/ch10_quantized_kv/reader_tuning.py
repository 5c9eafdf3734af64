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
PARTITION_SIZE = 144  # more than one turn
KERNEL, NUMBERS, OPERANDS, READER, MERGE = (
    "paged_attention_quantized.cu",
    "code_numbers.cuh",
    "quantized_operands.cuh",
    "quantized_reader.cuh",
    "partition_merge.cuh",
)
IN_REGISTERS = Edit(OPERANDS, "places % 4 == 0 && copies_are_async()", "false && places == 0")
TWO_BLOCKS = Edit(KERNEL, "__launch_bounds__(kAttentionThreads)", "__launch_bounds__(kAttentionThreads, 2)")

EDITS: dict[str, tuple[Edit, ...]] = {
    "all turns in registers": (IN_REGISTERS,),
    "two blocks an SM": (TWO_BLOCKS,),
    "4 warps a block": constant("paged_attention.cuh", "kAttentionWarps", 4),
    "one sum for the halves of a query": (Edit(READER, "kChains = kTiles == 1 ? 2 : 1", "kChains = 1"),),
    "rescaled at every new maximum": (Edit(READER, "kSlack = 4.0f", "kSlack = 0.0f"),),
    "scales switched at run time": (
        Edit(OPERANDS, "ScaleFormat::kUE8M0) return with", "ScaleFormat::kNone) return with"),
    ),
    "queries rounded to halves": (Edit(READER, "mma_m16n8k16(sums[n][j / kWords][kChains - 1], a, {q.z, q.w});", ""),),
    "software conversions": (Edit(NUMBERS, "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890", "#if 0"),),
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
    libraries = variants(default_library("paged_attention_quantized", "cuda"), EDITS, launches=(MERGE,))
    return tune(RESULTS, __doc__.partition("\n")[0], argv, libraries, trials)


if __name__ == "__main__":
    raise SystemExit(main())
