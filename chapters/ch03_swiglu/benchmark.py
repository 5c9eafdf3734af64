"""Chapter 3's benchmark: silu_mul by every step of the ladder and by our kernel, beside its peers; and packing.

    make bench-chapter 3
    python chapters/ch03_swiglu/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operator stands beside PyTorch's, and it takes less than a minute. vLLM takes part where it is
installed, or where QWEN_PEERS names a folder with its `_C_stable_libtorch.abi3.so`. Nobody is timed before the answer
has been held against float64.
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

import torch
from rich.console import Console

from chapters.ch03_swiglu import candidates, packing
from chapters.ch03_swiglu.targets import judge
from qwen_cuda.benchmarking import Report, Variant
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch03_swiglu"
ROWS = (1, 8, 128, 512, 1024, 8192, 32768)
SIZES = (3072, 4864, 9728, 3001)  # of Qwen3-0.6B, Qwen2.5-0.5B and Qwen3-4B; and an odd one
MAIN_SIZE = 3072  # here everybody takes part
COMPILED_ROWS = (1, 128, 1024, 8192)  # each is compiled and tuned anew
WARM_ROWS = (1, 8, 128)  # larger ones do not stay in a cache from one kernel to the next
OTHER_DTYPE_ROWS = (128, 8192)
CPU_ROWS = (1, 128, 1024)


@dataclass(frozen=True)
class Product:
    """One table row of the benchmark: silu_mul on one shape, and who takes part."""

    rows: int
    size: int
    dtype: torch.dtype
    everybody: bool = False
    compiled: bool = False
    caches: tuple[Cache, ...] = ("cold",)

    def __str__(self) -> str:
        return f"silu_mul [{self.rows}, 2 · {self.size}] {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Packing:
    """Linear layers that read the same x, one by one and packed into one."""

    op: str
    rows: int

    def __str__(self) -> str:
        return f"{self.op} [{self.rows}, {packing.HIDDEN}] bfloat16"


def plan(on_gpu: bool, quick: bool) -> Iterator[Product | Packing]:
    """What is compared, in the order of the tables."""
    if not on_gpu:
        for dtype in (torch.float32, torch.bfloat16):
            for rows in CPU_ROWS[:2] if quick else CPU_ROWS:
                yield Product(rows, MAIN_SIZE, dtype, everybody=True, caches=("warm",))
        return
    for size in (MAIN_SIZE,) if quick else SIZES:
        main = size == MAIN_SIZE
        for rows in COMPILED_ROWS if quick else ROWS:
            caches: tuple[Cache, ...] = ("cold", "warm") if main and rows in WARM_ROWS else ("cold",)
            compiled = main and rows in COMPILED_ROWS and not quick
            yield Product(rows, size, torch.bfloat16, main, compiled, caches)
    for dtype in () if quick else (torch.float16, torch.float32):
        for rows in OTHER_DTYPE_ROWS:
            yield Product(rows, MAIN_SIZE, dtype)
    for op in packing.PARTS:
        for rows in packing.ROWS:
            yield Packing(op, rows)


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


def compare(report: Report, what: Product | Packing, peer: Vllm | None) -> None:
    """Checks and times everybody on one shape."""
    if isinstance(what, Packing):
        compare_variants(
            report,
            str(what),
            packing.work(what.op, what.rows),
            packing.variants(what.op),
            packing.operands(what.op, what.rows, report.device),
            partial(packing.truth, what.op),
        )
        return
    shape = (what.rows, what.size, what.dtype)
    compare_variants(
        report,
        str(what),
        candidates.work(*shape),
        _taking_part(what, peer, report.device.type == "cuda"),
        candidates.operands(*shape, report.device),
        candidates.truth,
        what.caches,
    )


def _taking_part(what: Product, peer: Vllm | None, on_gpu: bool) -> Iterator[Variant]:
    if what.everybody and on_gpu:
        yield from candidates.ladder(what.dtype)
        yield candidates.copy_of_the_bytes()
    for variant in (*candidates.ours(what.dtype), *candidates.peers(what.dtype, peer)):
        if what.everybody or variant.name in ("ours", "vllm", "torch_eager"):
            yield variant
    if what.compiled:
        yield candidates.compiled(what.dtype)


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "bfloat16, size 3,072", console)


if __name__ == "__main__":
    raise SystemExit(main())
