"""Settings of this chapter's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

pytest.register_assert_rewrite(
    "chapters.ch05_grouped_attention.paged_cases",
    "chapters.ch06_split_attention.split_checks",
    "chapters.ch06_split_attention.fused_cases",
    "chapters.ch06_split_attention.fused_checks",
)


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""


@pytest.fixture(scope="session")
def reference() -> Callable[[int], list[int]]:
    """The first tokens of the reference's story in float32, computed as far as they have been asked for."""
    from chapters.ch06_split_attention.tiny_story import FP32, PROMPT, TOKENS, story, weights
    from qwen3_ref.generate import ReferenceEngine

    pieces: Iterator[Any] = iter(story(ReferenceEngine(weights(FP32), 2048), PROMPT, TOKENS))
    known: list[int] = []

    def first(tokens: int) -> list[int]:
        known.extend(piece.token_id for piece in islice(pieces, max(0, tokens - len(known))))
        return known[:tokens]

    return first
