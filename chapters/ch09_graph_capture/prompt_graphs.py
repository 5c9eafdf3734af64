"""A prompt's first chunk as a CUDA graph: one of a few lengths, to which shorter prompts are filled up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from chapters.ch04_paged_kv.paged_cache import Batch, PagedKVCache
from chapters.ch06_split_attention.paged_model import CHUNK, PagedModel, appended
from chapters.ch09_graph_capture.launch_graphs import LaunchGraphs
from qwen3_ref.model import attention_kernels

LONGEST = CHUNK  # tokens of a graph: a longer prompt takes several chunks, which attend to pages
LENGTHS = (1024, 128), (4096, 512), (LONGEST, 1024)  # up to so many tokens, multiples of so many
# From this length on cuDNN attends. It plans for each length, 60 ms on an H200, and 1 s the first time in a process;
# here five lengths are so long. With 16 heads of Q and 8 of K it takes 13.3 ms of 28 layers at 8,192 tokens, where
# PyTorch's flash attention takes 27; at 1,024 tokens a whole prompt gains 0.5 ms. Only the length decides, never
# whether there is a plan: so a prompt has the same bits every time.
CUDNN_FROM = 4096


# --8<-- [start:padded]
def padded_length(tokens: int) -> int:
    """How long a graph is that takes a prompt of 1 to `LONGEST` tokens."""
    step = next(step for most, step in LENGTHS if tokens <= most)
    return -(-tokens // step) * step


# --8<-- [end:padded]


class PromptGraphs:
    """Computes prompts as `PagedModel.prefill`: those that begin a sequence and are one chunk as graphs.

    They are filled up with tokens that nobody attends to, whose K and V are not kept. Without graphs a GPU does the
    same launch by launch, so that graphs change no bit. On a CPU, where launches cost nothing, and for all other
    prompts it is `PagedModel.prefill` itself.

    Args:
        model, cache: the cache's memory is what the graphs write to.
        enabled, report: as for `LaunchGraphs`.
    Attributes:
        graphs: of lengths in tokens.
    """

    def __init__(
        self,
        model: PagedModel,
        cache: PagedKVCache,
        enabled: bool = True,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.cache = model, cache
        device, slots = model.device, len(cache.indices.slot_mapping)
        self.graphs = LaunchGraphs[int](self._first_chunk, device, enabled, report, "CUDA graphs of prompts")
        self._tokens = torch.zeros(min(LONGEST, slots), dtype=torch.int64, device=device)
        self._last = torch.zeros(1, dtype=torch.int64, device=device)
        self._logits = torch.empty(model.config.vocab_size, dtype=torch.float32, device=device)

    def __call__(self, sequence: int, token_ids: Sequence[int], chunk: int = CHUNK) -> Tensor:
        """Arguments, result and errors: those of `PagedModel.prefill`. The next call may overwrite the result."""
        first = 1 <= len(token_ids) <= min(chunk, LONGEST) and self.cache.length(sequence) == 0
        if self.model.device.type == "cuda" and first:
            return self.padded(sequence, token_ids)
        return self.model.prefill(self.cache, sequence, token_ids, chunk)

    # --8<-- [start:prompt]
    @torch.inference_mode()
    def padded(self, sequence: int, token_ids: Sequence[int]) -> Tensor:
        """The same for 1 to `LONGEST` tokens of an empty sequence, on any device: filled up, as a graph if there are.

        Four tensors say what differs from prompt to prompt: tokens, the index of the last, and where the cache has laid
        down positions and slots. Behind the prompt's own the cache has put position 0 and slot −1, which keeps nothing.
        """
        tokens = self.model.checked(token_ids)
        count, length = len(tokens), min(padded_length(len(tokens)), len(self._tokens))
        with appended(self.cache, [sequence], [count]):
            self._tokens[:length].copy_(pad(tokens, (0, length - count)), non_blocking=True)
            self._last.fill_(count - 1)
            self.graphs(length)
        return self._logits

    def _first_chunk(self, length: int) -> None:
        where, tokens = self.cache.indices, self._tokens[:length]
        batch = Batch(
            where.positions[:length], where.slot_mapping[:length],
            where.block_table[:1], where.context_lens[:1],
        )  # fmt: skip
        with attention_kernels(tokens, prefer_cudnn=length >= CUDNN_FROM):
            self._logits.copy_(self.model.first_chunk(self.cache, tokens, batch, self._last))

    # --8<-- [end:prompt]
