"""What is asked of a model, once it is known that it can be answered."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chapters.ch11_generator.errors import ArgumentError
from chapters.ch11_generator.prompt import check_text
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Tokenizer


@dataclass(frozen=True)
class Request:
    """A prompt's ids, how many tokens may follow them, and how they are drawn: with a seed, unless greedily."""

    ids: list[int]
    max_new_tokens: int
    sampling: SamplingParams

    @property
    def context(self) -> int:
        """Tokens of prompt and answer, at most."""
        return len(self.ids) + self.max_new_tokens

    @property
    def seed(self) -> int | None:
        return None if self.sampling.greedy else self.sampling.seed


def request(
    tokenizer: Tokenizer,
    context: tuple[str, int],
    prompt: str,
    max_new_tokens: int,
    sampling: SamplingParams,
    stop: Sequence[str],
) -> Request:
    """Checks a prompt and the limits of its answer. `context`: the model's name and the tokens that it has room for.

    Raises:
        ArgumentError: the prompt is empty, is no valid text, or fills the context; a limit or stop is unusable.
    """
    check_text("the prompt", prompt)
    if isinstance(stop, str) or any(not text for text in stop):
        raise ArgumentError("stop must be a sequence of strings that are not empty.")
    if max_new_tokens < 1:
        raise ArgumentError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
    ids = tokenizer.encode(prompt)
    if not ids:
        raise ArgumentError("the prompt is empty; give at least one character.")
    name, size = context
    if len(ids) >= size:
        raise ArgumentError(
            f"the prompt has {len(ids)} tokens, but the context of {name} is {size} tokens and at least one must be "
            "left for the answer; shorten the prompt."
        )
    if not sampling.greedy and sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbelow(2**32))
    return Request(ids, min(max_new_tokens, size - len(ids)), sampling)
