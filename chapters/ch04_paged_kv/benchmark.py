"""Chapter 4's benchmark: QK-norm, RoPE and the paged write by every step of the ladder, by our kernel, and by others.

    make bench-chapter 4
    python chapters/ch04_paged_kv/benchmark.py [--device auto] [--output FILE] [--quick]

vLLM takes part where it is installed, or where QWEN_PEERS names a folder with its `_C_stable_libtorch.abi3.so`. Nobody
is timed before the answer has been held against float64.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# As in chapter 1: threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console

from chapters.ch04_paged_kv import candidates
from chapters.ch04_paged_kv.targets import judge
from qwen_cuda.benchmarking import Report, Variant
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import compare_variants, run
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch04_paged_kv"
TOKENS = (1, 2, 8, 32, 64, 128, 512, 1024, 8192, 32768)
QUICK_TOKENS = (1, 128, 8192)
COMPILED_TOKENS = (1, 128, 8192)  # each is compiled and tuned anew
WARM_TOKENS = (1, 8, 128)  # larger ones do not stay in a cache from one kernel to the next
OTHER_DTYPE_TOKENS = (1, 8192)
CPU_TOKENS = (1, 128)


@dataclass(frozen=True)
class Comparison:
    """One table row of the benchmark: a number of tokens, and who takes part."""

    tokens: int
    dtype: torch.dtype = torch.bfloat16
    everybody: bool = True
    compiled: bool = False
    caches: tuple[Cache, ...] = ("cold",)

    def __str__(self) -> str:
        return f"{candidates.OP}, {self.tokens} tokens, {str(self.dtype).removeprefix('torch.')}"


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the tables."""
    if not on_gpu:
        for tokens in CPU_TOKENS:
            yield Comparison(tokens, caches=("warm",))
        return
    for tokens in QUICK_TOKENS if quick else TOKENS:
        caches: tuple[Cache, ...] = ("cold", "warm") if tokens in WARM_TOKENS else ("cold",)
        yield Comparison(tokens, compiled=tokens in COMPILED_TOKENS and not quick, caches=caches)
    for tokens in () if quick else OTHER_DTYPE_TOKENS:
        yield Comparison(tokens, torch.float16, everybody=False)


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
    compare_variants(
        report,
        str(what),
        candidates.work(what.tokens, what.dtype),
        _taking_part(what, peer, report.device.type == "cuda"),
        candidates.operands(what.tokens, what.dtype, report.device),
        candidates.truth,
        what.caches,
    )


def _taking_part(what: Comparison, peer: Vllm | None, on_gpu: bool) -> Iterator[Variant]:
    if what.everybody and on_gpu:
        yield from candidates.ladder()
        yield candidates.copy_of_the_bytes()
    yield candidates.ours()
    for variant in candidates.peers(peer):
        if what.everybody or variant.name != "torch_eager":
            yield variant
    if what.compiled:
        yield candidates.compiled()


def print_targets(report: Report, console: Console | None = None) -> None:
    print_verdicts(judge(report.to_dict()), "bfloat16, 16 heads of Q, 8 of K and of V, cold", console)


if __name__ == "__main__":
    raise SystemExit(main())
