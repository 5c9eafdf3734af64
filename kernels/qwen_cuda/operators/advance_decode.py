"""The end of a decode step: every row goes on with its new token, on the device (chapter 9)."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen_cuda.operators.registration import register


def advance_decode(
    ids: Tensor,
    embedding: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    draws: Tensor,
    history: Tensor,
    h: Tensor,
    num_blocks: int,
    block_size: int,
) -> None:
    """Row r goes on with token `ids[r]`: what the next decode step reads of it is written in place.

    Args:
        ids: int64 `[b]`.
        embedding: `[V, d]` in float16 or bfloat16.
        block_table: int32 `[b, max_blocks]`. What is no block of the cache ends the row's room.
        context_lens: int32 `[b]`, tokens of each row; written: the new one among them.
        positions, slot_mapping: int32 `[b]`, written: where the new token stands, and where its K and V go.
        draws: int64 `[b]`, written: tokens that the row has got in this way.
        history: int64 `[b, max_context]`, written: the token at its position. It may lie in pinned memory of the host,
            which then sees tokens without asking the device.
        h: float32 `[b, d]`, written: the token's embedding, as it is.
        num_blocks, block_size: of the cache.
    Raises:
        RuntimeError: an argument does not meet this; the sentence says which.

    A row whose table has no block for the token comes to rest with it: `draws` and `history` know it, and it is the
    row's last. One for which `ids` holds no token of the vocabulary, or the history no place, comes to rest without it.
    A row at rest stays so: its `context_lens` is −1, its slot −1, its position 0 and its `h` 0.
    """
    torch.ops.qwen_cuda.advance_decode(
        ids,
        embedding,
        block_table,
        context_lens,
        positions,
        slot_mapping,
        draws,
        history,
        h,
        num_blocks,
        block_size,
    )


def _fake_advance_decode(*arguments: object) -> None:
    return None


register("advance_decode", fake=_fake_advance_decode)
