"""The texts of the quality gate: the committed ones are what they say, and a file that cannot be used is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from chapters.ch08_w8a16_head.quality_gate import held_out_stories
from chapters.ch08_w8a16_head.quality_gate.prompts import (
    CONTEXT,
    HELD_OUT_STORIES,
    PASSAGES,
    TOKENS,
    GateError,
    Texts,
    encode,
    read_texts,
)
from chapters.ch08_w8a16_head.quality_gate.subject import load
from qwen3_ref.hub import TINY_DIR, ModelSource
from qwen3_ref.tiny_training.documents import Document
from qwen3_ref.tokenizer import Tokenizer

TWENTY = [f"passage {number}" for number in range(20)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pretrained(TINY_DIR)


def refused(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(GateError) as caught:
        read_texts(path)
    return str(caught.value)


def test_the_stories_are_held_out_of_training_and_repeat() -> None:
    assert HELD_OUT_STORIES.read_text(encoding="utf-8") == held_out_stories.written()
    for story in read_texts(HELD_OUT_STORIES).passages:
        assert Document(held_out_stories.KIND, [(story, True)]).held_out, story[:60]


def test_every_story_has_enough_tokens(tokenizer: Tokenizer) -> None:
    ids = encode(read_texts(HELD_OUT_STORIES), tokenizer, TOKENS, 4096)
    assert [len(one) for one in ids] == [CONTEXT + TOKENS] * held_out_stories.COUNT


def test_the_passages_are_of_many_kinds_and_long_enough() -> None:
    passages = read_texts(PASSAGES).passages
    assert len(passages) >= 20
    for passage in passages:
        # Qwen3's tokenizer is not here. A token of its large vocabulary has 3 to 4.5 bytes of such text; if a passage
        # were too short after all, the gate would refuse it by name.
        assert len(passage.encode()) >= 5 * (CONTEXT + TOKENS), passage
    signs = ("def ", "SELECT", "#!/bin/sh", "irrational", "INSPECTOR", "3. ", "öffnete", "facteur", "abuela", "老槐树")
    for sign in signs:
        assert any(sign in passage for passage in passages), sign


def test_the_tiny_checkpoint_is_judged_on_its_stories_and_others_on_passages(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert load(ModelSource(TINY_DIR, "tiny"), cpu, 32).texts.name == HELD_OUT_STORIES.name
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).symlink_to(TINY_DIR / name)
    assert load(ModelSource(tmp_path, "other"), cpu, 32).texts.name == PASSAGES.name


def test_a_passage_per_line_and_a_json_list_are_the_same(tmp_path: Path) -> None:
    lines, listed = tmp_path / "a.txt", tmp_path / "a.json"
    lines.write_text("\n\n".join(TWENTY) + "\n \n", encoding="utf-8")
    listed.write_text(json.dumps([*TWENTY, ""], indent=1), encoding="utf-8-sig")
    assert read_texts(lines).passages == read_texts(listed).passages == tuple(TWENTY)
    assert read_texts(lines).digest == read_texts(listed).digest
    listed.write_text(json.dumps([*TWENTY[:-1], "another"]))
    assert read_texts(lines).digest != read_texts(listed).digest


def test_passages_of_a_list_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([f"{text}\nsecond line\n" for text in TWENTY]))
    assert read_texts(path).passages[3] == "passage 3\nsecond line\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", r"holds 0 passages; at least 20 are needed"),
        ("\n".join(TWENTY[:19]), r"holds 19 passages; at least 20"),
        ("[]", r"holds 0 passages"),
        ('["a", "b"', r"begins with \[ and is no JSON list: "),
        (json.dumps([*TWENTY, 7]), r"element 21 of the list is a int; it must be a string"),
        (json.dumps([*TWENTY, {"text": "x"}]), r"element 21 of the list is a dict"),
        ("[" * 100_000, r"begins with \[ and is no JSON list: "),
        ("\n".join([*TWENTY, TWENTY[4]]), r"more than once, which proves nothing more: 'passage 4'"),
        (b"\xff\xfe\x00", r"cannot be read: it is no UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_a_sentence(
    content: str | bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "texts"
    message = refused(path, content)
    assert message.startswith(str(path))
    assert re.search(sentence, message)
    assert message.endswith(".")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(GateError, match=r"cannot be read: (No such file|Is a directory)"):
            read_texts(path)


def test_a_short_text_is_refused_and_named(tokenizer: Tokenizer) -> None:
    words = "the cat " * 40
    count = len(tokenizer.encode(words))
    texts = Texts("mine.txt", (words, "Too short."))
    sentence = r"^passage 2 of mine.txt has \d tokens; 16 to read and 32 to judge make 48, .*: 'Too short.'.$"
    with pytest.raises(GateError, match=sentence):
        encode(texts, tokenizer, 32, 4096)
    exact = Texts("mine.txt", (words,))
    assert encode(exact, tokenizer, count - CONTEXT, 4096) == [tokenizer.encode(words)]
    with pytest.raises(GateError, match="passage 1"):
        encode(exact, tokenizer, count - CONTEXT + 1, 4096)


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(GateError, match=r"vocabulary ends at 99: this tokenizer belongs to another model"):
        encode(read_texts(HELD_OUT_STORIES), tokenizer, 32, 100)
