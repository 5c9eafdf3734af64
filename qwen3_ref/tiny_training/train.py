"""Makes the tiny checkpoint from nothing but a seed.

    python -m qwen3_ref.tiny_training.train --out qwen3_ref/tiny --minutes 5
    python -m qwen3_ref.tiny_training.train --out /tmp/smoke --smoke      # seconds, on any machine

Writes config.json, generation_config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json,
chat_template.jinja, training_log.json and README.md (the model card) to `--out`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as RawTokenizer

from qwen3_ref.model import Qwen3
from qwen3_ref.tiny_training.bpe import save_tokenizer, train_tokenizer
from qwen3_ref.tiny_training.card import LOG_NAME, write_card
from qwen3_ref.tiny_training.corpus import Tokens, build_corpus
from qwen3_ref.tiny_training.evaluate import exact_answers, held_out_loss
from qwen3_ref.tiny_training.loop import Rows, TrainingLog, new_model, train
from qwen3_ref.tiny_training.plots import PLOTS
from qwen3_ref.tiny_training.recipe import BOS_ID, EOS_ID, SMOKE, Recipe

_HELD_OUT = 2_000  # documents for the loss, at most
_AFTERWARDS_S = 90.0  # for the held-out loss, the exact answers and the card


def main(arguments: Sequence[str] | None = None) -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description="Trains the tiny checkpoint.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training; the steps are made to fit (default 5)")
    parser.add_argument("--steps", type=int, help="exact number of steps, to repeat an earlier run")
    parser.add_argument("--limit-minutes", type=float, help="everything ends within this time; training is cut for it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--documents", type=int, help=f"size of the corpus (default {Recipe.documents:,})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that write the corpus")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes a GPU if there is one"
    )
    parser.add_argument("--smoke", action="store_true", help="a toy model and 20 steps, to see that all parts fit")
    options = parser.parse_args(arguments)
    for name in ("minutes", "steps", "limit_minutes", "documents", "processes"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; it must be above 0")

    gpu = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    device = torch.device("cuda" if gpu else "cpu")
    recipe = dataclasses.replace(SMOKE if options.smoke else Recipe(), seed=options.seed)
    recipe = dataclasses.replace(
        recipe, steps=options.steps or recipe.steps, documents=options.documents or recipe.documents
    )
    given = [] if arguments is None else list(arguments)
    command = shlex.join(["python", "-m", "qwen3_ref.tiny_training.train", *(given or sys.argv[1:])])

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - began:6.1f} s] {text}", flush=True)

    # The CPU only draws samples and, in a smoke run, trains a toy: more threads would wait for each other.
    torch.set_num_threads(1 if options.smoke else min(4, os.cpu_count() or 1))
    out: Path = options.out
    tokenizer = _tokenizer(out, recipe)
    say(f"tokenizer of {tokenizer.get_vocab_size()} ids")
    corpus, held_out = build_corpus(tokenizer, recipe.seed, recipe.documents, options.processes)
    rows, model = _place(corpus, recipe, device)
    say(f"{len(corpus.starts):,} documents, {len(corpus):,} tokens, {len(rows):,} rows of {recipe.length}")
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{parameters:,} parameters on {model.device}")

    brake = math.inf
    if options.limit_minutes:
        brake = options.limit_minutes * 60 - (time.perf_counter() - began) - _AFTERWARDS_S
        if brake < 1:
            parser.error(f"--limit-minutes is {options.limit_minutes}; it leaves no time to train, so raise it")
    run = train(model, rows, recipe, min(options.minutes * 60, brake), brake, out, say)
    say(f"trained {run.steps} steps in {run.seconds:.0f} s")
    log = _log(run, recipe, corpus, model, parameters, command, by_hand=options.steps is not None or options.smoke)
    del model, rows

    saved = Qwen3.from_pretrained(out, device=device, attention="sdpa")
    log["held_out_documents"] = len(held_out[:_HELD_OUT])
    log["held_out_loss"] = held_out_loss(saved, tokenizer, held_out[:_HELD_OUT])
    say(f"held-out loss {log['held_out_loss']:.4f}")
    log["exact_answers"] = exact_answers(saved, tokenizer, held_out, 3 if options.smoke else 200)
    for kind, share in log["exact_answers"].items():
        say(f"{share:6.1%}  {kind}")
    (out / LOG_NAME).write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    write_card(out)
    size = sum(file.stat().st_size for file in out.iterdir() if file.is_file())
    say(f"wrote {out}: {size / 1e6:.2f} MB")


def _tokenizer(out: Path, recipe: Recipe) -> RawTokenizer:
    tokenizer = train_tokenizer(recipe.seed, recipe.tokenizer_documents)
    save_tokenizer(out, tokenizer, recipe.length)
    generation = {
        "bos_token_id": BOS_ID,
        "do_sample": True,
        "eos_token_id": [EOS_ID, BOS_ID],
        "pad_token_id": BOS_ID,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    return tokenizer


def _place(corpus: Tokens, recipe: Recipe, device: torch.device) -> tuple[Rows, Qwen3]:
    return Rows(corpus, recipe.length, device), new_model(recipe.config(), recipe.seed).to(device)


def _log(
    run: TrainingLog, recipe: Recipe, corpus: Tokens, model: Qwen3, parameters: int, command: str, *, by_hand: bool
) -> dict[str, Any]:
    return {
        "command": command,
        "recipe": dataclasses.asdict(recipe),
        "steps": run.steps,
        "steps_origin": "given" if by_hand else "made to fit the time",
        "trained_tokens": run.tokens,
        "seconds": round(run.seconds, 1),
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "a CPU",
        "torch": torch.__version__,
        "precision": "bfloat16 autocast" if model.device.type == "cuda" else "float32",
        "parameters": parameters,
        "plots": len(PLOTS),
        "corpus": {
            "documents": len(corpus.starts),
            "tokens": len(corpus),
            "trained_share": float(corpus.trained.mean()),
            "kinds": corpus.kinds,
        },
        "points": run.points,
    }


if __name__ == "__main__":
    main()
