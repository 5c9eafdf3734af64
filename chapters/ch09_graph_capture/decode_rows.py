"""What a decode step reads and writes beside weights and cache, in memory that never moves: CUDA graphs hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from qwen3_ref.sampling import SamplingParams
from qwen_cuda.operators import seen_tokens

UNKNOWN = -1  # in the history where no token has been written yet


@dataclasses.dataclass(frozen=True)
class DecodeRows:
    """Up to 8 sequences, a row each. `b` rows, `V` tokens of the vocabulary, `d` hidden.

    Attributes:
        h: float32 `[b, d]`, the embedding of each row's newest token.
        block_table: int32 `[b, max_blocks]`.
        context_lens, positions, slot_mapping: int32 `[b]`, of the newest token. A row at rest has a context of −1.
        draws: int64 `[b]`, tokens drawn so far.
        history: int64 `[b, max_context]`, the token at each position from the first drawn one on, `UNKNOWN` behind
            them. In pinned memory of the host where the device is a GPU.
        temperature, top_p, min_p, repetition_penalty: float32 `[b]`; top_k: int32 `[b]`; seeds: int64 `[b]`: how each
            row draws, as `sample_tokens` reads it.
        seen: int32 `[b, ceil(V / 32)]`, a bit for each token that the repetition penalty is for.
    """

    h: Tensor
    block_table: Tensor
    context_lens: Tensor
    positions: Tensor
    slot_mapping: Tensor
    draws: Tensor
    history: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    seeds: Tensor
    seen: Tensor

    @classmethod
    def at_rest(
        cls, rows: int, hidden: int, vocab: int, max_blocks: int, max_context: int, device: torch.device
    ) -> DecodeRows:
        """Rows without sequences."""

        def make(dtype: torch.dtype, *shape: int, value: int = 0) -> Tensor:
            return torch.full((rows, *shape), value, dtype=dtype, device=device)

        int32, int64, float32 = torch.int32, torch.int64, torch.float32
        history = torch.full((rows, max_context), UNKNOWN, pin_memory=device.type == "cuda")
        return cls(
            h=make(float32, hidden),
            block_table=make(int32, max_blocks),
            context_lens=make(int32, value=-1),
            positions=make(int32),
            slot_mapping=make(int32, value=-1),
            draws=make(int64),
            history=history,
            temperature=make(float32),
            top_k=make(int32),
            top_p=make(float32, value=1),
            min_p=make(float32),
            repetition_penalty=make(float32, value=1),
            seeds=make(int64),
            seen=make(int32, -(-vocab // 32)),
        )

    def part(self, rows: slice) -> DecodeRows:
        """Views of some rows."""
        return DecodeRows(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def place(self, row: int, blocks: Sequence[int], length: int) -> None:
        """Row `row` becomes a sequence of `length` tokens in `blocks`, which hold the tokens to come as well.

        Behind them the table holds −1: a row that goes on further comes to rest.
        """
        self.block_table[row].fill_(-1)
        self.block_table[row, : len(blocks)].copy_(torch.tensor(blocks, dtype=torch.int32), non_blocking=True)
        self.context_lens[row] = length
        self.history[row] = UNKNOWN

    def draw_by(self, row: int, sampling: SamplingParams, seen: Iterable[int]) -> None:
        """How the row's tokens are drawn from now on. `seen`: what the repetition penalty is for, to begin with."""
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            getattr(self, name)[row] = getattr(sampling, name)
        self.seeds[row] = sampling.seed or 0
        self.draws[row] = 0
        penalised = seen if sampling.repetition_penalty != 1 else ()
        self.seen[row].copy_(seen_tokens([penalised], 32 * self.seen.shape[1])[0])

    def rest(self, row: int) -> None:
        """The row takes part in steps no more."""
        self.context_lens[row], self.positions[row], self.slot_mapping[row] = -1, 0, -1
        self.h[row] = 0
