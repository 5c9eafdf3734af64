"""What the tests of the tiny checkpoint's training share."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RawTokenizer

from qwen3_ref.tiny_training import bpe
from qwen3_ref.tiny_training.encoding import CachedEncoder


@pytest.fixture(scope="session")
def tokenizer() -> RawTokenizer:
    """A tokenizer of the full vocabulary, trained on few documents."""
    return bpe.train_tokenizer(seed=0, documents=300)


@pytest.fixture(scope="session")
def encoder(tokenizer: RawTokenizer) -> CachedEncoder:
    """The faster encoder of that tokenizer."""
    return CachedEncoder(tokenizer)
