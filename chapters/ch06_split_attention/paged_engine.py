"""The stage of chapters 4 to 6 in the generator: one sequence of a `PagedModel` behind `qwen3_ref.generate.Engine`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chapters.ch06_split_attention.paged_model import CHUNK, PagedModel


class PagedEngine:
    """An `Engine` with keys and values in pages. All memory of the cache is taken here and never moves.

    Args:
        max_context: tokens that the cache must hold.
        budget_bytes: the most that K and V of all layers may take; by default as much as `max_context` needs.
        block_size: tokens of a page.
        chunk: tokens of a prompt that are computed at once.
    Raises:
        ValueError: an argument is out of range, or the budget does not hold `max_context` tokens.
    """

    def __init__(
        self,
        model: PagedModel,
        max_context: int,
        *,
        budget_bytes: int | None = None,
        block_size: int = 16,
        chunk: int = CHUNK,
    ) -> None:
        limit = model.config.max_position_embeddings
        if not 1 <= max_context <= limit:
            raise ValueError(f"max_context is {max_context}; it must be from 1 to {limit}, the model's positions.")
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; it must be at least 1.")
        self.model, self.config, self.device = model, model.config, model.device
        self.max_context, self.chunk = max_context, chunk
        size = {"tokens": max_context} if budget_bytes is None else {"budget_bytes": budget_bytes}
        self.cache = model.new_cache(**size, block_size=block_size, max_sequences=1, max_context=max_context)
        self._sequence = self.cache.allocate()

    @property
    def length(self) -> int:
        return self.cache.length(self._sequence)

    def reset(self, length: int = 0) -> None:
        self.cache.truncate(self._sequence, length)

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        return self.model.prefill(self.cache, self._sequence, token_ids, self.chunk)

    def decode(self, token_id: int) -> Tensor:
        return self.model.decode(self.cache, [self._sequence], [token_id])[0]
