"""The command: `make drop-in`, `python -m chapters.ch03_swiglu.drop_in`.

Exit codes: 0 the patched model computes what the unpatched one does, 1 it does not, 2 an option or the model cannot be
used, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.markup import escape

from chapters.ch03_swiglu.drop_in.models import RANDOM, ModelError, Subject, load, without_cudnn_attention
from chapters.ch03_swiglu.drop_in.speed import PROMPTS, ROUNDS, Speed, modes_for
from chapters.ch03_swiglu.drop_in.tables import print_speed, print_validation
from chapters.ch03_swiglu.drop_in.validation import Validation, arms, validate
from qwen_cuda.benchmarking import Report, choose_device, progress, provenance, results_path, save_json
from qwen_cuda.building import BuildError
from qwen_cuda.integrations.huggingface import PatchError

INTERRUPTED = 130
DTYPES = ("auto", "float32", "float16", "bfloat16")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="make drop-in",
        description="Puts our operators into a model of transformers, holds it against the unpatched one, times both.",
    )
    made.add_argument(
        "--model", default="tiny", help=f"tiny (default), a directory, a hub id, {' or '.join(RANDOM)} (random weights)"
    )
    made.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    made.add_argument("--dtype", default="auto", choices=DTYPES, help="by default the checkpoint's own")
    made.add_argument("--tokens", type=_positive, default=32, help="new tokens of each prompt that must be the same")
    made.add_argument(
        "--bench", action=argparse.BooleanOptionalAction, help="time it too; by default on a GPU, and not on a CPU"
    )
    made.add_argument(
        "--rounds", type=_positive, default=ROUNDS, help=f"paired rounds of the timing; {ROUNDS} decode 128 tokens"
    )
    made.add_argument(
        "--prompts", type=_positive, nargs="+", default=PROMPTS, metavar="N", help="prompt lengths that are timed"
    )
    made.add_argument("--seed", type=int, default=0, help="of random weights")
    made.add_argument("--output", type=Path, help="where the JSON goes; a timed run on a GPU goes to docs/results")
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code; what the user can mend becomes a sentence on stderr."""
    options = parser().parse_args(argv)
    try:
        options.device = choose_device(options.device)
    except ValueError as error:
        return _refused(error)
    try:
        with without_cudnn_attention():
            return run(options)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except (ModelError, PatchError) as error:
        return _refused(error)
    except torch.OutOfMemoryError:
        print("make drop-in: the device's memory is full; choose a smaller model, or fewer prompts.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED


def _refused(error: ValueError) -> int:
    print(f"make drop-in: {error}", file=sys.stderr)
    return 2


def run(options: argparse.Namespace) -> int:
    # A pipe has no width; 140 columns hold every table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    subject = load(options.model, options.device, options.dtype, options.seed)
    with progress(len(arms()) + 1) as begin:
        validation = validate(subject, options.tokens, begin)
    print_validation(console, subject, validation)
    for sentence in validation.complaints:
        console.print(f"[red]wrong[/red] {escape(sentence)}")
    if validation.complaints:
        console.print("The patched model does not compute what the unpatched one does; nothing is timed.")
        report, speed = None, None
    else:
        console.print(
            "[green]right[/green] Every arm is as near to float64 as the unpatched model, and parts from its tokens at "
            "near-ties only."
        )
        wanted = options.bench if options.bench is not None else options.device.type == "cuda"
        report, speed = _timed(options, subject, console) if wanted else (None, None)
    results = _results(options, subject, validation, report, speed)
    if path := results_path(report, options.output) if report else options.output:
        save_json(results, path)
        print(f"wrote {path}")
    return int(bool(validation.complaints))


def _timed(options: argparse.Namespace, subject: Subject, console: Console) -> tuple[Report, Speed]:
    report = Report(f"drop_in_{_slug(options.model)}", options.device)
    report.note("Attention is PyTorch's, without cuDNN's, in every arm; batch 1; patched models round as transformers.")
    modes = modes_for(options.device)
    with progress(2 * len(modes) * len(options.prompts)) as begin:
        speed = Speed(report, subject, options.rounds, begin)
        speed.run(modes, options.prompts)
    report.print()
    print_speed(console, speed)
    return report, speed


def _results(
    options: argparse.Namespace,
    subject: Subject,
    validation: Validation,
    report: Report | None,
    speed: Speed | None,
) -> dict[str, Any]:
    """Schema 1 of docs/results, with the validation, and what the pairs say, beside the cases."""
    bare: dict[str, Any] = {"schema": 1, "chapter": f"drop_in_{_slug(options.model)}", "notes": [], "cases": []}
    base = report.to_dict() if report else bare | {"provenance": provenance(options.device)}
    base["provenance"] |= {"transformers": transformers.__version__}
    model = {"name": subject.name, "type": subject.model.config.model_type, "layers": len(subject.model.model.layers)}
    model |= {"dtype": str(subject.dtype).removeprefix("torch."), "seed": options.seed}
    return base | {"model": model, "validation": validation.to_dict(), "speed": speed.to_dict() if speed else None}


def _slug(model: str) -> str:
    """A file name: of a path or a hub id the last part."""
    return Path(model).name.lower() or "model"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"it is {value}; it must be at least 1.")
    return value
