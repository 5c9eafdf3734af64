"""The integers that kernels read, in tensors that never move, so that a CUDA graph can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Where the tokens of one `append` go, and what attention will read. `t` new tokens of `b` sequences, all int32.

    Attributes:
        positions: `[t]`, of each token within its sequence.
        slot_mapping: `[t]`, where K and V of each token go.
        block_table: `[b, max_blocks]`; behind the blocks of a sequence the row holds zeros.
        context_lens: `[b]`, tokens of each sequence, the new ones among them.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    context_lens: Tensor


class DeviceIndices:
    """`positions`, `slot_mapping`: `[max_tokens]`; `block_table`: `[max_sequences, max_blocks]`; `context_lens`:
    `[max_sequences]`. All int32 on the device.

    What a batch leaves unused does no harm to a graph that was captured for a larger one: its slots are −1, which write
    nothing, its positions 0, its context lengths 0, its blocks 0.
    """

    def __init__(self, max_sequences: int, max_blocks: int, max_tokens: int, device: torch.device) -> None:
        def make(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        self.positions, self.slot_mapping = make(max_tokens), make(max_tokens, value=-1)
        self.block_table, self.context_lens = make(max_sequences, max_blocks), make(max_sequences)
        self._tokens = self._sequences = 0  # of the batch before
        self._rows: list[list[int]] = [[] for _ in range(max_sequences)]  # of the block table on the device

    def fill(
        self, starts: Sequence[int], counts: Sequence[int], blocks: Sequence[Sequence[int]], block_size: int
    ) -> Batch:
        """Writes a batch: sequence `i` has `starts[i]` tokens, gets `counts[i]` more, and lies in `blocks[i]`.

        The host does not wait: a copy of a few KiB from plain memory is staged before the call returns.
        """
        # By arrays: a prompt has thousands of tokens, and its first kernel waits for this.
        spans = list(zip(starts, counts, strict=True))
        positions = [np.arange(start, start + count, dtype=np.int32) for start, count in spans]
        slots = [_slots(*span, theirs, block_size) for span, theirs in zip(spans, blocks, strict=True)]
        lens = [start + count for start, count in spans]
        tokens, rows = sum(counts), len(lens)
        _send(self.positions, np.concatenate(positions), self._tokens, 0)
        _send(self.slot_mapping, np.concatenate(slots), self._tokens, -1)
        _send(self.context_lens, lens, self._sequences, 0)
        wanted = [list(row) for row in blocks] + [[] for _ in range(rows, self._sequences)]
        for row, theirs in enumerate(wanted):
            if theirs != self._rows[row]:  # in 15 of 16 steps of decoding nothing has changed
                _send(self.block_table[row], theirs, len(self._rows[row]), 0)
                self._rows[row] = theirs
        self._tokens, self._sequences = tokens, rows
        return Batch(
            self.positions[:tokens], self.slot_mapping[:tokens], self.block_table[:rows], self.context_lens[:rows]
        )


def _slots(start: int, count: int, blocks: Sequence[int], block_size: int) -> Indices:
    """Those of `count` tokens behind `start` others of a sequence."""
    first, end = start // block_size, -(-(start + count) // block_size)
    pages = np.array(blocks[first:end], dtype=np.int32)
    slots: Indices = np.add.outer(pages * np.int32(block_size), np.arange(block_size, dtype=np.int32)).reshape(-1)
    return slots[start - first * block_size :][:count]


def _send(to: Tensor, values: Sequence[int] | Indices, before: int, unused: int) -> None:
    """Writes `values` to the beginning of `to`, and `unused` over what is left there of the `before` earlier ones."""
    whole = np.full(max(before, len(values)), unused, dtype=np.int32)
    whole[: len(values)] = values
    to[: len(whole)].copy_(torch.from_numpy(whole), non_blocking=True)
