"""Chapter 6's benchmark: paged_attention by plan, by each merge and in two launches, beside peers; and its fused form.

    make bench-chapter 6
    python chapters/ch06_split_attention/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operators stand beside PyTorch's. vLLM takes part where it is installed or QWEN_PEERS names a
folder with its library, FlashInfer where it is installed. `plan_table.py` measures the plans themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.benchmark import COPIES
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import candidates
from chapters.ch06_split_attention import fused_candidates as fused
from chapters.ch06_split_attention.dispatch import Op
from chapters.ch06_split_attention.targets import CONTEXTS, OP, judge
from qwen_cuda.benchmarking import Report, Variant, cache_bytes, rotate, side_by_side
from qwen_cuda.benchmarking.operator_benchmark import run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch06_split_attention"
QUICK_CONTEXTS = (128, 1024, 8192)
BATCHED = ((2, 1024), (4, 1024), (8, 1024), (16, 1024), (4, 8192), (16, 8192))
# Query and KV heads of Qwen3-8B, 14B and 32B.
OTHER_HEADS = ((32, 8, 128), (40, 8, 128), (64, 8, 128))
CPU_CONTEXTS = (128, 1024)


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: a shape, whether peers take part, and the operator."""

    shape: Shape
    peers: bool = True
    op: Op = OP

    def __str__(self) -> str:
        return str(self.shape) if self.op == OP else f"{self.op}, {self.shape}"


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the table."""
    if not on_gpu:
        for context in CPU_CONTEXTS[:1] if quick else CPU_CONTEXTS:
            yield Comparison(Shape(context))
            yield Comparison(Shape(context), peers=False, op=fused.OP)
        return
    for context in QUICK_CONTEXTS if quick else CONTEXTS:
        yield Comparison(Shape(context))
        yield Comparison(Shape(context), peers=False, op=fused.OP)
    for batch, context in () if quick else BATCHED:
        yield Comparison(Shape(context, batch))
    for heads in () if quick else OTHER_HEADS:
        for context in QUICK_CONTEXTS:
            yield Comparison(Shape(context, 1, *heads), peers=False)
    for context in () if quick else QUICK_CONTEXTS:
        yield Comparison(Shape(context, dtype=torch.float16), peers=False)


def main(argv: list[str] | None = None) -> int:
    return run(
        CHAPTER,
        __doc__.partition("\n")[0],
        argv,
        plan=plan,
        compare=compare,
        libraries=lambda: (),
        print_targets=print_targets,
    )


def compare(report: Report, what: Comparison, peer: Vllm | None) -> None:
    """Checks and times everybody on one shape. Where the memory of the device does not suffice there is a note."""
    shape, device = what.shape, report.device
    try:
        if what.op == fused.OP:
            return compare_fused(report, shape)
        enough = (COPIES if what.peers else 1) * cache_bytes(device)
        rotation = rotate(grouped.operands(shape, device, what.peers), enough)
        variants: list[Variant] = list(candidates.ours(shape, device))
        if what.peers:
            variants += grouped.peers(shape, peer, device.type == "cuda")
            other = candidates.flashinfer(shape, rotation.sets[0])
            if isinstance(other, Variant):
                variants.append(other)
            elif device.type == "cuda" and other not in report.notes:
                report.note(other)
        side_by_side(report, grouped.work(OP, shape), variants, rotation, partial(grouped.truth, shape))
    except torch.OutOfMemoryError:
        report.note(f"{what}: left out, the device's memory is full.")
        torch.cuda.empty_cache()


def compare_fused(report: Report, shape: Shape) -> None:
    rotation = rotate(fused.operands(shape, report.device), cache_bytes(report.device))
    variants = list(fused.ours(shape, report.device))
    side_by_side(report, fused.work(shape), variants, rotation, partial(fused.truth, shape))


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "one sequence, bfloat16, 16 query and 8 KV heads of 128, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
