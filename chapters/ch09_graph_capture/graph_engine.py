"""The stage of chapters 4 to 9 in the generator: one sequence, whose tokens are drawn on the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from torch import Tensor

from chapters.ch06_split_attention.paged_engine import PagedEngine
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decoder import Decoder, Run
from qwen3_ref.sampling import SamplingParams


class GraphEngine(PagedEngine):
    """A `DrawingEngine` on the decode kernels. `prefill` and `decode`, which give logits, are those of `PagedEngine`.

    Args:
        model, max_context, sizes: as for `PagedEngine`.
        w8_head, graphs, report: as for `Decoder`.
    Raises:
        ValueError: as `PagedEngine` and `Decoder`.
    """

    def __init__(
        self,
        model: PagedModel,
        max_context: int,
        *,
        w8_head: W8Head | None = None,
        graphs: bool = True,
        report: Callable[[str], None] | None = None,
        **sizes: int,
    ) -> None:
        super().__init__(model, max_context, **sizes)
        self.decoder = Decoder(model, self.cache, w8_head=w8_head, graphs=graphs, report=report)
        self._run: Run | None = None  # the newest; it has the row until it is finished

    @property
    def length(self) -> int:
        return super().length if self._run is None else self._run.held

    def reset(self, length: int = 0) -> None:
        self._leave()
        super().reset(length)

    def prefill(self, token_ids: Sequence[int]) -> Tensor:
        self._leave()
        return super().prefill(token_ids)

    def tokens(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, history: Sequence[int], limit: int
    ) -> Generator[int, None, None]:
        """See `DrawingEngine`. A second run, `reset` or `prefill` ends the first one."""
        self._leave()
        self._run = run = self.decoder.start(
            0, prompt_ids, sampling, limit, sequence=self._sequence, seen=history, chunk=self.chunk
        )
        try:
            while (token := self.decoder.next(run)) is not None:
                yield token
        finally:
            if self._run is run:
                self._leave()

    def _leave(self) -> None:
        if self._run is not None:
            self.decoder.finish(self._run)
            self._run = None
