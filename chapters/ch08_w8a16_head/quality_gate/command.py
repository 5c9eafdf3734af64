"""The command: `make quality-gate`, `python -m chapters.ch08_w8a16_head.quality_gate`.

Exit codes: 0 passed, 1 not passed, 2 could not be judged, 130 Ctrl-C. Whatever goes wrong, it is not 0. (make itself
turns every failure into its own 2; a script that must tell 1 from 2 calls the module.)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from chapters.ch08_w8a16_head.quality_gate.gate import GROUPS, judge
from chapters.ch08_w8a16_head.quality_gate.prompts import LEAST_TOKENS, TOKENS, GateError, read_texts
from chapters.ch08_w8a16_head.quality_gate.subject import Quantization, load
from chapters.ch08_w8a16_head.quality_gate.tables import print_verdict
from qwen3_ref.hub import HubError, resolve_model
from qwen_cuda.benchmarking import choose_device, progress, provenance, save_json
from qwen_cuda.building import BuildError

NOT_PASSED, NOT_JUDGED, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="make quality-gate",
        description="Whether a model whose weights went through integers still chooses the tokens that it chose.",
    )
    made.add_argument("--model", default="tiny", help="tiny (default), a directory, or a hub id of a Qwen3")
    made.add_argument("--layers", default="head", choices=("head", "all"), help="what is quantised; head by default")
    made.add_argument("--bits", type=int, default=8, choices=(8, 4), help="of an integer; 8 by default")
    made.add_argument(
        "--group", type=_group, default=128, help="columns that share a scale: 128 (default), 64, 32, or channel"
    )
    made.add_argument(
        "--prompts", type=Path, metavar="FILE", help="your own texts: one per line, or a JSON list of strings"
    )
    made.add_argument("--tokens", type=tokens_of, default=TOKENS, help=f"judged in each text; {TOKENS} by default")
    made.add_argument("--variants", action="store_true", help="compare all groups, for error and bytes")
    made.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    made.add_argument("--output", type=Path, help="where the JSON goes")
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parser().parse_args(argv)
    return guarded("make quality-gate", options.output, _head(options), lambda: run(options))


def guarded(name: str, output: Path | None, head: dict[str, Any], run: Callable[[], int]) -> int:
    """The exit code of `run`; what the user can mend becomes a sentence on stderr that begins with `name`.

    What is not judged stands in the results file too, after `head`. With QWEN_DEBUG=1 the traceback of an unforeseen
    failure is shown in place of the sentence.
    """
    not_judged = partial(_not_judged, name, output, head)
    try:
        # A file of an earlier run must not be taken for the result of this one, however it ends.
        if output is not None:
            output.unlink(missing_ok=True)
        with _exact_fp32():
            return run()
    except (GateError, HubError, BuildError, ValueError) as error:  # ValueError: of a config, a checkpoint, a device …
        return not_judged(str(error))
    except (torch.OutOfMemoryError, MemoryError):
        return not_judged("memory ran out; choose a smaller model, or --device cpu.")
    except OSError as error:
        return not_judged(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}.")
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("QWEN_DEBUG") == "1":
            raise
        kind = type(error).__name__
        return not_judged(f"this should not have happened: {kind}: {error}. QWEN_DEBUG=1 shows where.")


def run(options: argparse.Namespace) -> int:
    # A pipe has no width; 120 columns hold every table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    texts = read_texts(options.prompts) if options.prompts is not None else None
    device = choose_device(options.device)
    source = resolve_model(options.model, report=lambda sentence: print(sentence, file=sys.stderr))
    if source.note:
        console.print(source.note, markup=False)
    subject = load(source, device, options.tokens, texts)
    how = Quantization(options.layers, options.bits, options.group)
    with progress(3 + len(GROUPS) * options.variants) as begin:
        verdict = judge(subject, how, options.variants, begin)
    print_verdict(console, verdict)
    if options.output is not None:
        save_json(_head(options) | {"provenance": provenance(device)} | verdict.to_dict(), options.output)
        print(f"wrote {options.output}")
    return 0 if verdict.passed else NOT_PASSED


def _head(options: argparse.Namespace) -> dict[str, Any]:
    model = Path(options.model).name.lower() or "model"
    bits = "" if options.bits == 8 else f"_int{options.bits}"
    return {"schema": 1, "chapter": f"quality_gate_{model}_{options.layers}{bits}"}


def _not_judged(name: str, output: Path | None, head: dict[str, Any], reason: str) -> int:
    print(f"{name}: could not be judged: {reason}", file=sys.stderr)
    if output is not None:
        try:
            save_json(head | {"judged": False, "passed": False, "reason": reason}, output)
        except OSError as error:
            print(f"{name}: {output} cannot be written: {error.strerror}.", file=sys.stderr)
    return NOT_JUDGED


@contextmanager
def _exact_fp32() -> Iterator[None]:
    """No TF32: it would round the reference's products to 11 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _group(text: str) -> int | None:
    names: dict[str, int | None] = {"channel" if group is None else str(group): group for group in GROUPS}
    if text not in names:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be {', '.join(names)}.")
    return names[text]


def tokens_of(text: str) -> int:
    """Of `--tokens`."""
    value = int(text)
    if value < LEAST_TOKENS:
        raise argparse.ArgumentTypeError(f"it is {value}; a judgement needs {LEAST_TOKENS} tokens of each text.")
    return value
