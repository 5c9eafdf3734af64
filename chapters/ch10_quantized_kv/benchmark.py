"""Chapter 10's benchmark: the write into a quantised cache, attention that reads such a cache, and both in one launch.

    make bench-chapter 10
    python chapters/ch10_quantized_kv/benchmark.py [--device auto] [--output FILE] [--quick]

Nobody is timed before the codes have been held against the unfused pipeline's, and attention against float64 over what
the codes stand for. 16-bit attention, chapter 6's, stands beside the reader: what a smaller cache gains.
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
# As in chapter 1: threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from rich.console import Console

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch10_quantized_kv import candidates
from chapters.ch10_quantized_kv import fused_candidates as fused
from chapters.ch10_quantized_kv import reader_candidates as reader
from chapters.ch10_quantized_kv.targets import judge
from qwen_cuda.benchmarking import Report, Variant
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch10_quantized_kv"
TOKENS = (1, 8, 128, 1024, 8192, 32768)
QUICK_TOKENS = (1, 8192)
WARM_TOKENS = (1, 8, 128)  # larger ones do not stay in a cache from one kernel to the next
CPU_TOKENS = (1, 128)
CONTEXTS = (128, 1024, 4096, 8192, 32768)
QUICK_CONTEXTS = (1024, 8192)
BATCHED = ((8, 1024), (8, 8192))
CPU_CONTEXTS = (128,)


@dataclass(frozen=True)
class Comparison:
    """One table row of the writer: a number of tokens, and a format of the cache."""

    tokens: int
    format: str
    caches: tuple[Cache, ...] = ("cold",)

    def __str__(self) -> str:
        return f"{candidates.OP}, {self.tokens} tokens, {self.format}"


@dataclass(frozen=True)
class ReaderComparison:
    """One table row of the reader: contexts, and a format of the cache, `reader.PLAIN` too."""

    shape: Shape
    format: str

    def __str__(self) -> str:
        return f"{reader.OP}, {self.shape}, {self.format}"


@dataclass(frozen=True)
class FusedComparison:
    """One table row of the fused form: contexts, and a format of the cache."""

    shape: Shape
    format: str

    def __str__(self) -> str:
        return f"{fused.OP}, {self.shape}, {self.format}"


Compared = Comparison | ReaderComparison | FusedComparison


def plan(on_gpu: bool, quick: bool) -> Iterator[Compared]:
    """What is compared, in the order of the tables."""
    yield from writer_plan(on_gpu, quick)
    yield from reader_plan(on_gpu, quick)
    yield from fused_plan(on_gpu, quick)


def contexts(on_gpu: bool, quick: bool) -> tuple[int, ...]:
    return CPU_CONTEXTS if not on_gpu else QUICK_CONTEXTS if quick else CONTEXTS


def fused_plan(on_gpu: bool, quick: bool) -> Iterator[FusedComparison]:
    for context in contexts(on_gpu, quick):
        for name in fused.FORMATS:
            yield FusedComparison(Shape(context), name)


def reader_plan(on_gpu: bool, quick: bool) -> Iterator[ReaderComparison]:
    shapes = [Shape(context) for context in contexts(on_gpu, quick)]
    if on_gpu and not quick:
        shapes += [Shape(context, batch) for batch, context in BATCHED]
    for shape in shapes:
        for name in reader.NAMES:
            yield ReaderComparison(shape, name)


def writer_plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    for name in candidates.FORMATS:
        for tokens in CPU_TOKENS if not on_gpu else QUICK_TOKENS if quick else TOKENS:
            if not on_gpu:
                yield Comparison(tokens, name, ("warm",))
            else:
                yield Comparison(tokens, name, ("cold", "warm") if tokens in WARM_TOKENS else ("cold",))


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


def compare(report: Report, what: Compared, peer: Vllm | None) -> None:
    """Checks and times everybody on one shape. vLLM takes no part: its FP8 cache has one scale for all heads."""
    if isinstance(what, ReaderComparison):
        return compare_readers(report, what)
    if isinstance(what, FusedComparison):
        return compare_fused(report, what)
    compare_variants(
        report,
        str(what),
        candidates.work(what.tokens, what.format),
        _taking_part(what, report.device.type == "cuda"),
        candidates.operands(what.tokens, what.format, report.device),
        partial(candidates.truth, what.format),
        what.caches,
    )


def compare_readers(report: Report, what: ReaderComparison) -> None:
    name, shape, device = what.format, what.shape, report.device
    compare_variants(
        report,
        str(what),
        reader.work(name, shape),
        reader.ours(name, shape, device),
        reader.operands(name, shape, device),
        partial(reader.truth, name, shape),
    )


def compare_fused(report: Report, what: FusedComparison) -> None:
    name, shape, device = what.format, what.shape, report.device
    compare_variants(
        report,
        str(what),
        fused.work(name, shape),
        fused.ours(name, shape, device),
        fused.operands(name, shape, device),
        partial(fused.truth, name, shape),
    )


def _taking_part(what: Comparison, on_gpu: bool) -> Iterator[Variant]:
    if on_gpu:
        yield from candidates.ladder(what.format)
        yield candidates.copy_of_the_bytes()
    yield from candidates.everybody(what.format)


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "bfloat16, the heads of Qwen3-0.6B, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
