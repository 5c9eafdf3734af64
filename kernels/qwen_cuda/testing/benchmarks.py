"""What the tests of the chapters' benchmarks share: ceilings of no machine, small runs on a CPU, invented cases.

The fixtures `operators`, `quick_ceilings` and `gpu_device` belong to it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

import pytest
import torch
from rich.console import Console

from qwen_cuda.benchmarking import Case, Ceilings, Quantiles, Report, Work

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_gbps=4500.0, copy_gbps=4000.0, matmul_tflops={}, graph_node_us=0.7)


def results_of_a_run(benchmark: ModuleType, folder: Path, *options: str) -> dict[str, Any]:
    """What the benchmark of a chapter writes into `folder`; the run must succeed, by default on the CPU."""
    output = folder / "out.json"
    assert benchmark.main([*(options or ("--device", "cpu")), "--output", str(output)]) == 0
    data: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert (data["schema"], data["chapter"]) == (1, benchmark.__name__.split(".")[1])
    return data


def complaint_of_a_run(benchmark: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a run on the CPU that must fail says, having shown no time and written nothing into the empty `folder`."""
    assert benchmark.main(["--device", "cpu", "--output", str(folder / "out.json")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert not list(folder.iterdir())
    return said.err


def memory_is_full(*arguments: Any, **more: Any) -> NoReturn:
    """Stands in for a measurement."""
    raise torch.OutOfMemoryError("no")


def result(
    work: Work,
    variant: str,
    us: float,
    *,
    step: str | None = None,
    cache: Literal["cold", "warm"] = "cold",
    spread: float = 0.0,
) -> dict[str, Any]:
    """A case of `variant` as results hold it, its p10 and p90 by the fraction `spread` away from the median, `us`."""
    quantiles = Quantiles(us * (1 - spread), us, us * (1 + spread))
    case = Case(work.op, variant, work.shape, work.dtype, cache, step, work.bytes, us=quantiles)
    return case.to_dict(CEILINGS)


def printed_targets(benchmark: ModuleType) -> str:
    """What a benchmark says of its targets when nothing was measured."""
    out = io.StringIO()
    benchmark.print_targets(Report(benchmark.CHAPTER, CPU, quick=True), Console(file=out, width=200))
    return out.getvalue()
