"""Chapter 7's benchmark: the linear layers of a decode step, by decode_linear and by its peers; and all in turn.

    make bench-chapter 7
    python chapters/ch07_decode_gemv/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operator stands beside PyTorch's, on smaller layers. Nobody is timed before the answer has been
held against float64.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console

from chapters.ch07_decode_gemv import candidates, chain
from chapters.ch07_decode_gemv.candidates import LAYERS, Layer
from chapters.ch07_decode_gemv.chain import Stack
from chapters.ch07_decode_gemv.targets import STACK, judge
from qwen_cuda.benchmarking import Report, Variant
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch07_decode_gemv"
BATCHES = (2, 4, 8)
# Of Qwen3-4B, in our order: rows of W, columns.
OTHER_LAYERS = (
    Layer("qkv", 6144, 2560, norm=True),
    Layer("o", 2560, 4096, residual=True),
    Layer("gate_up", 19456, 2560, norm=True, silu_mul=True),
    Layer("down", 2560, 9728, residual=True),
)
ODD = Layer("odd", 1023, 1023, norm=True, residual=True)
CPU_LAYERS = LAYERS[:4]


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: a layer, or a stack of them; and whether compiler and ladder take part."""

    what: Layer | Stack
    compiled: bool = False
    ladder: bool = False

    def __str__(self) -> str:
        return str(self.what)


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the tables."""
    if not on_gpu:
        for layer in CPU_LAYERS[:2] if quick else CPU_LAYERS:
            yield Comparison(layer)
        return
    for layer in LAYERS:
        yield Comparison(layer, compiled=not quick, ladder=True)
    yield Comparison(STACK, compiled=not quick, ladder=True)
    if quick:
        return
    for rows in BATCHES:
        for layer in LAYERS:
            yield Comparison(replace(layer, rows=rows))
        yield Comparison(replace(STACK, rows=rows))
    for layer in OTHER_LAYERS:
        yield Comparison(layer, compiled=True)
    for layer in LAYERS:
        yield Comparison(replace(layer, dtype=torch.float16))
    yield Comparison(ODD, compiled=True)


def main(argv: list[str] | None = None) -> int:
    return run(
        CHAPTER,
        __doc__.partition("\n")[0],
        argv,
        plan=plan,
        compare=compare,
        libraries=lambda: [candidates.without_pdl(), *candidates.step_libraries()],
        print_targets=print_targets,
    )


def compare(report: Report, comparison: Comparison, peer: Vllm | None) -> None:
    """Checks and times everybody on one shape. vLLM's products are cuBLAS's."""
    what = comparison.what
    if isinstance(what, Stack):
        compare_variants(
            report,
            str(what),
            chain.work(what),
            _taking_part(comparison, report.device),
            chain.operands(what, report.device),
            partial(chain.truth, what),
        )
    else:
        compare_variants(
            report,
            str(what),
            candidates.work(what),
            _taking_part(comparison, report.device),
            candidates.operands(what, report.device),
            partial(candidates.truth, what),
        )


def _taking_part(comparison: Comparison, device: torch.device) -> Iterator[Variant]:
    what, on_gpu = comparison.what, device.type == "cuda"
    if isinstance(what, Stack):
        yield from chain.variants(what, on_gpu)
        if comparison.ladder:
            yield from chain.ladder(what)
        if comparison.compiled:
            yield chain.compiled(what)
        return
    yield from candidates.ours(what, on_gpu)
    if comparison.ladder:
        yield from candidates.ladder(what)
    yield from candidates.peers(what)
    if comparison.compiled:
        yield candidates.compiled(what)


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "one row, bfloat16, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
