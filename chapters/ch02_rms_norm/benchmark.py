"""Chapter 2's benchmark: rms_norm and add_rms_norm by every step of the ladder and by our kernels, beside their peers.

    make bench-chapter 2
    python chapters/ch02_rms_norm/benchmark.py [--device auto] [--output FILE] [--quick]

On a CPU the plain C++ operators stand beside PyTorch's, and it takes less than a minute. vLLM takes part where it is
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

from chapters.ch02_rms_norm import candidates
from chapters.ch02_rms_norm.targets import judge
from qwen_cuda.benchmarking import Report, Variant
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch02_rms_norm"
ROWS = (1, 8, 128, 512, 1024, 8192, 32768)
HIDDEN = (896, 1023, 1024, 2560, 4096)
MAIN_HIDDEN = 1024  # of Qwen3-0.6B: here everybody takes part
COMPILED_ROWS = (1, 128, 1024, 8192)  # each is compiled and tuned anew
WARM_ROWS = (1, 8, 128)  # larger ones do not stay in a cache from one kernel to the next
OTHER_DTYPE_ROWS = (128, 8192)
CPU_ROWS = (1, 128, 1024)


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: an operation on one shape, and who takes part."""

    op: str
    rows: int
    hidden: int
    dtype: torch.dtype
    everybody: bool = False
    compiled: bool = False
    caches: tuple[Cache, ...] = ("cold",)

    def __str__(self) -> str:
        return f"{self.op} [{self.rows}, {self.hidden}] {str(self.dtype).removeprefix('torch.')}"


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the tables."""
    for op in ("rms_norm", "add_rms_norm"):
        if not on_gpu:
            for dtype in (torch.float32, torch.bfloat16):
                for rows in CPU_ROWS[:2] if quick else CPU_ROWS:
                    yield Comparison(op, rows, MAIN_HIDDEN, dtype, everybody=True, caches=("warm",))
            continue
        for hidden in (MAIN_HIDDEN,) if quick else HIDDEN:
            main = hidden == MAIN_HIDDEN
            for rows in COMPILED_ROWS if quick else ROWS:
                caches: tuple[Cache, ...] = ("cold", "warm") if main and rows in WARM_ROWS else ("cold",)
                compiled = main and rows in COMPILED_ROWS and not quick
                yield Comparison(op, rows, hidden, torch.bfloat16, main, compiled, caches)
        for dtype in () if quick else (torch.float16, torch.float32):
            for rows in OTHER_DTYPE_ROWS:
                yield Comparison(op, rows, MAIN_HIDDEN, dtype)


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
    shape = (what.op, what.rows, what.hidden, what.dtype)
    compare_variants(
        report,
        str(what),
        candidates.work(*shape),
        _taking_part(what, peer, report.device.type == "cuda"),
        candidates.operands(*shape, report.device),
        partial(candidates.truth, what.op),
        what.caches,
    )


def _taking_part(what: Comparison, peer: Vllm | None, on_gpu: bool) -> Iterator[Variant]:
    if what.everybody and on_gpu:
        yield from candidates.ladder(what.op, what.dtype)
    if what.everybody and on_gpu and what.op == "rms_norm":
        yield candidates.copy_of_the_bytes()
    for variant in candidates.ours(what.op, what.dtype):
        if what.everybody or variant.name == "ours":
            yield variant
    for variant in candidates.peers(what.op, what.dtype, peer):
        if what.everybody or variant.name != "torch_eager":
            yield variant
    if what.compiled:
        yield candidates.compiled(what.op, what.dtype)


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "bfloat16, hidden size 1,024", console)


if __name__ == "__main__":
    raise SystemExit(main())
