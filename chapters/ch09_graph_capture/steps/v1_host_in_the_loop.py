"""v1: chapter 6's engine. The host learns each token, works out what follows from it, and launches kernel by kernel."""

from __future__ import annotations

import torch

from chapters.ch09_graph_capture.starting_batch import StartingBatch


class Decoding:
    """Greedy decoding on `PagedModel`."""

    def __init__(self, start: StartingBatch) -> None:
        self.start = start

    # --8<-- [start:step]
    def begin(self) -> None:
        self.start.rewind()
        self.drawn = [self.start.logits.argmax(-1).tolist()]

    @torch.inference_mode()
    def step(self) -> None:
        start = self.start
        # Positions, slots and tables go to the device; some 230 launches follow.
        logits = start.model.decode(start.cache, start.sequences, self.drawn[-1])
        # .tolist() waits for all of them: until it returns, nothing is in the queue.
        self.drawn.append(logits.argmax(-1).tolist())

    # --8<-- [end:step]

    def tokens(self) -> list[list[int]]:
        return [list(row) for row in zip(*self.drawn, strict=True)]
