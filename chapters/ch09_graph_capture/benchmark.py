"""Chapter 9's benchmark: one decode step of the whole model, by every step of the ladder, host included.

    make bench-chapter 9
    python chapters/ch09_graph_capture/benchmark.py [--device auto] [--output FILE] [--quick]

On a GPU the model has the shapes of Qwen3-0.6B and random weights, on a CPU it is the tiny checkpoint. Times are read
from a clock of the host, over many steps in a row: what the device waits for the host counts. v2 to v5 must have drawn
the same tokens before any of them is timed; v1, whose products are PyTorch's and round elsewhere, tokens of the
vocabulary.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch09_graph_capture.starting_batch import StartingBatch
from chapters.ch09_graph_capture.steps import (
    v1_host_in_the_loop,
    v2_static_buffers,
    v3_graph,
    v4_dependent_launch,
    v5_steps_in_a_row,
)
from chapters.ch09_graph_capture.steps.v4_dependent_launch import one_after_the_other, without_dependent_launch
from chapters.ch09_graph_capture.targets import OP, judge
from qwen3_ref import QWEN3_0_6B, cost
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.model import Qwen3
from qwen_cuda.benchmarking import Case, Quantiles, Report, WrongAnswer
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operator_benchmark import run
from qwen_cuda.benchmarking.targets import print_verdicts

CHAPTER = "ch09_graph_capture"
CONTEXTS, ROWS = (128, 1024, 8192), (1, 2, 4, 8)
CPU_CONTEXT, CPU_ROWS = 32, (1, 2)
STEPS, SAMPLES = 64, 9  # steps for each reading of the clock, and readings
LADDER: dict[str, Callable[[StartingBatch], Any]] = {
    "v1": v1_host_in_the_loop.Decoding,
    "v2": v2_static_buffers.Decoding,
    "v3": v3_graph.Decoding,
    "v4": v4_dependent_launch.Decoding,
    "v5": v5_steps_in_a_row.Decoding,
}


class Comparison(NamedTuple):
    """A table row of the benchmark: so many sequences of so many tokens."""

    context: int
    rows: int

    def __str__(self) -> str:
        return f"{OP}, context {self.context}, rows {self.rows}"


def plan(on_gpu: bool, quick: bool) -> Iterator[Comparison]:
    """What is compared, in the order of the tables."""
    if not on_gpu:
        yield from (Comparison(CPU_CONTEXT, rows) for rows in (CPU_ROWS[:1] if quick else CPU_ROWS))
        return
    for context in CONTEXTS[:1] if quick else CONTEXTS:
        yield from (Comparison(context, rows) for rows in (ROWS[:1] if quick else ROWS))


def model_for(device: torch.device) -> PagedModel:
    """Qwen3-0.6B with random weights on a GPU, the tiny checkpoint on a CPU; bfloat16."""
    if device.type == "cuda":
        return PagedModel(Qwen3.random(QWEN3_0_6B, dtype=torch.bfloat16, device=device, attention="sdpa"))
    return PagedModel(Qwen3.from_pretrained(TINY_DIR, dtype=torch.bfloat16, attention="sdpa"))


def launched_as(step: str, device: torch.device) -> AbstractContextManager[None]:
    """Inside, kernels are launched as this step of the ladder wants it."""
    return without_dependent_launch() if device.type == "cuda" and step < "v4" else nullcontext()


def check(drawn: Mapping[str, list[list[int]]], vocab: int, what: object) -> None:
    """Raises WrongAnswer unless v2 to v5 drew the same tokens, and v1 tokens of the vocabulary."""
    for step, tokens in drawn.items():
        if not all(0 <= token < vocab for row in tokens for token in row):
            raise WrongAnswer(f"{what}: {step} drew a token that there is not.")
        if step != "v1" and tokens != drawn["v2"]:
            raise WrongAnswer(f"{what}: {step} drew other tokens than v2.")


def step_us(decoding: Any, steps: int, wait: Callable[[], None]) -> float:
    """µs of a step, from the first one's begin to the last one's end."""
    decoding.begin()
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        decoding.step()
    wait()
    return (time.perf_counter() - begun) * 1e6 / steps


def step_bytes(model: PagedModel, what: Comparison, steps: int) -> int:
    """What a step reads and writes, each byte once, at the mean length of the timed ones."""
    one = cost.decode_cost(model.config, what.context + steps // 2)
    return one.weight_bytes + what.rows * (one.kv_read_bytes + one.kv_write_bytes)


def compare(report: Report, what: Comparison, model: PagedModel, steps: int = STEPS, samples: int = SAMPLES) -> None:
    """Checks all steps of the ladder, then times them in turn."""
    device = report.device
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    start = StartingBatch.of_noise(model, what.rows, what.context, steps + 1)
    ladder, drawn = {}, {}
    for step, make in LADDER.items():
        with launched_as(step, device):
            ladder[step] = make(start)
            step_us(ladder[step], steps, wait)  # the first time, in which what is missing is built
            drawn[step] = ladder[step].tokens()
    check(drawn, model.config.vocab_size, what)
    times: dict[str, list[float]] = {step: [] for step in ladder}
    for _ in range(samples):
        for step, decoding in ladder.items():
            with launched_as(step, device):
                times[step].append(step_us(decoding, steps, wait))
    shape: dict[str, int | str] = {"context": what.context, "rows": what.rows}
    size = step_bytes(model, what, steps)
    cache: Cache = "cold" if device.type == "cuda" else "warm"  # a step's weights are larger than a GPU's caches
    for step, found in times.items():
        us = Quantiles.of(found)
        report.add(Case(OP, "ours", shape, "bfloat16", cache, step, bytes=size, us=us))


def main(argv: list[str] | None = None) -> int:
    models: dict[torch.device, PagedModel] = {}

    def compared(report: Report, what: Comparison, peer: object) -> None:
        if report.device not in models:
            models[report.device] = model_for(report.device)
        compare(report, what, models[report.device])

    return run(
        CHAPTER,
        (__doc__ or "").partition("\n")[0],
        argv,
        plan=plan,
        compare=compared,
        libraries=one_after_the_other,
        print_targets=print_targets,
    )


def print_targets(report: Report, console: Any = None) -> None:
    print_verdicts(judge(report.to_dict()), "a decode step of Qwen3-0.6B, one row, bfloat16", console)


if __name__ == "__main__":
    raise SystemExit(main())
