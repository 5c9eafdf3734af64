"""Every plan on every shape: measures what `dispatch.json` holds, and writes it.

    python -m chapters.ch06_split_attention.plan_table [--device cuda] [--output FILE] [--quick]

A full run replaces the table's rows of this GPU's architecture by the fastest plans. Each plan is held against float64
before it is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention.candidates import by_plan
from chapters.ch06_split_attention.dispatch import Plan, Row, architecture, write_table
from chapters.ch06_split_attention.targets import OP
from qwen_cuda.benchmarking import Report, arguments, cache_bytes, progress, results_path, rotate, side_by_side
from qwen_cuda.building import BuildError
from qwen_cuda.loading import load_operators

RESULTS = "ch06_plans"
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SIZES = (64, 128, 256)  # tokens of a partition, at the least
BLOCKS_PER_SM = (0.5, 1.0, 2.0, 3.0)


def plans(heads: int, context: int, sms: int) -> list[Plan]:
    """What is tried: no partition, and about each of BLOCKS_PER_SM with each of SIZES, as far as the context goes."""
    found = [Plan(SIZES[-1], 1)]
    for size in SIZES:
        for share in BLOCKS_PER_SM:
            count = min(max(1, int(share * sms) // heads), -(-context // size))
            if count > 1:
                found.append(Plan(size, count))
    return list(dict.fromkeys(found))


def shapes(quick: bool) -> Iterator[Shape]:
    for batch in BATCHES[:1] if quick else BATCHES:
        for context in CONTEXTS[::4] if quick else CONTEXTS:
            yield Shape(context, batch)


def name_of(plan: Plan) -> str:
    return f"{plan.partitions} × {plan.partition_size}"


def best(report: Report, shape: Shape, sms: int) -> Row:
    """Of the plans that were timed on a shape the fastest."""
    sizes = grouped.work(OP, shape).shape
    times = {case.variant: case.us.median for case in report.cases if case.shape == sizes and case.us}
    heads = shape.batch * shape.kv_heads
    plan = min(plans(heads, shape.context, sms), key=lambda one: times[name_of(one)])
    return Row(heads, shape.context, plan.partition_size, plan.partitions)


def main(argv: list[str] | None = None) -> int:
    options = arguments(__doc__.partition("\n")[0], argv)
    if options.device.type != "cuda":
        print("plans are measured on a GPU: the simulator knows no time.", file=sys.stderr)
        return 2
    try:
        load_operators()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    report = Report(RESULTS, options.device, options.quick)
    sms = torch.cuda.get_device_properties(options.device).multi_processor_count
    measured = measure(report, list(shapes(options.quick)), sms)
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    if not options.quick:
        write_table(architecture(options.device), [best(report, shape, sms) for shape in measured])
    return 0


def measure(report: Report, some: list[Shape], sms: int) -> list[Shape]:
    """Times all plans on each shape; returns the shapes that fit into memory."""
    done = []
    with progress(len(some)) as begin, torch.inference_mode():
        for shape in some:
            begin(str(shape))
            tried = plans(shape.batch * shape.kv_heads, shape.context, sms)
            variants = [by_plan(name_of(one), shape, one, report.device) for one in tried]
            try:
                rotation = rotate(grouped.operands(shape, report.device, peers=False), cache_bytes(report.device))
                side_by_side(report, grouped.work(OP, shape), variants, rotation, partial(grouped.truth, shape))
                done.append(shape)
            except torch.OutOfMemoryError:
                report.note(f"{shape}: left out, the device's memory is full.")
                torch.cuda.empty_cache()
    return done


if __name__ == "__main__":
    raise SystemExit(main())
