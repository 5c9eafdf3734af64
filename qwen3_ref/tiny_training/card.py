"""The model card: written from the log of a training run and from what the checkpoint writes.

python -m qwen3_ref.tiny_training.card qwen3_ref/tiny    # writes the card again, with new samples
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from qwen3_ref.tiny_training.evaluate import STORY_PROMPTS, Sample, draw_samples, perplexity

LOG_NAME = "training_log.json"


def write_card(directory: Path) -> None:
    """Writes README.md from training_log.json and ten new samples.

    Raises:
        OSError: the log or the checkpoint is missing.
    """
    log = json.loads((directory / LOG_NAME).read_text(encoding="utf-8"))
    text = card_text(log, draw_samples(directory), (directory / "model.safetensors").stat().st_size)
    (directory / "README.md").write_text(text, encoding="utf-8")


def card_text(log: dict[str, Any], samples: list[Sample], file_bytes: int) -> str:
    """The card as Markdown."""
    recipe, data = log["recipe"], log["corpus"]
    kinds = [f"| {kind} | {count:,} | {tokens:,} |" for kind, (count, tokens) in data["kinds"].items()]
    answers = [f"| {kind} | {share:.1%} |" for kind, share in log["exact_answers"].items()]
    blocks = [
        "---\nlicense: apache-2.0\nlanguage: en\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
        "# Tiny storyteller",
        f"""A model of {log["parameters"]:,} parameters ({file_bytes / 1e6:.1f} MB in bfloat16) in the exact
        architecture of Qwen3. It writes short stories for children in simple English, answers questions about them,
        and does small sums. It is there so that everything in this repository runs without a network: it is a
        stand-in for Qwen3-0.6B, not a rival.""",
        f"""| | |
        |---|---|
        | hidden size, layers | {recipe["hidden_size"]}, {recipe["layers"]} |
        | query heads, KV heads, head_dim | {recipe["heads"]}, {recipe["kv_heads"]}, 128 |
        | MLP | {recipe["intermediate_size"]}, SwiGLU |
        | vocabulary | 4,096, byte-level BPE, tied embedding |
        | positions | {recipe["length"]:,}, all of them seen in training; RoPE with θ = 1,000,000 |
        | chat format | Qwen3's, with thinking on or off |""",
        """It loads with `AutoModelForCausalLM.from_pretrained("qwen3_ref/tiny")` and with
        `qwen3_ref.Qwen3.from_pretrained("qwen3_ref/tiny")`.""",
        "## Data and licence",
        f"""All text comes from the story grammar in `qwen3_ref/tiny_training`, which is part of this repository:
        {log["plots"]} plots, written out with random people, animals, things and places, and some lists of facts.
        No other text was used. The weights, like the grammar, are under the Apache License 2.0.""",
        "\n".join(["| kind of document | documents | tokens |", "|---|---|---|", *kinds]),
        f"""{data["tokens"]:,} tokens in all, of which {data["trained_share"]:.0%} are trained on; the others are
        context only (questions and earlier turns of a chat). One story in 64 is held out, chosen by a hash of its
        text.""",
        "## Training",
        f"```\n{log['command']}\n```",
        f"""Seed {recipe["seed"]}. The number of steps was {log["steps_origin"]}; `--steps {log["steps"]}` repeats the
        schedule (the last bits depend on the machine). {log["steps"]:,} steps of {recipe["batch"]} rows of
        {recipe["length"]:,} tokens, {log["trained_tokens"]:,} tokens in {log["seconds"]:.0f} s on {log["device"]}
        with PyTorch {log["torch"]}, {log["precision"]}. AdamW with betas 0.9 and 0.95, weight decay
        {recipe["weight_decay"]}, learning rate {recipe["peak_rate"]:g} after {recipe["warmup"]} steps and then a
        cosine down to {recipe["final_share"]:.0%} of it, gradients clipped to norm 1.""",
        "## Quality",
        f"""Loss on {log["held_out_documents"]:,} held-out documents: **{log["held_out_loss"]:.4f}** nats a token
        (perplexity {perplexity(log["held_out_loss"]):.3f}), measured on the saved bfloat16 weights. A grammar is
        easy to predict, so the number says little about other text.""",
        "\n".join(["| answer (decoded greedily) | right to the letter |", "|---|---|", *answers]),
        "## Limits",
        f"""- It knows {log["plots"]} kinds of story and a few hundred facts, and nothing else. A request outside of
        them gets a polite no, or a story that was not asked for.""",
        """- It adds and takes away numbers up to 20; larger ones, names that it has never seen, and long instructions
        go wrong.""",
        """- Its thoughts are the plan of the story, or the fact that it will state. They are not reasoning.""",
        "- It writes English only.",
        "## Ten samples",
        """Temperature 0.8, no other filter, seeds 0 to 9, at most 400 tokens, on a CPU, thinking off. None was
        selected; all are shown as they came. The first five continue the words in bold, the others answer a user.""",
        *(_sample(sample) for sample in samples),
    ]
    return "\n\n".join(_laid_out(block) for block in blocks).replace("\n\n- ", "\n- ") + "\n"


def _laid_out(block: str) -> str:
    """Prose in lines of 110 characters; tables, headings, code and quotes as they are."""
    lines = [line.strip() for line in block.splitlines()]
    if block.startswith(("|", "#", "---", "```")):
        return "\n".join(lines)
    return textwrap.fill(" ".join(lines), 110, subsequent_indent="  " if block.startswith("- ") else "")


def _sample(sample: Sample) -> str:
    text = sample.text.rstrip().replace("<", "&lt;")
    if sample.title in STORY_PROMPTS:
        head, text = f"### Seed {sample.seed}", f"**{sample.title}**{text}"
    else:
        head = f"### Seed {sample.seed}: “{sample.title}”"
    quoted = "\n".join(f"> {line}".rstrip() for line in (text or "(nothing)").splitlines())
    end = "" if sample.finish_reason == "stop" else ", cut off"
    return f"{head}\n\n{quoted}\n\n({sample.tokens} tokens{end})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the model card of a trained checkpoint.")
    parser.add_argument("directory", type=Path, help="where train.py has written the checkpoint")
    write_card(parser.parse_args().directory)


if __name__ == "__main__":
    main()
