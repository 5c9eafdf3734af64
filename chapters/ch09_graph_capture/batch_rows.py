"""Several sequences decoded together, each of them a `DrawingEngine` that takes its turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decoder import MOST_ROWS, Decoder, Run
from qwen3_ref.sampling import SamplingParams

BLOCK_SIZE = 16


class BatchRow:
    """One row of a decoder. Whoever asks first for a token that is not drawn yet has all rows take a step."""

    def __init__(self, decoder: Decoder, row: int, max_context: int) -> None:
        self.config, self.device, self.max_context = decoder.model.config, decoder.model.device, max_context
        self._decoder, self._row = decoder, row
        self._run: Run | None = None

    @property
    def length(self) -> int:
        """Tokens held in the cache."""
        return 0 if self._run is None else self._run.held

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams, limit: int) -> None:
        """Computes the prompt. Once all rows have begun, none of them decodes alone.

        Raises:
            ValueError: as `Decoder.start`.
        """
        self._run = self._decoder.start(self._row, prompt_ids, sampling, limit)

    def tokens(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, history: Sequence[int], limit: int
    ) -> Generator[int, None, None]:
        """See `DrawingEngine`: the tokens of the run that has begun, else of one that begins now."""
        if self._run is None:
            self.begin(prompt_ids, sampling, limit)
        run = self._run
        assert run is not None
        try:
            while (token := self._decoder.next(run)) is not None:
                yield token
        finally:
            self._decoder.finish(run)
            self._decoder.cache.free(run.sequence)
            self._run = None


def cache_for(model: PagedModel, contexts: Sequence[int]) -> PagedKVCache:
    """A cache that holds a sequence of each of these lengths at once.

    Raises:
        ValueError: the model has no positions for one of them.
    """
    tokens = sum(-(-context // BLOCK_SIZE) * BLOCK_SIZE for context in contexts)
    return model.new_cache(tokens=tokens, block_size=BLOCK_SIZE, max_sequences=len(contexts), max_context=max(contexts))


def batch_rows(
    model: PagedModel,
    contexts: Sequence[int],
    *,
    w8_head: W8Head | None = None,
    graphs: bool = True,
    report: Callable[[str], None] | None = None,
) -> list[BatchRow]:
    """A row for each of `contexts`, the most tokens that its prompt and answer have together.

    Raises:
        ValueError: there is no context, more than 8, or one that the model has no positions for.
    """
    if not 1 <= len(contexts) <= MOST_ROWS:
        raise ValueError(f"{len(contexts)} sequences are to be decoded together; it must be from 1 to {MOST_ROWS}.")
    decoder = Decoder(
        model, cache_for(model, contexts), rows=len(contexts), w8_head=w8_head, graphs=graphs, report=report
    )
    return [BatchRow(decoder, row, context) for row, context in enumerate(contexts)]
