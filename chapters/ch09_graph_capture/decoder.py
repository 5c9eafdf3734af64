"""Sequences that are decoded together, each in a row of its own; the host follows one step behind.

    decoder = Decoder(model, cache, rows=2)
    runs = [decoder.start(row, prompt, SamplingParams(), new_tokens=100) for row, prompt in enumerate(prompts)]
    token = decoder.next(runs[0])       # enqueues a step of all rows where need be; waits for the token

The device writes each token into memory that the host can read, so the host asks for nothing: it looks. It enqueues
steps before it looks for the token of the last one. So the device always has work, and that a text has ended costs a
few steps that nobody needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.paged_model import CHUNK, PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decode_rows import UNKNOWN, DecodeRows
from chapters.ch09_graph_capture.decode_step import DecodeStep, StepKind
from chapters.ch09_graph_capture.prompt_graphs import PromptGraphs
from chapters.ch09_graph_capture.step_graphs import StepGraphs
from qwen3_ref.sampling import SamplingParams

MOST_ROWS = 8
STEPS = 4  # that follow each other in a graph, as far as nothing but memory changes


@dataclass(eq=False)
class Run:
    """A sequence in a row.

    Attributes:
        row, sequence: where: of the decoder, of the cache.
        first: the position of the first drawn token.
        room: tokens that may be drawn.
        drawn: tokens that the steps enqueued so far draw, the first among them.
        given: tokens that have been handed out.
    """

    row: int
    sequence: int
    first: int
    room: int
    greedy: bool
    drawn: int = 1
    given: int = 0

    @property
    def held(self) -> int:
        """Tokens of the sequence whose K and V are in the cache, drawn ones as far as they have been handed out."""
        return self.first + min(self.drawn - 1, self.given)


class Decoder:
    """Decodes up to `rows` sequences of `cache` on the kernels of chapters 4 to 9.

    Args:
        model: in bfloat16 or float16, its cache in the same dtype.
        cache: holds every token of every row at once; `max_context` limits a row.
        w8_head: in place of the model's head.
        graphs: on a GPU, run steps and prompts as CUDA graphs.
        report: gets a sentence when those of steps cannot be used, and one when those of prompts cannot.
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
        self.prompts = PromptGraphs(model, cache, graphs, report)
        self._runs: list[Run | None] = [None] * rows
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
    ) -> Run:
        """Computes a prompt, and enqueues the draw of its first token.

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
        if self._runs[row] is not None:
            raise ValueError(f"row {row} is in use; finish it first.")
        if new_tokens < 1:
            raise ValueError(f"new_tokens is {new_tokens}; it must be at least 1.")
        fresh = sequence is None
        name = self.cache.allocate() if sequence is None else sequence
        before = self.cache.length(name)
        try:
            logits = self.prompts(name, prompt, chunk)
            length = self.cache.length(name)
            if new_tokens > 1:
                self.cache.append([name], [new_tokens - 1])  # the last token is drawn, but nothing is computed from it
            if self._done is not None:
                self._done.synchronize()  # a step ahead of its time may still write into the row's history
            self.rows.place(row, self.cache.block_table(name), length)
            self.rows.draw_by(row, sampling, (*seen, *prompt))
            greedy = sampling.greedy and sampling.repetition_penalty == 1
            self._step.begin(row, logits, greedy)
            self._mark()
        except BaseException:
            self.cache.free(name) if fresh else self.cache.truncate(name, before)
            raise
        self._runs[row] = run = Run(row, name, length, new_tokens, greedy)
        return run

    # --8<-- [start:next]
    def next(self, run: Run) -> int | None:
        """The next token. None when the run has drawn all that it may, or has lost its row.

        Raises:
            ValueError: the largest logit is NaN or infinite.
            RuntimeError: the device has failed.
        """
        if self._runs[run.row] is not run or run.given == run.room:
            return None
        if run.drawn < min(run.given + 2, run.room):
            self.step()  # one ahead of the token that is looked for
        token = self._token(run)
        if token == UNKNOWN:
            raise ValueError(
                "the largest logit is not finite; the model's weights or activations are broken."
            )  # fmt: skip
        run.given += 1
        return token

    # --8<-- [end:next]

    @torch.inference_mode()
    def step(self) -> None:
        """Enqueues a step of all rows whose runs may draw more, or `STEPS` as a graph. Without any, nothing happens."""
        going = [run for run in self._runs if run is not None and run.drawn < run.room]
        if not going:
            return
        kind = self._kind(going)
        self.graphs(kind)
        for run in going:
            run.drawn += kind.steps
        self._mark()

    # --8<-- [start:kind]
    def _kind(self, going: Sequence[Run]) -> StepKind:
        """Of the next steps: `STEPS` of them, if all runs have room and one plan fits."""
        count = 1 + max(run.row for run in going)
        longest = max(run.first + run.drawn for run in going)

        def plan(context: int) -> Plan:
            heads = self.model.config.num_key_value_heads
            return self.model.plans(count, heads, context, self.model.device)

        one = StepKind(count, plan(longest), all(run.greedy for run in going))
        left = min(run.room - run.drawn for run in going)
        graph = self.graphs.enabled and self.graphs.knows(one)
        several = graph and left >= STEPS and plan(longest + STEPS - 1) == one.plan
        return one._replace(steps=STEPS) if several else one

    # --8<-- [end:kind]

    @torch.inference_mode()
    def finish(self, run: Run) -> None:
        """The row is free again, if it is still the run's. The sequence stays in the cache, `run.held` tokens long."""
        if self._runs[run.row] is run:
            self.rows.rest(run.row)
            self._runs[run.row] = None
            self.cache.truncate(run.sequence, run.held)

    def _token(self, run: Run) -> int:
        """The run's first token that has not been handed out; `UNKNOWN` if the steps are done and it is not there."""
        place = run.row, run.first + run.given
        if self._history is None or self._done is None:
            return int(self.rows.history[place])
        while self._history[place] == UNKNOWN:
            if self._done.query():  # all steps have ended, or query() raises what stopped them
                break
            time.sleep(0)  # others may run
        return int(self._history[place])

    def _mark(self) -> None:
        if self._done is not None:
            self._done.record()
