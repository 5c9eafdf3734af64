"""How the tiny checkpoint is made: the corpus, the tokenizer, the masks, and a run in small."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer

from qwen3_ref.hub import TINY_DIR
from qwen3_ref.model import Qwen3
from qwen3_ref.tiny_training import bpe
from qwen3_ref.tiny_training.corpus import build_corpus, documents, encode_document, gather, held_out_documents
from qwen3_ref.tiny_training.documents import EMPTY_THOUGHT, Document, write_document
from qwen3_ref.tiny_training.encoding import CachedEncoder
from qwen3_ref.tiny_training.grammar import Grammar, GrammarError
from qwen3_ref.tiny_training.loop import IGNORED, Rows, new_model
from qwen3_ref.tiny_training.plots import PLOTS, write_story
from qwen3_ref.tiny_training.proofread import faults
from qwen3_ref.tiny_training.recipe import SMOKE, Recipe
from qwen3_ref.tiny_training.train import main as train_main
from qwen3_ref.tokenizer import Tokenizer
from qwen3_ref.weights import load_weights
from tests.foreign_texts import FOREIGN


@pytest.fixture(scope="module")
def sample() -> list[Document]:
    return list(documents(seed=3, chunk=0, count=1500))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smoke")
    train_main(["--out", str(out), "--smoke", "--device", "cpu", "--processes", "1"])
    return out


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_stories_are_good_english(plot: Any) -> None:
    rng = Random(f"proofread {plot.name}")
    for _ in range(40):
        story = write_story(rng, plot)
        for text in (story.text, story.plan, *(part for pair in story.questions for part in pair)):
            assert faults(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "There was a owl.",
        "They was happy.",
        "He saw the the dog.",
        "It was dark. he slept.",
        '"Who are you," said Tom.',
        "It was an unicorn.",
        "He ran.She sat.",
        '"Hello, said Tom.',
        "A [cat|dog] came.",
    ],
)
def test_proofreading_finds_what_a_grammar_gets_wrong(text: str) -> None:
    assert faults(text)


def test_answers_stand_in_their_stories() -> None:
    """The last word that an answer adds to its question is told in the story, or the question asks what it taught."""
    rng = Random("answers")
    for plot in PLOTS * 5:
        story = write_story(rng, plot)
        for question, answer in story.questions:
            if "learn" in question or "feel" in question:
                continue
            words = [word.strip('.,"!').removesuffix("'s") for word in answer.split()]
            value = [word for word in words if word not in question]
            assert not value or value[-1].lower() in story.text.lower(), (plot.name, question, answer)


def test_stories_are_long_and_of_many_kinds(tokenizer: RawTokenizer) -> None:
    rng = Random("lengths")
    lengths = [len(tokenizer.encode(write_story(rng).text).ids) for _ in range(200)]
    assert len(PLOTS) >= 22
    assert len({plot.name for plot in PLOTS}) == len(PLOTS)
    assert 220 <= float(np.median(lengths)) <= 380
    assert min(lengths) >= 150


@pytest.mark.parametrize("template", ["[a|b", "a]", "a|b", "@nobody", "{nothing}"])
def test_a_broken_template_is_refused(template: str) -> None:
    with pytest.raises(GrammarError):
        Grammar({}).write(Random(0), template, {})


def test_the_corpus_is_the_same_for_a_seed_in_every_process(tokenizer: RawTokenizer) -> None:
    # A literal digest: it would change with a set's or a hash's order, which differs from process to process.
    text = "".join(document.text for document in documents(seed=0, chunk=0, count=50))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3b6aa78e549fe1a6"
    first, held_out = build_corpus(tokenizer, seed=5, count=2100, processes=1)
    again, held_out_again = build_corpus(tokenizer, seed=5, count=2100, processes=2)
    other, _ = build_corpus(tokenizer, seed=6, count=100, processes=1)
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.trained, again.trained)
    assert np.array_equal(first.starts, again.starts)
    assert held_out == held_out_again
    assert first.kinds == again.kinds
    assert not np.array_equal(first.ids[:500], other.ids[:500])


def test_no_held_out_document_is_trained_on(tokenizer: RawTokenizer, sample: list[Document]) -> None:
    held_out = held_out_documents(seed=3, count=10)
    kept = [document.text for document in sample if not document.held_out]
    assert not {document.text for document in held_out} & set(kept)
    corpus, left_out = build_corpus(tokenizer, seed=3, count=1500, processes=1)
    assert [document.text for document in left_out] == [d.text for d in sample if d.held_out]
    text = tokenizer.decode(corpus.ids.tolist(), skip_special_tokens=False)
    assert text.count(bpe.END_OF_TEXT) == len(kept)
    assert all(document.text not in text for document in left_out)
    assert len(left_out) >= 5


def test_transformers_gives_the_same_ids(smoke: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smoke)
    ours = Tokenizer.from_pretrained(smoke)
    assert len(theirs) == len(ours) == bpe.VOCAB_SIZE
    rng = Random("ids")
    for text in [*FOREIGN, *(write_document(rng).text for _ in range(30))]:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False).input_ids == ids
        assert theirs.decode(ids) == text


def test_the_mask_leaves_only_the_last_answer(
    tokenizer: RawTokenizer, encoder: CachedEncoder, sample: list[Document]
) -> None:
    seen = Counter[bool]()
    for document in sample:
        ids, trained = encode_document(encoder, document)
        assert ids[:-1] == tokenizer.encode(document.text).ids, (
            "cutting a text into segments must not change its tokens"
        )
        written = tokenizer.decode([i for i, on in zip(ids, trained, strict=True) if on], skip_special_tokens=False)
        chat = bpe.TURN_START in document.text
        seen[chat] += 1
        answer = document.text.rpartition("<|im_start|>assistant\n")[2].removeprefix(EMPTY_THOUGHT)
        assert written == answer + bpe.END_OF_TEXT
        if chat:
            assert answer.endswith(bpe.TURN_END)
            assert bpe.TURN_START not in answer
    assert min(seen[True], seen[False]) > 100


def test_chats_are_what_the_template_renders(sample: list[Document]) -> None:
    tokenizer = Tokenizer.from_pretrained(TINY_DIR)
    chats = [document.text for document in sample if document.text.startswith(bpe.TURN_START)][:40]
    for text in chats:
        turns = [
            turn.removesuffix("<|im_end|>\n").removesuffix("<|im_end|>") for turn in text.split("<|im_start|>")[1:]
        ]
        messages = [dict(zip(("role", "content"), turn.split("\n", 1), strict=True)) for turn in turns]
        assert tokenizer.render_chat(messages, add_generation_prompt=False) == text + "\n"
        thinking = not messages[-1]["content"].startswith(EMPTY_THOUGHT)
        assert text.startswith(tokenizer.render_chat(messages[:-1], enable_thinking=thinking))


def test_every_row_starts_with_a_document_and_no_end_is_lost(encoder: CachedEncoder, sample: list[Document]) -> None:
    tokens = gather(encoder, sample[:300])
    rows = tokens.rows(1024)
    assert set(rows.tolist()) <= set(tokens.starts.tolist())
    covered = np.zeros(len(tokens), dtype=bool)
    for row in rows:
        covered[row : row + 1025] = True
    ends = np.append(tokens.starts[1:], len(tokens)) - 1
    short = np.diff(np.append(tokens.starts, len(tokens))) <= 1025
    assert covered[ends[short][:-10]].all(), "only the last documents may be left over"


def test_targets_are_the_next_tokens_and_context_is_ignored(encoder: CachedEncoder, sample: list[Document]) -> None:
    tokens = gather(encoder, sample[:50])
    rows = Rows(tokens, 64, torch.device("cpu"))
    ids, targets = rows.batch(torch.tensor([0, 1]))
    assert ids.shape == targets.shape == (2, 64)
    for row, start in enumerate(tokens.rows(64)[:2]):
        following = torch.from_numpy(tokens.ids[start + 1 : start + 65].astype(np.int64))
        trained = torch.from_numpy(tokens.trained[start + 1 : start + 65])
        assert torch.equal(ids[row, 1:], following[:-1])
        assert torch.equal(targets[row], torch.where(trained, following, IGNORED))


def test_learning_rate_warms_up_and_falls() -> None:
    recipe = Recipe(warmup=10, peak_rate=1.0, final_share=0.1)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert max(rates) == pytest.approx(1.0)
    assert rates[9] == pytest.approx(1.0)
    assert rates[:10] == [recipe.rate(step, None) for step in range(10)]
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_a_model_starts_out_knowing_nothing() -> None:
    model = new_model(SMOKE.config(), seed=0)
    again = new_model(SMOKE.config(), seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    loss = torch.nn.functional.cross_entropy(model(torch.arange(64)[None])[0].float(), torch.arange(1, 65))
    assert loss.item() == pytest.approx(np.log(bpe.VOCAB_SIZE), abs=0.2)


def test_a_smoke_run_learns_and_writes_a_whole_checkpoint(smoke: Path) -> None:
    log = json.loads((smoke / "training_log.json").read_text())
    first, last = log["points"][0], log["points"][-1]
    assert first[0] == 1
    assert last[0] == SMOKE.steps
    assert last[1] < first[1] - 1.0
    assert log["held_out_loss"] < first[1] - 1.0
    model = Qwen3.from_pretrained(smoke)
    assert model.dtype == torch.bfloat16
    assert model.config == dataclasses.replace(SMOKE.config(), eos_token_ids=model.config.eos_token_ids)
    assert set(model.config.eos_token_ids) == {4091, 4093}
    assert "lm_head.weight" not in load_weights(smoke, model.config, torch.bfloat16)
    card = (smoke / "README.md").read_text()
    assert card.count("### Seed ") == 10
    assert f"{log['held_out_loss']:.4f}" in card
    assert "--smoke" in card
    assert (smoke / "chat_template.jinja").read_bytes() == bpe.CHAT_TEMPLATE.read_bytes()


def test_transformers_runs_the_checkpoint(smoke: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smoke, dtype=torch.float32, attn_implementation="eager")
    ours = Qwen3.from_pretrained(smoke, dtype=torch.float32)
    ids = torch.tensor([Tokenizer.from_pretrained(smoke).encode("Once upon a time, there was a")])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, ours(ids))


def test_a_run_can_be_repeated(smoke: Path, tmp_path: Path) -> None:
    train_main(["--out", str(tmp_path), "--smoke", "--device", "cpu", "--processes", "1"])
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / name).read_bytes() == (smoke / name).read_bytes(), name


@pytest.mark.parametrize(("option", "value"), [("--minutes", "0"), ("--steps", "-1"), ("--limit-minutes", "0.01")])
def test_bad_options_are_refused_in_a_sentence(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train_main(["--out", str(tmp_path), "--smoke", "--device", "cpu", "--processes", "1", option, value])
    assert f"{option} is {value}" in capsys.readouterr().err


def test_the_committed_checkpoint_belongs_to_this_code() -> None:
    """Same template, same token ids for the added tokens, same shape."""
    assert (TINY_DIR / "chat_template.jinja").read_bytes() == bpe.CHAT_TEMPLATE.read_bytes()
    tokenizer = RawTokenizer.from_file(str(TINY_DIR / "tokenizer.json"))
    assert [tokenizer.token_to_id(token) for token in bpe.ADDED_TOKENS] == list(range(4091, 4096))
    assert dataclasses.asdict(Recipe().config()) | {"eos_token_ids": (4093, 4091)} == dataclasses.asdict(
        Qwen3.from_pretrained(TINY_DIR).config
    )
    assert sum(file.stat().st_size for file in TINY_DIR.iterdir()) <= 16_000_000
