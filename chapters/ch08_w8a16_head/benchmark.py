"""Chapter 8's benchmark: the int8 head by every step of the ladder and by our kernel, its argmax, and bf16 beside it.

    make bench-chapter 8
    python chapters/ch08_w8a16_head/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operators stand beside PyTorch's, on a smaller head. vLLM's Machete takes part where vLLM is
installed, or where QWEN_PEERS names a folder with its libraries. Nobody is timed before the answer has been held
against float64.
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

from rich.console import Console

from chapters.ch08_w8a16_head import candidates, machete
from chapters.ch08_w8a16_head.candidates import OPS, Op, Shape
from chapters.ch08_w8a16_head.targets import K, N, judge
from qwen_cuda.benchmarking import Operands, Report, Variant
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch08_w8a16_head"
SIZES = (1024, 2048, 2560)  # of Qwen3-0.6B, 1.7B and 4B, whose vocabulary is the same
BATCHES = (1, 2, 4, 8)
GROUPS = (None, 64, 32)  # beside 128
CPU_N = 8192


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: an operation on one head; with `everybody` also the steps of the ladder."""

    op: Op
    shape: Shape
    everybody: bool = False
    caches: tuple[Cache, ...] = ("cold",)

    def __str__(self) -> str:
        return f"{self.op} {self.shape}"


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the tables."""
    if not on_gpu:
        for op in OPS:
            for batch in BATCHES[:1] if quick else BATCHES[::3]:
                yield Comparison(op, Shape(batch, K, CPU_N), caches=("warm",))
        return
    for k in SIZES[:1] if quick else SIZES:
        for batch in BATCHES:
            for op in OPS:
                everybody = op == "w8a16_linear" and k == K
                yield Comparison(op, Shape(batch, k, N), everybody)
    for group in () if quick else GROUPS:
        yield Comparison("w8a16_linear", Shape(1, K, N, group))


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
    """Checks and times everybody on one shape."""
    op, shape = what.op, what.shape
    on_gpu = report.device.type == "cuda"
    taking_part: list[Variant] = list(candidates.ladder(shape)) if what.everybody and on_gpu else []
    taking_part += candidates.variants(op, shape, report.device)
    packed = False
    if op == "w8a16_linear" and peer is not None:
        reason = machete.unavailable(peer, shape.group or shape.k)
        packed = reason is None
        if packed:
            taking_part.append(candidates.vllm_machete(shape, peer))
        elif reason not in report.notes:
            report.note(str(reason))
    make = candidates.operands(op, shape, report.device, packed)

    def operands(number: int) -> Operands:
        return machete.prepacked(peer, make(number)) if packed and peer is not None else make(number)

    compare_variants(
        report,
        str(what),
        candidates.work(op, shape),
        taking_part,
        operands,
        partial(candidates.truth, op),
        what.caches,
    )


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "the head of Qwen3-0.6B, one row, group 128, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
