"""Chapter 5's benchmark: paged_attention_grouped by every step of the ladder and by our kernel, beside its peers.

    make bench-chapter 5
    python chapters/ch05_grouped_attention/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operator stands beside PyTorch's. vLLM takes part where it is installed, or where QWEN_PEERS
names a folder with its library. Nobody is timed before the answer has been held against float64.
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

from chapters.ch05_grouped_attention import candidates
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch05_grouped_attention.targets import OP, judge
from qwen_cuda.benchmarking import Report, Variant, cache_bytes, rotate, side_by_side
from qwen_cuda.benchmarking.operator_benchmark import run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch05_grouped_attention"
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHED = ((4, 1024), (16, 1024), (64, 128), (64, 1024), (64, 4096))
# Query and KV heads, head_dim: Qwen3-8B, 14B and 32B, Qwen2.5-0.5B.
OTHER_HEADS = ((32, 8, 128), (40, 8, 128), (64, 8, 128), (14, 2, 64))
LADDER_CONTEXTS = (128, 1024, 8192)
CPU_CONTEXTS = (128, 1024)
COPIES = 3  # of keys and values in a set: paged, dense, and vLLM's; each must overflow the cache by itself


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: a shape, and who takes part."""

    shape: Shape
    ladder: bool = False
    peers: bool = False

    def __str__(self) -> str:
        return str(self.shape)


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the table."""
    if not on_gpu:
        for context in CPU_CONTEXTS[:1] if quick else CPU_CONTEXTS:
            yield Comparison(Shape(context), peers=True)
        return
    for context in LADDER_CONTEXTS if quick else CONTEXTS:
        yield Comparison(Shape(context), context in LADDER_CONTEXTS, peers=True)
    for batch, context in BATCHED[-2:-1] if quick else BATCHED:
        yield Comparison(Shape(context, batch), (batch, context) == (64, 1024), peers=True)
    for heads in () if quick else OTHER_HEADS:
        for batch in (1, 16):
            yield Comparison(Shape(1024, batch, *heads))
    for block_size in () if quick else (8, 64, 256):
        yield Comparison(Shape(1024, 16, block_size=block_size))
    if not quick:
        yield Comparison(Shape(1024, 16, dtype=torch.float16))


def main(argv: list[str] | None = None) -> int:
    return run(
        CHAPTER,
        __doc__.partition("\n")[0],
        argv,
        plan=plan,
        compare=compare,
        libraries=candidates.step_libraries,
        print_targets=print_targets,
    )


def compare(report: Report, what: Comparison, peer: Vllm | None) -> None:
    """Checks and times everybody on one shape. Where the memory of the device does not suffice there is a note."""
    try:
        enough = (COPIES if what.peers else 1) * cache_bytes(report.device)
        rotation = rotate(candidates.operands(what.shape, report.device, what.peers), enough)
        variants = list(_taking_part(what, peer, report.device.type == "cuda"))
        side_by_side(report, candidates.work(OP, what.shape), variants, rotation, partial(candidates.truth, what.shape))
    except torch.OutOfMemoryError:
        report.note(f"{what}: left out, the device's memory is full.")
        torch.cuda.empty_cache()


def _taking_part(what: Comparison, peer: Vllm | None, on_gpu: bool) -> Iterator[Variant]:
    if what.ladder and on_gpu:
        yield from candidates.ladder(what.shape)
    yield candidates.grouped(what.shape)
    if what.peers:
        yield from candidates.peers(what.shape, peer, on_gpu)


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "bfloat16, 16 query and 8 KV heads of 128, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
