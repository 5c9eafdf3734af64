"""The command `make cache-gate`, which is `python -m chapters.ch10_quantized_kv.cache_gate`.

Exit codes: 0 passed, 1 not passed, 2 could not be judged, 130 Ctrl-C. Whatever goes wrong, it is not 0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from chapters.ch08_w8a16_head.quality_gate.command import NOT_PASSED, guarded, tokens_of
from chapters.ch08_w8a16_head.quality_gate.prompts import TOKENS, read_texts
from chapters.ch08_w8a16_head.quality_gate.subject import load
from chapters.ch10_quantized_kv.cache_gate.caches import FORMATS, CacheKind
from chapters.ch10_quantized_kv.cache_gate.gate import judge
from chapters.ch10_quantized_kv.cache_gate.needles import questions
from chapters.ch10_quantized_kv.cache_gate.tables import print_verdict
from qwen3_ref.hub import resolve_model
from qwen_cuda.benchmarking import choose_device, progress, provenance, save_json
from qwen_cuda.loading import load_operators

NAME = "make cache-gate"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=NAME, description="Whether a model with a quantised KV cache still chooses the tokens that it chose."
    )
    made.add_argument("--model", default="tiny", help="tiny (default), a directory, or a hub id of a Qwen3")
    made.add_argument("--kv-cache", default="fp8", choices=FORMATS, help="the format; fp8 by default")
    made.add_argument("--no-hadamard", action="store_true", help="keys are quantised as they are")
    made.add_argument(
        "--prompts", type=Path, metavar="FILE", help="your own texts: one per line, or a JSON list of strings"
    )
    made.add_argument("--tokens", type=tokens_of, default=TOKENS, help=f"judged in each text; {TOKENS} by default")
    made.add_argument("--variants", action="store_true", help="compare all formats, with the transform and without")
    made.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    made.add_argument("--output", type=Path, help="where the JSON goes")
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parser().parse_args(argv)
    head = {"schema": 1, "chapter": options.output.stem if options.output else "ch10_quality"}
    return guarded(NAME, options.output, head, lambda: run(options, head))


def run(options: argparse.Namespace, head: dict[str, Any]) -> int:
    # A pipe has no width; 160 columns hold the table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    texts = read_texts(options.prompts) if options.prompts is not None else None
    device = choose_device(options.device)
    load_operators()
    source = resolve_model(options.model, report=lambda sentence: print(sentence, file=sys.stderr))
    if source.note:
        console.print(source.note, markup=False)
    subject = load(source, device, options.tokens, texts)
    kinds = cache_kinds(CacheKind(options.kv_cache, not options.no_hadamard), options.variants)
    asked = questions(subject.texts, subject.tokenizer, device)
    with progress(2 + len(kinds)) as begin:
        verdict = judge(subject, asked, kinds, begin)
    print_verdict(console, verdict)
    if options.output is not None:
        save_json(head | {"provenance": provenance(device)} | verdict.to_dict(), options.output)
        print(f"wrote {options.output}")
    return 0 if verdict.passed else NOT_PASSED


def cache_kinds(judged: CacheKind, variants: bool) -> list[CacheKind]:
    """What is judged, and behind it, for comparison, every format with the transform and without."""
    every = [CacheKind(name, hadamard) for name in FORMATS for hadamard in (True, False)] if variants else []
    return [judged, *(kind for kind in every if kind != judged)]
