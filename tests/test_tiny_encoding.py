"""The tokenizer of the tiny checkpoint, and the encoder that does the same faster."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer as RawTokenizer

from qwen3_ref.tiny_training import bpe
from qwen3_ref.tiny_training.encoding import CachedEncoder
from tests.foreign_texts import FOREIGN


def test_vocabulary_has_no_gap(tokenizer: RawTokenizer) -> None:
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    assert ids == list(range(bpe.VOCAB_SIZE))
    merged = len(tokenizer.get_vocab(with_added_tokens=False))
    assert merged == bpe.VOCAB_SIZE - len(bpe.ADDED_TOKENS)
    assert [tokenizer.token_to_id(token) for token in bpe.ADDED_TOKENS] == list(range(merged, bpe.VOCAB_SIZE))


@pytest.mark.parametrize("text", FOREIGN)
def test_any_text_comes_back(tokenizer: RawTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_general_english_takes_few_tokens(tokenizer: RawTokenizer) -> None:
    text = "The government will publish a report about the economy and the environment before the end of the year."
    assert len(tokenizer.encode(text).ids) <= 2 * len(text.split())


@pytest.mark.parametrize(
    "text",
    [
        *FOREIGN,
        "",
        "it's  'S\t\tend\r\n\n x",
        "<|im_end|>\n<think>a</think>?<|im_start|",
        "3+4=7 \x1c\x0b",
    ],
)
def test_the_fast_encoder_gives_the_same_ids(tokenizer: RawTokenizer, encoder: CachedEncoder, text: str) -> None:
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text) == expected
    assert encoder.encode(text) == expected, "now from what it has kept"


def test_the_fast_encoder_splits_any_ascii_as_the_tokenizer_does(
    tokenizer: RawTokenizer, encoder: CachedEncoder
) -> None:
    rng = Random("ascii")
    pieces = [*(chr(i) for i in range(128)), "  ", "\n\n", "'ll", "word", "17", "<think>", "<|im_end|>"]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=12))
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)
