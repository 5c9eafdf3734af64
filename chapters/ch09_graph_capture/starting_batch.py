"""Where a decode begins that is measured or compared: sequences in a cache, and the logits of their last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch09_graph_capture.batch_rows import cache_for


@dataclass(frozen=True)
class StartingBatch:
    """A sequence a row, each with room to grow.

    Attributes:
        sequences: of `cache`, as long as `lengths`.
        logits: float32 `[b, V]`, from which each row's first token is drawn.
        room: tokens that each row may get behind its prompt.
    """

    model: PagedModel
    cache: PagedKVCache
    sequences: tuple[int, ...]
    lengths: tuple[int, ...]
    logits: Tensor
    room: int

    @classmethod
    def of_prompts(cls, model: PagedModel, prompts: Sequence[Sequence[int]], room: int) -> StartingBatch:
        """Prompts that the model has read."""
        start = cls._empty(model, [len(prompt) for prompt in prompts], room)
        for row, (sequence, prompt) in enumerate(zip(start.sequences, prompts, strict=True)):
            start.logits[row] = model.prefill(start.cache, sequence, prompt)
        return start

    @classmethod
    def of_noise(cls, model: PagedModel, rows: int, context: int, room: int) -> StartingBatch:
        """Keys and values that nothing was computed for: for times, on which their numbers have no influence."""
        start = cls._empty(model, [context] * rows, room)
        start.cache.append(start.sequences, start.lengths)
        random = torch.Generator(model.device).manual_seed(context)
        for layer in (*start.cache.k, *start.cache.v):
            layer.normal_(generator=random)
        start.logits.normal_(generator=random)
        return start

    @classmethod
    def _empty(cls, model: PagedModel, lengths: Sequence[int], room: int) -> StartingBatch:
        cache = cache_for(model, [length + room for length in lengths])
        logits = torch.empty(len(lengths), model.config.vocab_size, device=model.device)
        return cls(model, cache, tuple(cache.allocate() for _ in lengths), tuple(lengths), logits, room)

    def rewind(self) -> None:
        """Every sequence is as long as at the start."""
        for sequence, length in zip(self.sequences, self.lengths, strict=True):
            self.cache.truncate(sequence, length)
