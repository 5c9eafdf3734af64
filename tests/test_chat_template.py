"""The chat template of the tiny checkpoint renders what Qwen3's own renders.

The expected strings were taken from Qwen3's template. With the environment variable QWEN3_TOKENIZER_DIR set to a
directory that holds Qwen3's tokenizer_config.json (and tokenizer.json), the two are compared directly as well.
"""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from qwen3_ref.hub import TINY_DIR
from qwen3_ref.tokenizer import Message, Tokenizer, TokenizerError
from tests.chat_template_cases import CASES, Turn


def messages_of(turns: list[Turn]) -> list[Message]:
    keys = ("role", "content", "reasoning_content")
    return [dict(zip(keys, turn, strict=False)) for turn in turns]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pretrained(TINY_DIR)


@pytest.fixture(scope="module")
def of_transformers() -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(TINY_DIR)


@pytest.fixture(scope="module")
def real(tokenizer: Tokenizer) -> Tokenizer:
    directory = os.environ.get("QWEN3_TOKENIZER_DIR")
    if not directory:
        pytest.skip("QWEN3_TOKENIZER_DIR is not set; it may point to Qwen3's own tokenizer files")
    config = json.loads((Path(directory) / "tokenizer_config.json").read_text(encoding="utf-8"))
    return Tokenizer(tokenizer._tokenizer, config["chat_template"])


@pytest.mark.parametrize("name", CASES)
def test_template_renders_qwen3s_text(tokenizer: Tokenizer, name: str) -> None:
    turns, thinking, prompt, expected = CASES[name]
    assert tokenizer.render_chat(messages_of(turns), thinking, prompt) == expected


@pytest.mark.parametrize("name", CASES)
def test_transformers_renders_the_same(of_transformers: Any, name: str) -> None:
    turns, thinking, prompt, expected = CASES[name]
    text = of_transformers.apply_chat_template(
        messages_of(turns), tokenize=False, add_generation_prompt=prompt, enable_thinking=thinking
    )
    assert text == expected


def test_thinking_is_on_when_nothing_is_said(of_transformers: Any) -> None:
    messages = [{"role": "user", "content": "Hi!"}]
    text = of_transformers.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == CASES["one question"][-1]


@pytest.mark.parametrize("name", CASES)
def test_expected_text_is_that_of_the_real_template(real: Tokenizer, name: str) -> None:
    turns, thinking, prompt, expected = CASES[name]
    assert real.render_chat(messages_of(turns), thinking, prompt) == expected


def test_template_equals_the_real_one_on_all_short_conversations(real: Tokenizer, tokenizer: Tokenizer) -> None:
    turns: list[Turn] = [
        ("system", "Be brief."),
        ("user", "Hi!"),
        ("user", "  a\nb "),
        ("assistant", "Hello."),
        ("assistant", "<think>\nhm\n</think>\n\nYes."),
        ("assistant", "<think>\n\n</think>\n\nYes."),
        ("assistant", "Yes.", "I think.\n"),
        ("assistant", "\n\nx </think> y", ""),
        ("assistant", ""),
    ]
    for length in (1, 2, 3):
        for chosen in product(turns, repeat=length):
            messages = messages_of(list(chosen))
            for thinking, prompt in ((True, True), (False, True), (True, False)):
                expected = real.render_chat(messages, thinking, prompt)
                assert tokenizer.render_chat(messages, thinking, prompt) == expected, chosen


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "tool", "content": "42"}, "has the role 'tool'; it must be system, user or assistant"),
        ({"role": "user", "content": ["Hi!"]}, "a content that is not text"),
        ({"role": "user"}, "a content that is not text"),
    ],
)
def test_what_the_template_does_not_know_is_refused_in_a_sentence(
    tokenizer: Tokenizer, message: Message, reason: str
) -> None:
    with pytest.raises(TokenizerError, match=reason):
        tokenizer.render_chat([message])
