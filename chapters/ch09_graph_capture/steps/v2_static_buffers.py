"""v2: what a step reads and writes has its place, and the device goes on by itself. Launches are as many as kernels."""

from __future__ import annotations

import torch

from chapters.ch09_graph_capture.decode_rows import DecodeRows
from chapters.ch09_graph_capture.decode_step import DecodeStep, StepKind
from chapters.ch09_graph_capture.starting_batch import StartingBatch


class Decoding:
    """Greedy decoding on `DecodeStep`, launch by launch."""

    # --8<-- [start:step]
    def __init__(self, start: StartingBatch) -> None:
        model, cache, rows = start.model, start.cache, len(start.sequences)
        sizes = model.config.hidden_size, model.config.vocab_size
        pages, longest = cache.indices.block_table.shape[1], max(start.lengths) + start.room
        self.start = start
        longer = cache.max_context + 1  # the last token is drawn, and never computed with
        self.rows = DecodeRows.at_rest(rows, *sizes, pages, longer, model.device)
        self.run = DecodeStep(model, cache, self.rows)
        # One plan for all lengths to come: grids do not depend on how far the text has got.
        plan = model.plans(rows, model.config.num_key_value_heads, longest, model.device)
        self.kind = StepKind(rows, plan, greedy=True)

    @torch.inference_mode()
    def begin(self) -> None:
        start = self.start
        start.rewind()
        # All pages now: no step will ask for one.
        start.cache.append(start.sequences, [start.room] * len(start.sequences))
        for row, sequence in enumerate(start.sequences):
            self.rows.place(row, start.cache.block_table(sequence), start.lengths[row])
            self.run.begin(row, start.logits[row], greedy=True)
        self.count = 1

    @torch.inference_mode()
    def step(self) -> None:
        self.enqueue()
        self.count += 1

    def enqueue(self) -> None:
        self.run(self.kind)  # the same kernels, the same arguments, at every token

    # --8<-- [end:step]

    def tokens(self) -> list[list[int]]:
        if self.start.model.device.type == "cuda":
            torch.cuda.synchronize()  # the history is in memory of the host: nothing is copied
        history = self.rows.history
        return [history[row, n : n + self.count].tolist() for row, n in enumerate(self.start.lengths)]
