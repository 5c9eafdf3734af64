"""Sequences that are decoded together, each in a row of its own; the host follows one step behind.

    decoder = Decoder(model, cache)
    decoder.start(0, prompt, SamplingParams(), new_tokens=100)
    while …:
        decoder.step()                  # enqueued; the device need not have begun it
        token = decoder.token(0, n)     # the row's n-th token: waits until it is drawn

The device writes each token into memory that the host can read, so the host asks for nothing: it looks. It enqueues the
next step before it looks for the token of the last one. So the device always has work, and that a text has ended costs
one step that nobody needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from chapters.ch06_split_attention.paged_model import CHUNK, PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decode_rows import UNKNOWN, DecodeRows
from chapters.ch09_graph_capture.decode_step import DecodeStep, StepKind
from chapters.ch09_graph_capture.step_graphs import StepGraphs
from qwen3_ref.sampling import SamplingParams

MOST_ROWS = 8


@dataclass
class _Row:
    """What the host knows of a row. `drawn`: tokens that the steps enqueued so far draw, the first among them."""

    sequence: int
    first: int  # the position of its first drawn token
    room: int  # tokens that may be drawn
    greedy: bool
    drawn: int = 1


class Decoder:
    """Decodes up to `rows` sequences of `cache` on the kernels of chapters 4 to 9.

    Args:
        model: in bfloat16 or float16, its cache in the same dtype.
        cache: holds every token of every row at once; `max_context` limits a row.
        w8_head: in place of the model's head.
        graphs: on a GPU, run steps as CUDA graphs.
        report: gets a sentence when graphs cannot be used.
    Raises:
        ValueError: an argument does not meet this.
    """

    def __init__(
        self,
        model: PagedModel,
        cache: PagedKVCache,
        *,
        rows: int = 1,
        w8_head: W8Head | None = None,
        graphs: bool = True,
        report: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= rows <= min(MOST_ROWS, cache.max_sequences):
            raise ValueError(f"rows is {rows}; it must be from 1 to {min(MOST_ROWS, cache.max_sequences)}.")
        config = model.config
        sizes = config.hidden_size, config.vocab_size, cache.indices.block_table.shape[1], cache.max_context + 1
        self.model, self.cache = model, cache
        self.rows = DecodeRows.at_rest(rows, *sizes, model.device)
        self._step = DecodeStep(model, cache, self.rows, w8_head)
        self.graphs = StepGraphs(self._step, model.device, graphs, report)
        self._rows: list[_Row | None] = [None] * rows
        self._history = self.rows.history.numpy() if model.device.type == "cuda" else None
        self._done = torch.cuda.Event() if model.device.type == "cuda" else None

    @torch.inference_mode()
    def start(
        self,
        row: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        new_tokens: int,
        *,
        sequence: int | None = None,
        seen: Sequence[int] = (),
        chunk: int = CHUNK,
    ) -> int:
        """Computes a prompt, and enqueues the draw of its first token. Returns the sequence in the cache.

        Args:
            row: one that is not in use.
            new_tokens: the most that will be drawn. Room for all of them is taken now, so that no step needs the host.
            sequence: one of the cache, which the prompt goes on with; None begins a new one.
            seen: tokens before `prompt` that the repetition penalty is for.
        Raises:
            OutOfBlocks: the cache has not enough free blocks for prompt and new tokens.
            ValueError: the row is in use, the prompt is empty, or prompt and new tokens are longer than a sequence may
                be.
        After an error the cache holds what it held.
        """
        if self._rows[row] is not None:
            raise ValueError(f"row {row} is in use; finish it first.")
        if new_tokens < 1:
            raise ValueError(f"new_tokens is {new_tokens}; it must be at least 1.")
        fresh = sequence is None
        name = self.cache.allocate() if sequence is None else sequence
        before = self.cache.length(name)
        try:
            logits = self.model.prefill(self.cache, name, prompt, chunk)
            length = self.cache.length(name)
            if new_tokens > 1:
                self.cache.append([name], [new_tokens - 1])  # the last token is drawn, but nothing is computed from it
        except BaseException:
            self.cache.free(name) if fresh else self.cache.truncate(name, before)
            raise
        if self._done is not None:
            self._done.synchronize()  # a step ahead of its time may still write into the row's history
        self.rows.place(row, self.cache.block_table(name), length)
        self.rows.draw_by(row, sampling, (*seen, *prompt))
        greedy = sampling.greedy and sampling.repetition_penalty == 1
        self._step.begin(row, logits, greedy)
        self._rows[row] = _Row(name, length, new_tokens, greedy)
        self._mark()
        return name

    @torch.inference_mode()
    def step(self) -> None:
        """Enqueues a step of all rows in use that still have room. Without any, nothing happens."""
        going = [(row, one) for row, one in enumerate(self._rows) if one is not None and one.drawn < one.room]
        if not going:
            return
        count = 1 + max(row for row, _ in going)
        longest = max(one.first + one.drawn for _, one in going)
        plan = self.model.plans(count, self.model.config.num_key_value_heads, longest, self.model.device)
        self.graphs(StepKind(count, plan, all(one.greedy for _, one in going)))
        for _, one in going:
            one.drawn += 1
        self._mark()

    def drawn(self, row: int) -> int:
        """Tokens of a row that the steps enqueued so far draw, its first one among them."""
        return self._known(row).drawn

    def token(self, row: int, number: int) -> int:
        """The row's token `number`, from 0 on. Waits until it is drawn; −1 says that none could be.

        That is so where the largest logit is NaN or infinite, and behind such a token.

        Raises:
            ValueError: no step that draws it has been enqueued, or the row is not in use.
            RuntimeError: the device has failed.
        """
        one = self._known(row)
        if not 0 <= number < one.drawn:
            raise ValueError(f"token {number} of row {row} is asked for; steps for {one.drawn} have been enqueued.")
        at = one.first + number
        if self._history is None or self._done is None:
            return int(self.rows.history[row, at])
        while self._history[row, at] == UNKNOWN:
            if self._done.query():  # all steps have ended, or query() raises what stopped them
                break
            time.sleep(0)
        return int(self._history[row, at])

    def held(self, row: int, tokens: int) -> int:
        """Tokens of the row's sequence whose K and V are in the cache, at most `tokens` drawn ones among them."""
        one = self._known(row)
        return min(one.first + one.drawn - 1, one.first + tokens)

    @torch.inference_mode()
    def finish(self, row: int, tokens: int) -> None:
        """The row is free again. Its sequence stays in the cache, with as many tokens as `held` says."""
        one, held = self._known(row), self.held(row, tokens)
        self.rows.rest(row)
        self._rows[row] = None
        self.cache.truncate(one.sequence, held)

    def _known(self, row: int) -> _Row:
        one = self._rows[row]
        if one is None:
            raise ValueError(f"row {row} is not in use; start it first.")
        return one

    def _mark(self) -> None:
        if self._done is not None:
            self._done.record()
