"""Text, token ids and chats: lossless, equal to transformers', and never cut inside a character."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from qwen3_ref.hub import TINY_DIR
from qwen3_ref.tokenizer import Message, Tokenizer, TokenizerError

OURS = Tokenizer.from_pretrained(TINY_DIR)
THEIRS: Any = AutoTokenizer.from_pretrained(TINY_DIR)

# Characters of one to four bytes, and several that print as one: combining marks, a family, a flag, a skin tone.
HARD = "a é 你好，世界 🦊 👩‍👩‍👧‍👦 🇫🇷 👍🏽 नमस्ते שלום \u200d\ufe0f ℓ−∞ 𝒳 \t\r\n  x  \x00\x7f"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "\ufffd"]
TEXT = st.lists(
    st.text(max_size=6) | st.sampled_from([*HARD.split(" "), *SPECIAL, " ", "\n\n", "It's 42"]), max_size=8
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_decode_gives_back_what_encode_took(text: str) -> None:
    """Qwen's tokenizer brings text to Unicode's composed form (NFC) first; beyond that nothing is lost."""
    ids = OURS.encode(text)
    assert all(0 <= i < len(OURS) for i in ids)
    # Special tokens are cut out before the text between them is composed.
    pieces, want = [text], ""
    for special in SPECIAL[:-1]:
        pieces = [p for piece in pieces for p in _cut(piece, special)]
    want = "".join(piece if piece in SPECIAL[:-1] else unicodedata.normalize("NFC", piece) for piece in pieces)
    assert OURS.decode(ids, skip_special=False) == want


def _cut(piece: str, special: str) -> list[str]:
    if piece in SPECIAL:
        return [piece]
    parts = piece.split(special)
    return [part for pair in zip(parts, [special] * len(parts), strict=True) for part in pair][:-1]


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_ids_equal_transformers(text: str) -> None:
    ids = OURS.encode(text)
    assert ids == THEIRS(text, add_special_tokens=False)["input_ids"]
    assert OURS.decode(ids) == THEIRS.decode(ids, skip_special_tokens=True)
    assert OURS.decode(ids, skip_special=False) == THEIRS.decode(ids, skip_special_tokens=False)


def test_sizes_and_stop_token_equal_transformers() -> None:
    assert len(OURS) == len(THEIRS)
    assert OURS.eos_token_id == THEIRS.eos_token_id
    assert OURS.encode("<|im_end|>") == [OURS.eos_token_id]
    assert OURS.decode(OURS.encode("a<|im_end|>b")) == "ab"


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_streamed_text_is_the_whole_text_and_no_piece_ends_inside_a_character(text: str) -> None:
    text = text.replace("\ufffd", "")  # the sign of a cut character must then appear nowhere
    stream, ids = OURS.stream(), OURS.encode(text)
    pieces = [stream.push(i) for i in ids]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == OURS.decode(ids)
    assert stream.flush() == ""


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 300) | st.integers(0, 4200), max_size=12))
def test_any_tokens_stream_to_what_decode_makes_of_them(ids: list[int]) -> None:
    """Broken bytes, special tokens and ids beyond the vocabulary, which a young model may well draw."""
    stream = OURS.stream()
    assert "".join([*(stream.push(i) for i in ids), stream.flush()]) == OURS.decode(ids)
    assert stream.flush() == ""


def test_a_character_of_several_tokens_comes_out_with_its_last() -> None:
    ids = OURS.encode("🦊")
    assert len(ids) > 1, "the tiny vocabulary has no token for a fox"
    stream = OURS.stream()
    assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🦊"]
    stream = OURS.stream()
    assert [stream.push(i) for i in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.flush() == OURS.decode(ids[:-1]) == "\ufffd"
    assert OURS.token(ids[0]) == "\ufffd"


CONTENT = st.text(max_size=12) | st.sampled_from(
    [
        "Hi.",
        "<think>\nx\n</think>\n\nyes",
        "  spaced  ",
        "\n",
        "</think>",
        "<think>",
        "a</think>b</think>c",
        "{{ x }}",
        "é🦊",
    ]
)
CHAT = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT}),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(chat=CHAT, thinking=st.booleans(), prompt=st.booleans())
def test_chats_render_as_in_transformers(chat: list[Message], thinking: bool, prompt: bool) -> None:
    text = OURS.render_chat(chat, enable_thinking=thinking, add_generation_prompt=prompt)
    options = {"enable_thinking": thinking, "add_generation_prompt": prompt}
    assert text == THEIRS.apply_chat_template(chat, tokenize=False, **options)
    assert OURS.encode(text) == THEIRS.apply_chat_template(chat, tokenize=True, return_dict=False, **options)


def test_a_chat_reads_as_qwen3_was_trained() -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi!"}]
    start = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
    assert OURS.render_chat(chat) == start + "<|im_start|>assistant\n"
    assert OURS.render_chat(chat, enable_thinking=False) == start + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert OURS.render_chat(chat, add_generation_prompt=False) == start


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ["x"]}],
        [{}],
    ],
)
def test_a_chat_that_the_template_cannot_take_is_refused(chat: list[Any]) -> None:
    with pytest.raises(TokenizerError, match="the chat template refuses these messages: "):
        OURS.render_chat(chat)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory with the tiny vocabulary and nothing else."""
    shutil.copy(TINY_DIR / "tokenizer.json", tmp_path)
    return tmp_path


def write_config(directory: Path, **config: Any) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_tokenizer_json_alone_is_enough_for_plain_text(directory: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(directory)
    assert tokenizer.encode("Once") == OURS.encode("Once")
    assert tokenizer.eos_token_id is None
    with pytest.raises(TokenizerError, match="no chat template; give it a plain prompt"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("eos", ["<|im_end|>", {"__type": "AddedToken", "content": "<|im_end|>"}])
@pytest.mark.parametrize(
    "template", ["T:{{ messages[0].content }}", [{"name": "default", "template": "T:{{ messages[0].content }}"}]]
)
def test_older_spellings_of_the_configuration(directory: Path, eos: Any, template: Any) -> None:
    tokenizer = Tokenizer.from_pretrained(write_config(directory, eos_token=eos, chat_template=template))
    assert tokenizer.eos_token_id == OURS.eos_token_id
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.render_chat(chat) == "T:x"
    (directory / "chat_template.jinja").write_text(
        "file:{{ messages[0].content }}"
    )  # the file wins, as in transformers
    assert Tokenizer.from_pretrained(directory).render_chat(chat) == "file:x"
    assert AutoTokenizer.from_pretrained(directory).apply_chat_template(chat, tokenize=False) == "file:x"


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
        "{{ messages | tojson }}",
        "{% for m in messages %}{% if m.content == '' %}{% continue %}{% endif %}\n  {{ m.content }}\n{% endfor %}",
        "{{ tools is none }} {{ enable_thinking }}",
    ],
)
def test_what_templates_may_use_is_there_as_in_transformers(directory: Path, template: str) -> None:
    write_config(directory, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None, chat_template=template)
    chat = [{"role": "user", "content": "é <b>"}, {"role": "assistant", "content": ""}]
    want = AutoTokenizer.from_pretrained(directory).apply_chat_template(chat, tokenize=False, enable_thinking=True)
    assert Tokenizer.from_pretrained(directory).render_chat(chat, add_generation_prompt=False) == want


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ nothing.at.all }}",
        "{{ range(10**9) }}",
    ],
)
def test_a_template_that_fails_gives_a_sentence(directory: Path, template: str) -> None:
    """Also one that tries to leave Jinja's sandbox."""
    tokenizer = Tokenizer.from_pretrained(write_config(directory, chat_template=template))
    with pytest.raises(TokenizerError, match="chat template"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_a_refusal_ends_with_one_full_stop(directory: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write_config(directory, chat_template="{{ raise_exception('No user.') }}"))
    with pytest.raises(TokenizerError, match=r"refuses these messages: No user\.$"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist; a model directory must hold"):
        Tokenizer.from_pretrained(tmp_path)
    whole = (TINY_DIR / "tokenizer.json").read_bytes()
    for data in (b"", b"{", b"[]", b"\xff", whole[: len(whole) // 2]):
        (tmp_path / "tokenizer.json").write_bytes(data)
        with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer file"):
            Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"eos_token": 5}',
        '{"eos_token": {}}',
        '{"chat_template": [{}]}',
        '{"chat_template": 5}',
        "\xff",
    ],
)
def test_a_broken_configuration_is_named(directory: Path, text: str) -> None:
    (directory / "tokenizer_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TokenizerError, match="tokenizer's configuration cannot be read"):
        Tokenizer.from_pretrained(directory)
