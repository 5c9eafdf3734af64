"""The generation loop: prefill once, then decode token by token, streaming text as it becomes certain.

`Engine` is the seam at which the kernel stages replace the reference model.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from qwen3_ref.cache import KVCache
from qwen3_ref.config import Qwen3Config
from qwen3_ref.model import Qwen3
from qwen3_ref.sampling import Sampler, SamplingParams
from qwen3_ref.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


class Engine(Protocol):
    """A model with one sequence in its KV cache."""

    config: Qwen3Config
    max_context: int
    device: torch.device

    @property
    def length(self) -> int:
        """Tokens held in the cache."""

    def reset(self, length: int = 0) -> None:
        """Forgets every token behind the first `length`."""

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        """Appends `token_ids` (at least one) and returns the logits after the last, `[V]` float32."""

    def decode(self, token_id: int) -> Tensor:
        """Appends one token and returns the logits after it, `[V]` float32."""


@runtime_checkable
class DrawingEngine(Protocol):
    """A model with one sequence, which draws where its logits are and hands out tokens only."""

    config: Qwen3Config
    max_context: int
    device: torch.device

    @property
    def length(self) -> int:
        """Tokens held in the cache."""

    def tokens(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, history: Sequence[int], limit: int
    ) -> Iterator[int]:
        """Appends `prompt_ids`, and draws up to `limit` tokens after them. `history`: all ids before `prompt_ids`.

        Raises:
            ValueError: the logits hold a NaN, or no finite value.
        """


class ReferenceEngine:
    """The `Engine` that runs `qwen3_ref.Qwen3`.

    Args:
        max_context: tokens that the KV cache holds; at most the model's `max_position_embeddings`.
    Raises:
        ValueError: `max_context` is out of range.
    """

    def __init__(self, model: Qwen3, max_context: int) -> None:
        limit = model.config.max_position_embeddings
        if not 1 <= max_context <= limit:
            raise ValueError(f"max_context is {max_context}; it must be from 1 to {limit}, the model's positions.")
        self.model, self.config, self.max_context, self.device = model, model.config, max_context, model.device
        self._cache = KVCache(model.config, 1, max_context, model.dtype, model.device)

    @property
    def length(self) -> int:
        return self._cache.length

    def reset(self, length: int = 0) -> None:
        if not 0 <= length <= self._cache.length:
            raise ValueError(f"length is {length}; it must be from 0 to {self._cache.length}, the tokens held.")
        self._cache.length = length

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        tokens = torch.tensor([list(token_ids)], dtype=torch.int64, device=self.device)
        return self.model(tokens, self._cache, last_only=True)[0, -1].float()

    def decode(self, token_id: int) -> Tensor:
        if self.device.type != "cpu" or self.model.dtype != torch.bfloat16:
            return self.prefill([token_id])
        # PyTorch hands bfloat16 products to oneDNN where the CPU has bfloat16 instructions, a single row as well. Its
        # own kernel for one row is 1.6 times as fast, and also sums in float32. The switch is the process's.
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment] # a property of the module
        try:
            return self.prefill([token_id])
        finally:
            torch.backends.mkldnn.enabled = before


class Piece(NamedTuple):
    """One step of a generation: the token, and the text that it made certain (it may be empty)."""

    token_id: int
    text: str


class Generation:
    """A running generation: iterate over it for `Piece`s, or call `run`. The figures are complete at the end.

    Tokens already in the engine's cache are kept and count as context: reset it for a fresh prompt.

    Args:
        prompt_ids: token ids to prefill; at least one.
        max_new_tokens: of the answer; the engine's context may end it earlier.
        stop: strings that end the text; neither they nor what follows is ever given out.
        stop_ids: tokens that end the text; by default the model's own.
        history: ids before `prompt_ids` that the repetition penalty should see.
    Attributes:
        token_ids: every token drawn, a stop token included.
        text: all text given out.
        finish_reason: "stop" (stop token or string), "length" (token limit or full context), None while running.
        prefill_s, decode_s: seconds to draw the first token, and all others; the time of whoever reads is not in them.
    Raises:
        ValueError: the prompt is empty, longer than the engine's context or holds an unknown id; a limit is negative.
    """

    def __init__(
        self,
        engine: Engine | DrawingEngine,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        history: Sequence[int] = (),
    ) -> None:
        vocab, room = engine.config.vocab_size, engine.max_context - engine.length
        if not prompt_ids:
            raise ValueError("the prompt is empty; it must hold at least one token.")
        if len(prompt_ids) > room:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens; the context of {engine.max_context} has room for {room}."
            )
        if min(prompt_ids) < 0 or max(prompt_ids) >= vocab:
            raise ValueError(f"the prompt holds token ids outside 0 to {vocab - 1}; model and tokenizer do not match.")
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 0.")
        if isinstance(stop, str):  # a string is a sequence of strings too: each of its letters would stop the text
            raise ValueError(f"stop is the string {stop!r}; it must be a list of strings, even for one.")
        if any(not text for text in stop):
            raise ValueError("stop holds an empty string; each stop string must have a character.")
        self.prompt_ids = list(prompt_ids)
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.prefill_s = self.decode_s = 0.0
        self._engine, self._tokenizer = engine, tokenizer
        self._sampling = sampling or SamplingParams()
        self._limit = min(max_new_tokens, room - len(prompt_ids) + 1)  # the last one need not go into the cache
        self._stop_ids = frozenset(engine.config.eos_token_ids if stop_ids is None else stop_ids)
        self._filter = StopFilter(stop)
        self._history = list(history)
        self._pieces = self._loop()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def run(self) -> Generation:
        """Runs to the end and returns itself."""
        for _ in self._pieces:
            pass
        return self

    def _give(self, text: str) -> str:
        self.text += text
        return text

    # --8<-- [start:loop]
    def _loop(self) -> Iterator[Piece]:
        stream = self._tokenizer.stream()
        start = time.perf_counter()
        with closing(self._drawn()) as tokens:
            for token in tokens:
                now = time.perf_counter()  # the draw has waited for the logits
                if self.token_ids:
                    self.decode_s += now - start
                else:
                    self.prefill_s = now - start
                self.token_ids.append(token)
                if token in self._stop_ids:
                    self.finish_reason = "stop"
                    yield Piece(token, self._give(self._filter.push(stream.flush()) + self._filter.flush()))
                    return
                text = self._filter.push(stream.push(token))
                full = len(self.token_ids) == self._limit
                if full:
                    text += self._filter.push(stream.flush()) + self._filter.flush()
                if self._filter.stopped or full:
                    self.finish_reason = "stop" if self._filter.stopped else "length"
                yield Piece(token, self._give(text))
                if self.finish_reason:
                    return
                start = time.perf_counter()
        self.finish_reason = "length"  # no token was asked for

    def _drawn(self) -> Generator[int, None, None]:
        """The tokens, one after the other, up to the limit."""
        engine, sampling = self._engine, self._sampling
        if isinstance(engine, DrawingEngine):
            if self._limit > 0:
                yield from engine.tokens(self.prompt_ids, sampling, self._history, self._limit)
            return
        sampler, seen = Sampler(sampling), [*self._history, *self.prompt_ids]
        logits = engine.prefill(self.prompt_ids)
        for number in range(self._limit):
            seen.append(sampler(logits, seen))
            yield seen[-1]
            if number + 1 < self._limit:
                logits = engine.decode(seen[-1])

    # --8<-- [end:loop]


def generate(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: SamplingParams | None = None,
    stop: Sequence[str] = (),
) -> Generation:
    """Starts a generation on an engine that is reset first. See `Generation`."""
    engine.reset()
    return Generation(engine, tokenizer, prompt_ids, max_new_tokens, sampling, stop)


class StopFilter:
    """Lets text through up to the first stop string; holds back what could be the beginning of one.

    The first is the one that ends first, so that the answer does not depend on how the text falls into pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that can be shown now."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            _, start = min(found)
            shown, self._held = self._held[:start], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back, once it is certain that no stop string follows."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
