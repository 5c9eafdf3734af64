"""The tokenizer: byte-level BPE with Qwen's rules of splitting, trained on the grammar's text and on general words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from qwen3_ref.tiny_training.documents import write_document
from qwen3_ref.tiny_training.general_words import ENDINGS, GENERAL_WORDS, TOPICS

VOCAB_SIZE = 4096
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ADDED_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, "<think>", "</think>")
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# How Qwen cuts text before merges apply: contractions, words with a sign before them, single digits, signs, line ends.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GENERAL_WEIGHT = 3  # copies of each general word, so that it outweighs what is rare in the stories


def _texts(seed: int, documents: int) -> Iterator[str]:
    rng = Random(f"tokenizer {seed}")
    for _ in range(documents):
        text = write_document(rng).text
        for token in ADDED_TOKENS:
            text = text.replace(token, "\n")
        yield text
    for _ in range(_GENERAL_WEIGHT):
        yield from (f" {word}" for word in GENERAL_WORDS + TOPICS)
        yield from ENDINGS
        yield from (word.capitalize() for word in GENERAL_WORDS)


def train_tokenizer(seed: int = 0, documents: int = 20_000) -> Tokenizer:
    """A tokenizer of `VOCAB_SIZE` ids: bytes and merges first, then the added tokens.

    There is no gap between the two, because transformers rebuilds the tokenizer from vocabulary and merges and numbers
    the added tokens itself.
    Raises:
        ValueError: the text has too few different words to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, documents), trainer)
    for token in ADDED_TOKENS:
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=token.startswith("<|"))])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        size = tokenizer.get_vocab_size()
        raise ValueError(f"the tokenizer has {size} ids; it must have {VOCAB_SIZE}, so train it on more documents.")
    return tokenizer


def save_tokenizer(directory: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja, which transformers' AutoTokenizer reads."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token.startswith("<|"),
        }
        for token in ADDED_TOKENS
    }
    config: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "errors": "replace",
        "model_max_length": max_length,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (directory / CHAT_TEMPLATE.name).write_text(CHAT_TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
