"""How good the checkpoint is: loss on documents that it has never seen, exact answers, and unselected samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer as RawTokenizer
from torch import nn

from qwen3_ref.generate import Generation, ReferenceEngine
from qwen3_ref.model import Qwen3
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tiny_training.corpus import encode_document, gather
from qwen3_ref.tiny_training.documents import Document, small_talk
from qwen3_ref.tiny_training.encoding import CachedEncoder
from qwen3_ref.tiny_training.facts import draw_known
from qwen3_ref.tiny_training.loop import IGNORED, Rows
from qwen3_ref.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote: `title` is the prompt as a reader types it."""

    title: str
    seed: int
    text: str
    tokens: int
    finish_reason: str


@torch.inference_mode()
def held_out_loss(model: Qwen3, tokenizer: RawTokenizer, held_out: list[Document]) -> float:
    """Mean cross-entropy, in nats a token, over the trained tokens of held-out documents.

    Raises:
        ValueError: the documents are so few that no row of them has a trained token.
    """
    tokens = gather(CachedEncoder(tokenizer), held_out)
    rows = Rows(tokens, min(model.config.max_position_embeddings, len(tokens) - 1), model.device)
    total, count = 0.0, 0
    for row in range(len(rows)):
        ids, targets = rows.batch(torch.tensor([row], device=model.device))
        logits = model(ids).float()
        total += nn.functional.cross_entropy(logits[0], targets[0], ignore_index=IGNORED, reduction="sum").item()
        count += int((targets != IGNORED).sum())
    if not count:
        raise ValueError(f"{len(held_out)} held-out documents have no trained token in a whole row; add documents.")
    return total / count


@torch.inference_mode()
def answer_chance(model: Qwen3, encoder: CachedEncoder, document: Document, temperature: float) -> float:
    """How likely the model is to write the document's answer, thought included, to the letter.

    At temperature 0 that is 1.0 (each of its tokens is the most likely one) or 0.0.
    """
    ids, trained = encode_document(encoder, document)
    ids, trained = ids[:-1], trained[:-1]  # what follows the end of a turn does not matter
    tokens = torch.tensor(ids, device=model.device)
    at = torch.tensor([i for i in range(1, len(ids)) if trained[i]], device=model.device)
    logits, wanted = model(tokens[None])[0, at - 1].float(), tokens[at]
    if temperature == 0:
        return float((logits.argmax(-1) == wanted).all())
    return float((logits / temperature).log_softmax(-1).gather(1, wanted[:, None]).sum().exp())


def exact_answers(model: Qwen3, tokenizer: RawTokenizer, held_out: list[Document], each: int) -> dict[str, float]:
    """The share of answers that are right to the letter, for every kind of chat with one right answer.

    At most `each` documents of a kind are tried. Facts and sums are tried at temperature 0.8 too: there the share is
    the mean chance of the right answer.
    """
    kinds = ("question about a given story", "question about a told story", "needle in a chat", "needle in a text")
    wanted: dict[str, list[Document]] = {kind: [] for kind in kinds}
    for document in held_out:
        if document.kind in wanted and len(document.segments) == 2 and len(wanted[document.kind]) < each:
            wanted[document.kind].append(document)
    rng = Random("facts")
    facts = [small_talk(rng, draw_known(rng)) for _ in range(each)]
    tried = [(kind, documents, 0.0) for kind, documents in wanted.items() if documents]
    tried.append(("facts and small sums (may be known from training)", facts, 0.0))
    tried.append(("the same facts and sums, drawn at temperature 0.8", facts, 0.8))
    encoder = CachedEncoder(tokenizer)
    return {
        kind: sum(answer_chance(model, encoder, document, temperature) for document in documents) / len(documents)
        for kind, documents, temperature in tried
    }


STORY_PROMPTS = (
    "Once upon a time, there was a",
    "There once was a little robot named",
    "One rainy morning, Lily",
    "In a small village by the sea,",
    "Tom and his grandma",
)
CHAT_PROMPTS = (
    "Tell me a story about a fox who is scared of the dark.",
    "Write a short story about two friends and a kite.",
    "Hello! Who are you?",
    "What is twelve minus five?",
    "Write a poem about GPUs.",
)


def draw_samples(directory: Path, max_new_tokens: int = 400) -> list[Sample]:
    """Ten texts at temperature 0.8, seeds 0 to 9, on the CPU, all as they came."""
    model = Qwen3.from_pretrained(directory)
    tokenizer = Tokenizer.from_pretrained(directory)
    prompts = [(prompt, prompt) for prompt in STORY_PROMPTS]
    for prompt in CHAT_PROMPTS:
        chat = tokenizer.render_chat([{"role": "user", "content": prompt}], enable_thinking=False)
        prompts.append((prompt, chat))
    samples = []
    room = model.config.max_position_embeddings
    for seed, (title, prompt) in enumerate(prompts):
        ids = tokenizer.encode(prompt)
        run = Generation(
            ReferenceEngine(model, room),
            tokenizer,
            ids,
            min(max_new_tokens, room - len(ids)),
            SamplingParams(temperature=0.8, seed=seed),
        ).run()
        reason = run.finish_reason or "length"
        samples.append(Sample(title, seed, run.text, len(run.token_ids), reason))
    return samples


def perplexity(loss: float) -> float:
    """`exp(loss)`: the number of equally likely tokens that would be as hard to guess."""
    return math.exp(loss)
