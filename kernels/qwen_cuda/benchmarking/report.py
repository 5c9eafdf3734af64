"""The results of a benchmark: a table on the terminal, and the JSON from which the site draws its tables and plots."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qwen_cuda.benchmarking import gpu_state
from qwen_cuda.benchmarking.bandwidth import streams
from qwen_cuda.benchmarking.ceilings import Bandwidth, Ceilings, measure_ceilings
from qwen_cuda.benchmarking.machine import ROOT, choose_device, gpu_slug, provenance
from qwen_cuda.benchmarking.timing import Quantiles

SCHEMA = 1


@dataclass(frozen=True)
class Case:
    """One measured variant of one operation on one shape. Exactly one of `us` and `tok_s` is given.

    Attributes:
        variant: whose code it is: `ours`, `transformers`, `cublas`, …
        step: the version of a ladder (`v1`, …), or None.
        shape: sizes by name; a model's name may be among them.
        cache: whether the operands lie in the processor's cache when the clock starts.
        bytes, flops: the work counted by hand, from which the floor follows; 0 when it is not counted.
        bandwidth: which of the measured ones bounds it: that of reading, or that of reading and writing alike.
        nodes: kernels that one call launches in a CUDA graph, at the least; 0 when it is not timed in one.
        us: µs per call.
        tok_s: tokens per second, for whole generations.
    """

    op: str
    variant: str
    shape: dict[str, int | str]
    dtype: str
    cache: Literal["cold", "warm"]
    step: str | None = None
    bytes: int = 0
    flops: int = 0
    bandwidth: Bandwidth = "read"
    nodes: int = 0
    us: Quantiles | None = None
    tok_s: Quantiles | None = None

    def __post_init__(self) -> None:
        if (self.us is None) == (self.tok_s is None):
            raise ValueError(f"{self.op}, {self.variant}: a case must have either us or tok_s.")

    def floor_us(self, ceilings: Ceilings) -> float | None:
        """The least time of one call on this machine."""
        if self.us is None or not (self.bytes or self.flops or (self.nodes and ceilings.graph_node_us)):
            return None
        return ceilings.floor_us(self.bytes, self.flops, self.dtype, self.bandwidth, self.nodes)

    def to_dict(self, ceilings: Ceilings) -> dict[str, Any]:
        """A case of schema 1: what was measured, and how far it is from what `ceilings` allow."""
        data: dict[str, Any] = {
            name: getattr(self, name) for name in ("op", "variant", "step", "shape", "dtype", "cache", "bytes", "flops")
        }
        if self.bandwidth != "read":
            data["bandwidth"] = self.bandwidth
        if self.nodes:
            data["nodes"] = self.nodes
        if self.tok_s is not None:
            return data | {"tok_s": asdict(self.tok_s)}
        assert self.us is not None
        floor = self.floor_us(ceilings)
        return data | {
            "us": asdict(self.us),
            "gbps": self.bytes / self.us.median / 1e3 if self.bytes else None,
            "floor_us": floor,
            "floor_fraction": None if floor is None else floor / self.us.median,
        }


class Report:
    """Collects the cases of one chapter on one device. The ceilings are measured when it is made."""

    def __init__(self, chapter: str, device: torch.device, quick: bool = False) -> None:
        self.chapter, self.device, self.quick = chapter, device, quick
        self.cases: list[Case] = []
        self.notes: list[str] = []
        state = gpu_state.gpu_state(device)
        self.warn(*gpu_state.before(state))
        self.ceilings = measure_ceilings(device, quick)
        with gpu_state.kept_busy(device):  # the clocks of an idle GPU say nothing
            self.provenance = provenance(device)
            loaded = gpu_state.gpu_state(device)
        self.provenance |= {"other_processes": len(state.others), "slowed_by": list(loaded.slowed_by)}
        self.warn(*gpu_state.during(loaded))
        if device.type == "cuda" and isinstance(missing := streams(device), str):
            self.note(missing)

    def measure_ceilings_again(self) -> None:
        """Measures the ceilings once more and keeps the better: the machine may have been busy the first time."""
        self.ceilings = self.ceilings.best(measure_ceilings(self.device, self.quick))

    def add(self, *cases: Case) -> None:
        self.cases.extend(cases)

    def note(self, text: str) -> None:
        """A sentence that must stand beside the figures: what was left out, and why."""
        self.notes.append(text)

    def warn(self, *texts: str) -> None:
        """Notes that are also said at once, on stderr: what makes the figures doubtful."""
        for text in texts:
            print(f"warning: {text}", file=sys.stderr, flush=True)
            self.note(text)

    def to_dict(self) -> dict[str, Any]:
        """The results in schema 1, as docs/results holds them."""
        return {
            "schema": SCHEMA,
            "chapter": self.chapter,
            "provenance": self.provenance,
            "ceilings": asdict(self.ceilings),
            "notes": self.notes,
            "cases": [case.to_dict(self.ceilings) for case in self.cases],
        }

    def save(self, path: Path) -> None:
        """Writes the JSON, whole or not at all."""
        save_json(self.to_dict(), path)

    def print(self, console: Console | None = None) -> None:
        """The ceilings, then one table for each operation and dtype; the last column is floor ÷ median."""
        # A pipe has no width; 120 columns hold every table.
        console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(self._headline())
        for op, dtype in dict.fromkeys((case.op, case.dtype) for case in self.cases):
            console.print(self._table(op, dtype))
        for note in self.notes:
            console.print(f"[dim]{escape(note)}[/dim]")

    def _headline(self) -> str:
        where = self.provenance["gpu"] or f"{self.provenance['cpu']}, {self.provenance['threads']} threads"
        matmul = ", ".join(f"{dtype} {value:.3g}" for dtype, value in self.ceilings.matmul_tflops.items())
        us = self.ceilings.graph_node_us
        node = "" if us is None else f"\n                   an empty kernel in a CUDA graph: {us:.2f} µs"
        return (
            f"[bold]{self.chapter}[/bold] on {where}, torch {self.provenance['torch']}\n"
            f"measured ceilings: read {self.ceilings.read_gbps:,.4g} GB/s, copy {self.ceilings.copy_gbps:,.4g} GB/s\n"
            f"                   matrix product, TFLOP/s: {matmul}{node}\n"
            "floor: the least time that these ceilings allow; %: floor ÷ median\n"
        )

    def _table(self, op: str, dtype: str) -> Table:
        cases = [case for case in self.cases if (case.op, case.dtype) == (op, dtype)]
        whole = cases[0].tok_s is not None
        table = Table(title=f"{op}, {dtype}", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        table.padding, table.show_edge = (0, 2, 0, 0), False
        for name in ("shape", "variant"):
            table.add_column(name, no_wrap=True)
        floors = any(case.floor_us(self.ceilings) is not None for case in cases)
        names = ("median", "p10–p90", *(("reached", "floor", "%") if floors else ()))
        for name in ("tok/s", "p10–p90") if whole else names:
            table.add_column(name, justify="right", no_wrap=True)
        mixed = len({case.cache for case in cases}) > 1
        shapes: list[str] = []
        for case in cases:
            shapes.append(", ".join(_size(name, size) for name, size in case.shape.items()))
            new = shapes[-1] not in shapes[:-1]
            if new and len(shapes) > 1:
                table.add_section()
            label = case.variant if case.step is None else f"{case.variant} {case.step}"
            if mixed and case.cache == "warm":
                label += ", warm"
            table.add_row(shapes[-1] if new else "", label, *self._figures(case)[: len(table.columns) - 2])
        return table

    def _figures(self, case: Case) -> list[str]:
        if case.tok_s is not None:
            return [f"{case.tok_s.median:,.1f}", f"{case.tok_s.p10:,.1f}–{case.tok_s.p90:,.1f}"]
        assert case.us is not None
        unit, scale = _unit(case.us.median)
        low, middle, high = (f"{us / scale:.3g}" for us in (case.us.p10, case.us.median, case.us.p90))
        times = [f"{middle} {unit}", f"{low}–{high}"]
        floor = case.floor_us(self.ceilings)
        if floor is None:
            return [*times, "", "", ""]
        memory_bound = floor != self.ceilings.floor_us(0, case.flops, case.dtype)
        gbps, tflops = case.bytes / case.us.median / 1e3, case.flops / case.us.median / 1e6
        arithmetic = f"{tflops:,.3g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:,.3g} GFLOP/s"
        unit, scale = _unit(floor)
        reached = (f"{gbps:,.3g} GB/s" if case.bytes else "") if memory_bound else arithmetic
        return [*times, reached, f"{floor / scale:.3g} {unit}", f"{100 * floor / case.us.median:.1f}"]


def _unit(us: float) -> tuple[str, float]:
    """The unit in which a time reads well, and its size in µs."""
    return ("µs", 1.0) if us < 1e3 else ("ms", 1e3) if us < 1e6 else ("s", 1e6)


def _size(name: str, size: int | str) -> str:
    return size if isinstance(size, str) else f"{name} {size}"


def save_json(results: dict[str, Any], path: Path) -> None:
    """Writes results, whole or not at all. A figure that is no number is a ValueError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def arguments(
    description: str,
    argv: list[str] | None = None,
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """The options of every benchmark: `device` (checked), `output`, `quick`; and those that `more` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--output", type=Path, help="where the JSON goes; a GPU's full run goes to docs/results by itself"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, for a first look")
    more(parser)
    options = parser.parse_args(argv)
    try:
        options.device = choose_device(options.device)
    except ValueError as error:
        parser.error(str(error))
    return options


def results_path(report: Report, output: Path | None) -> Path | None:
    """Where the results belong: `output`, or docs/results/<gpu>/<chapter>.json for a full run on a GPU, or nowhere.

    The figures of whatever CPU a reader has are the reader's own: they go to the terminal, not into the tree.
    """
    if output is not None:
        return output
    if report.device.type != "cuda" or report.quick:
        return None
    return ROOT / "docs" / "results" / gpu_slug(report.provenance["gpu"]) / f"{report.chapter}.json"
