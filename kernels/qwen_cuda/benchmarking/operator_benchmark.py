"""The frame of a chapter's benchmark of operators: from the command line to the tables and the file of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from qwen_cuda.benchmarking import bandwidth
from qwen_cuda.benchmarking.graphs import Cache
from qwen_cuda.benchmarking.operands import Operands, cache_bytes, rotate
from qwen_cuda.benchmarking.peers import Vllm, vllm
from qwen_cuda.benchmarking.progress import progress
from qwen_cuda.benchmarking.report import Report, arguments, results_path
from qwen_cuda.benchmarking.side_by_side import Truth, Variant, Work, WrongAnswer, side_by_side
from qwen_cuda.building import BuildError, Library, build
from qwen_cuda.loading import load_operators

Comparison = TypeVar("Comparison")


def run(
    chapter: str,
    description: str,
    argv: list[str] | None,
    *,
    plan: Callable[[bool, bool], Iterable[Comparison]],
    compare: Callable[[Report, Comparison, Vllm | None], None],
    libraries: Callable[[], Sequence[Library]],
    print_targets: Callable[[Report], None],
) -> int:
    """Builds, measures the ceilings, makes every comparison of the plan, prints, and writes the results.

    Args:
        chapter: the folder's name, under which the results are kept.
        plan: gets whether there is a GPU and whether a quick run is wanted; a comparison's text names it.
        compare: checks and times all who take part in one comparison, and adds their cases to the report.
        libraries: what is built for a GPU beside the operators, before anything is measured.
        print_targets: what is said of the targets after a run on a GPU.
    Returns:
        The exit code: 1 when something does not build, or an answer is wrong. Then nothing is reported.
    """
    options = arguments(description, argv)
    on_gpu = options.device.type == "cuda"
    try:
        load_operators()
        if on_gpu:
            build(*libraries(), bandwidth.library())  # together, before anything is measured
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print("measuring the ceilings of this machine", file=sys.stderr)
    report = Report(chapter, options.device, options.quick)
    peer = vllm() if on_gpu else None
    if isinstance(peer, str):
        report.note(peer)
    elif peer is not None:
        report.note(f"vLLM: {peer.version}.")
    comparisons = list(plan(on_gpu, options.quick))
    try:
        with progress(len(comparisons)) as begin, torch.inference_mode():
            for comparison in comparisons:
                begin(str(comparison))
                compare(report, comparison, peer if isinstance(peer, Vllm) else None)
    except WrongAnswer as error:
        print(f"wrong answer, nothing is reported: {error}", file=sys.stderr)
        return 1
    report.measure_ceilings_again()
    report.print()
    if on_gpu:
        print_targets(report)
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    return 0


def compare_variants(
    report: Report,
    name: str,
    work: Work,
    variants: Iterable[Variant],
    make: Callable[[int], Operands],
    truth: Truth,
    caches: Sequence[Cache] = ("cold",),
) -> None:
    """`side_by_side` on as many sets of operands as overflow the caches.

    Where the memory of the device does not suffice, there is a note that `name` is left out.
    """
    try:
        rotation = rotate(make, cache_bytes(report.device))
        side_by_side(report, work, list(variants), rotation, truth, caches=caches)
    except torch.OutOfMemoryError:
        report.note(f"{name}: left out, the device's memory is full.")
        torch.cuda.empty_cache()
