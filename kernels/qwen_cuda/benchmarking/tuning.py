"""One kernel file with one decision changed at a time: all variants side by side, to a results file of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from qwen_cuda.benchmarking.operands import Operands, cache_bytes, rotate
from qwen_cuda.benchmarking.progress import progress
from qwen_cuda.benchmarking.report import Report, arguments, results_path
from qwen_cuda.benchmarking.side_by_side import Truth, Variant, Work, side_by_side
from qwen_cuda.building import BuildError, Edit, Library, build
from qwen_cuda.loading import load_operators, using

AS_IT_IS = "as it is"
WITHOUT_PDL = "without programmatic dependent launch"


@dataclass(frozen=True)
class Trial:
    """One shape on which all variants run: `run` is the operator, called inside `using` each variant's library.

    `leaves_out` are the variants that cannot take this shape; `truths` the answers of those that compute something
    else.
    """

    work: Work
    run: Variant
    operands: Callable[[int], Operands]
    truth: Truth
    leaves_out: tuple[str, ...] = ()
    truths: Mapping[str, Truth] = field(default_factory=dict)


def variants(
    plain: Library, edits: Mapping[str, tuple[Edit, ...]], *, launches: Sequence[str] = ()
) -> dict[str, Library]:
    """The kernel as it is, each edited one by name, and the kernel without programmatic dependent launch.

    `launches` are the files that ask for it, if that is not the kernel's own alone.
    """
    pdl = tuple(Edit(file, "options.dependent = true;", "") for file in launches or (plain.sources[0].name,))
    return {AS_IT_IS: plain} | {
        name: Library(plain.kind, plain.sources, edits=edit) for name, edit in {**edits, WITHOUT_PDL: pdl}.items()
    }


def tune(
    results: str,
    description: str,
    argv: list[str] | None,
    libraries: Mapping[str, Library],
    trials: Callable[[torch.device], Iterable[Trial]],
) -> int:
    """The command of a tuning script: → its exit code. Writes docs/results/<gpu>/`results`.json."""
    options = arguments(description, argv)
    if options.device.type != "cuda":
        print("tuning needs a GPU: the simulator knows no time.", file=sys.stderr)
        return 2
    try:
        load_operators()
        build(*libraries.values())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    report = Report(results, options.device, options.quick)
    chosen = list(trials(report.device))[:: 5 if options.quick else 1]
    with progress(len(chosen)) as begin, torch.inference_mode():
        for trial in chosen:
            begin(str(trial.work))
            side_by_side(
                report,
                trial.work,
                [
                    replace(trial.run, name=name, inside=partial(using, library), truth=trial.truths.get(name))
                    for name, library in libraries.items()
                    if name not in trial.leaves_out
                ],
                rotate(trial.operands, cache_bytes(report.device)),
                trial.truth,
            )
    report.print()
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    return 0
