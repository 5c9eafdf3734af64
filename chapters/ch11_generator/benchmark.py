"""Chapter 11's benchmark: whole requests, ours beside transformers, torch.compile and vLLM, in one run.

    make bench-e2e ARGS="--contexts 128 1024"
    python -m chapters.ch11_generator.benchmark [--model NAME] [--contexts N …] [--only NAME …]

A request is a prompt of token ids and greedy tokens; loading and tokenisation are no part of it. Nobody is timed whose
tokens the reference in float32 does not explain. On a CPU the tiny model answers short prompts. Compilers take their
time: `--contexts` and `--only` cut a run into several, which add to one file while commit and machine are the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a file
    sys.path[:0] = [str(root := Path(__file__).resolve().parents[2]), str(root / "kernels")]
# Threads that wait must sleep, not spin. The OpenMP runtime reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import transformers

from chapters.ch11_generator.end_to_end.catalogue import YARDSTICKS, catalogue
from chapters.ch11_generator.end_to_end.contender import Contender
from chapters.ch11_generator.end_to_end.measurement import Measurement
from chapters.ch11_generator.end_to_end.merging import merged
from chapters.ch11_generator.end_to_end.ours import libraries_without_pdl, without_pdl
from chapters.ch11_generator.end_to_end.right_tokens import Judge
from chapters.ch11_generator.end_to_end.stopwatch import ROUNDS
from chapters.ch11_generator.end_to_end.subject import RANDOM, Request, Subject, load
from chapters.ch11_generator.end_to_end.tables import print_figures
from chapters.ch11_generator.placement import limit_threads
from chapters.ch11_generator.targets import judge
from qwen3_ref.config import ConfigError
from qwen3_ref.cost import parameters
from qwen3_ref.hub import HubError
from qwen3_ref.weights import CheckpointError
from qwen_cuda.benchmarking import Report, WrongAnswer, arguments, progress, results_path, save_json
from qwen_cuda.benchmarking.bandwidth import library as bandwidth_library
from qwen_cuda.benchmarking.targets import print_verdicts
from qwen_cuda.building import BuildError, build
from qwen_cuda.loading import load_operators

CHAPTER = "ch11_generator"
PROMPTS, NEW_TOKENS, MAX_LENGTH = (128, 1024, 8192), 128, 8336
SMALL_PROMPTS, SMALL_NEW_TOKENS, SMALL_ROUNDS = (16, 64), 16, 3  # on a CPU, and for a quick run


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark → the exit code: 1 when something does not build or is wrong, 2 for a bad option."""
    options = arguments(__doc__.partition("\n")[0], argv, _options)
    notes: list[str] = []
    try:
        _complete(options)
        load_operators()
        subject = load(options.model, options.device, lambda sentence: print(sentence, file=sys.stderr))
        limit_threads(parameters(subject.config) * 2)
        requests = _requests(options, subject)
        chosen = _chosen(options, subject, notes)
        _build(options, chosen)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except (HubError, ConfigError, CheckpointError, ValueError) as error:
        print(f"make bench-e2e: {error}", file=sys.stderr)
        return 2
    print("measuring the ceilings of this machine", file=sys.stderr)
    report = Report(CHAPTER, options.device, options.quick)
    report.provenance["transformers"] = transformers.__version__
    measurement = Measurement(report, Judge(subject), options.rounds)
    try:
        with progress(len(requests) * (len(chosen) + 1)) as begin:
            for request in requests:
                measurement.run(request, chosen, begin)
                _saved(options, report, _results(options, subject, measurement))
    except WrongAnswer as error:
        print(f"wrong answer, nothing is reported: {error}", file=sys.stderr)
        return 1
    report.measure_ceilings_again()
    for sentence in dict.fromkeys(notes):
        report.note(sentence)
    return _reported(options, report, _results(options, subject, measurement))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help=f"auto (default on a GPU), {RANDOM}, tiny (default on a CPU), a directory, a hub id"
    )
    parser.add_argument(
        "--contexts", type=int, nargs="+", metavar="N", help=f"lengths of the prompt; by default {PROMPTS} on a GPU"
    )
    parser.add_argument("--new-tokens", type=int, metavar="N", help=f"of an answer; {NEW_TOKENS} by default on a GPU")
    parser.add_argument(
        "--max-length", type=int, default=MAX_LENGTH, metavar="N", help=f"room of our caches; {MAX_LENGTH} by default"
    )
    parser.add_argument("--rounds", type=int, help=f"of the stopwatch; {ROUNDS} by default on a GPU")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"who takes part beside {' and '.join(YARDSTICKS)}")


def _complete(options: argparse.Namespace) -> None:
    """Puts the defaults of this machine in, and checks the numbers."""
    small = options.quick or options.device.type == "cpu"
    defaults = {
        "model": "tiny" if options.device.type == "cpu" else "auto",
        "contexts": SMALL_PROMPTS if small else PROMPTS,
        "new_tokens": SMALL_NEW_TOKENS if small else NEW_TOKENS,
        "rounds": SMALL_ROUNDS if small else ROUNDS,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name, least in (("new_tokens", 2), ("rounds", 1), ("max_length", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be at least {least}.")
    if min(options.contexts) < 1:
        raise ValueError(f"--contexts holds {min(options.contexts)}; a prompt has at least 1 token.")


def _requests(options: argparse.Namespace, subject: Subject) -> list[Request]:
    limit = subject.config.max_position_embeddings
    if options.model == "tiny":
        options.max_length = min(options.max_length, limit)
    if options.max_length > limit:
        raise ValueError(f"--max-length is {options.max_length}; {subject.name} has {limit} positions.")
    longest = max(options.contexts) + options.new_tokens
    if longest > options.max_length:
        raise ValueError(
            f"--contexts and --new-tokens make {longest} tokens; --max-length leaves room for {options.max_length}."
        )
    prompts = dict.fromkeys(options.contexts)
    return [Request(subject, subject.prompt(n), options.new_tokens, options.max_length) for n in prompts]


def _chosen(options: argparse.Namespace, subject: Subject, notes: list[str]) -> list[Contender]:
    """Who takes part. `notes` gets a sentence for each who cannot."""
    known = catalogue(notes.append)
    if unknown := [name for name in options.only or () if name not in known]:
        raise ValueError(f"--only names {unknown[0]!r}; it must be one of {', '.join(known)}.")
    wanted = [known[name] for name in known if not options.only or name in (*options.only, *YARDSTICKS)]
    reasons = {one.name: one.unavailable(subject) for one in wanted}
    notes += [reason for reason in reasons.values() if reason]
    return [one for one in wanted if not reasons[one.name]]


def _build(options: argparse.Namespace, chosen: list[Contender]) -> None:
    """What is built for a GPU beside the operators, together, before anything is measured."""
    if options.device.type == "cuda":
        edited = libraries_without_pdl() if any(one.inside is without_pdl for one in chosen) else []
        build(*edited, bandwidth_library())


def _results(options: argparse.Namespace, subject: Subject, measurement: Measurement) -> dict[str, Any]:
    """Schema 1, and beside the cases what belongs to whole requests."""
    data = measurement.report.to_dict()
    run = {"date": data["provenance"]["date"], "contexts": list(options.contexts), "only": options.only}
    model = {"name": subject.name, "weights": subject.weights, "bytes": 2 * parameters(subject.config)}
    return data | {
        "end_to_end": {"model": model, "max_length": options.max_length, **measurement.to_dict(), "runs": [run]}
    }


def _saved(options: argparse.Namespace, report: Report, results: dict[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Writes what was measured so far, beside what the file holds: a run that is cut short loses one prompt at most."""
    path = results_path(report, options.output)
    results, sentence = merged(path, results)
    if sentence:
        print(sentence, file=sys.stderr)
    if path:
        save_json(results, path)
    return results, path


def _reported(options: argparse.Namespace, report: Report, results: dict[str, Any]) -> int:
    report.print()
    results, path = _saved(options, report, results)
    print_figures(results)
    if options.device.type == "cuda":
        print_verdicts(judge(results), f"{results['end_to_end']['model']['name']}, bfloat16, batch 1")
    if path:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
