"""Every plan on every shape: measures what `dispatch.json` holds, and writes it.

    python -m chapters.ch06_split_attention.plan_table [--batches 1,8] [--device cuda] [--output FILE] [--quick]

A run replaces the table's rows of this GPU's architecture and these batches (by default all) by the fastest plans, for
paged attention and for fused decode attention; a quick one replaces nothing. Each plan is held against float64 before
it is timed. Rows of fused attention for one sequence are `in_a_layer`'s, which times them among their neighbours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import candidates
from chapters.ch06_split_attention import fused_candidates as fused
from chapters.ch06_split_attention.candidates import CLUSTERS, has_clusters
from chapters.ch06_split_attention.dispatch import BY_TURNS, IN_ONE_TURN, Op, Plan, Row, architecture, write_table
from chapters.ch06_split_attention.targets import OP
from qwen_cuda.benchmarking import (
    Operands,
    Report,
    Variant,
    Work,
    arguments,
    cache_bytes,
    progress,
    results_path,
    rotate,
    side_by_side,
)
from qwen_cuda.building import BuildError
from qwen_cuda.loading import load_operators

RESULTS = "ch06_plans"
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SIZES = (64, 128, 256)  # tokens of a partition, at the least
BLOCKS_PER_SM = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Operator:
    """What it takes to time an operator by plan."""

    work: Callable[[Shape], Work]
    operands: Callable[[Shape, torch.device], Callable[[int], Operands]]
    truth: Callable[[Shape, Operands], Sequence[Tensor]]
    by_plan: Callable[[str, Shape, Plan, torch.device], Variant]


OPERATORS: dict[Op, Operator] = {
    OP: Operator(partial(grouped.work, OP), partial(grouped.operands, peers=False), grouped.truth, candidates.by_plan),
    fused.OP: Operator(fused.work, fused.operands, fused.truth, fused.by_plan),
}


def plans(heads: int, context: int, sms: int, *, clusters: bool) -> list[Plan]:
    """What is tried with each of SIZES, as far as the context goes.

    No partition, where the size tells fused attention how to read (`IN_ONE_TURN`); about each of BLOCKS_PER_SM, merged
    by the last block; and clusters of all sizes for which half of the blocks can run at once.
    """
    found = [Plan(size, 1) for size in (*IN_ONE_TURN, BY_TURNS)]
    for size in SIZES:
        for share in BLOCKS_PER_SM:
            count = min(max(1, int(share * sms) // heads), -(-context // size))
            if count > 1:
                found.append(Plan(size, count, "last_block"))
        for count in CLUSTERS if clusters else ():
            if count * heads <= 2 * sms and (count - 1) * size < context:
                found.append(Plan(size, count, "cluster"))
    return list(dict.fromkeys(found))


def tried(shape: Shape, device: torch.device, sms: int) -> list[Plan]:
    return plans(shape.batch * shape.kv_heads, shape.context, sms, clusters=has_clusters(device))


def shapes(quick: bool, batches: Sequence[int] = BATCHES) -> Iterator[Shape]:
    for batch in batches[:1] if quick else batches:
        for context in CONTEXTS[::4] if quick else CONTEXTS:
            yield Shape(context, batch)


def name_of(plan: Plan) -> str:
    return f"{plan.partitions} × {plan.partition_size}" + (", cluster" if plan.merge == "cluster" else "")


def best(report: Report, op: Op, operator: Operator, shape: Shape, sms: int) -> Row:
    """Of the plans that were timed on a shape the fastest."""
    work = operator.work(shape)
    times = {c.variant: c.us.median for c in report.cases if (c.op, c.shape) == (work.op, work.shape) and c.us}
    plan = min(tried(shape, report.device, sms), key=lambda one: times[name_of(one)])
    return Row(shape.batch * shape.kv_heads, shape.context, plan.partition_size, plan.partitions, op, plan.merge)


def main(argv: list[str] | None = None) -> int:
    return tabulate(RESULTS, __doc__.partition("\n")[0], argv, OPERATORS)


def tabulate(results: str, description: str, argv: list[str] | None, operators: Mapping[Op, Operator]) -> int:
    """The command of a table of plans: → its exit code. Writes docs/results/<gpu>/`results`.json and the table."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    chosen, others = parser.parse_known_args(argv)
    options = arguments(description, others)
    try:
        batches = [int(batch) for batch in chosen.batches.split(",")]
    except ValueError:
        batches = [0]
    if min(batches) < 1:
        print(f"--batches is {chosen.batches!r}; it must be numbers of sequences such as 1,8.", file=sys.stderr)
        return 2
    if options.device.type != "cuda":
        print("plans are measured on a GPU: the simulator knows no time.", file=sys.stderr)
        return 2
    try:
        load_operators()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    report = Report(results, options.device, options.quick)
    sms = torch.cuda.get_device_properties(options.device).multi_processor_count
    some = list(shapes(options.quick, batches))
    measured = {op: measure(report, op, operator, some, sms) for op, operator in operators.items()}
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    if not options.quick:
        rows = [
            best(report, op, operators[op], shape, sms)
            for op, those in measured.items()
            for shape in those
            if (op, shape.batch) != (fused.OP, 1)
        ]
        write_table(architecture(options.device), rows)
    return 0


def measure(report: Report, op: Op, operator: Operator, some: list[Shape], sms: int) -> list[Shape]:
    """Times all plans on each shape; returns the shapes that fit into memory."""
    done = []
    with progress(len(some)) as begin, torch.inference_mode():
        for shape in some:
            begin(f"{op}, {shape}")
            variants = [
                operator.by_plan(name_of(one), shape, one, report.device) for one in tried(shape, report.device, sms)
            ]
            try:
                rotation = rotate(operator.operands(shape, report.device), cache_bytes(report.device))
                side_by_side(report, operator.work(shape), variants, rotation, partial(operator.truth, shape))
                done.append(shape)
            except torch.OutOfMemoryError:
                report.note(f"{op}, {shape}: left out, the device's memory is full.")
                torch.cuda.empty_cache()
    return done


if __name__ == "__main__":
    raise SystemExit(main())
