"""The paged KV cache: memory in blocks of a fixed number of tokens, handed out to sequences as they grow.

    cache = PagedKVCache(config, tokens=4096)
    sequence = cache.allocate()
    batch = cache.append([sequence], [len(prompt)])       # prefill: slots for the whole prompt
    qk_norm_rope_cache_write(…, batch.positions, batch.slot_mapping, cache.k[layer], cache.v[layer], …)
    batch = cache.append([sequence])                      # decode: one more token
    cache.free(sequence)

Token `i` of a sequence lies in block `block_table[i // block_size]`, at place `i % block_size`: in slot
`block · block_size + place`. A block may belong to several sequences that began alike (`fork`). It is then only read:
whoever has to write into it gets a copy first.

Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chapters.ch04_paged_kv.block_pool import BlockPool, OutOfBlocks
from chapters.ch04_paged_kv.device_indices import Batch, DeviceIndices
from qwen3_ref.config import Qwen3Config

__all__ = ["Batch", "OutOfBlocks", "PagedKVCache"]

Copies = list[tuple[int, int]]  # of blocks, from and to


@dataclass
class _Sequence:
    """Tokens appended so far, and the blocks that hold them, in order."""

    length: int = 0
    blocks: list[int] = field(default_factory=list)


class PagedKVCache:
    """Keys (after RoPE) and values of every layer. All memory is taken at once and never moves.

    Args:
        tokens: how many tokens fit, rounded up to whole blocks; or
        budget_bytes: how much memory K and V of all layers may take, rounded down to whole blocks. One of the two.
        block_size: tokens of a block, a power of two from 8 to 256.
        max_sequences: sequences of one `append`; any number may be allocated.
        max_context: the longest sequence; by default as long as the model or the cache allows.
        dtype, block_shape: of K and of V in a block; by default `[block_size, Hkv, D]`, numbers as they are.
    Raises:
        ValueError: an argument does not meet this, or the budget is less than one block.

    Attributes:
        k, v: for each layer `[num_blocks, block_size, Hkv, D]`, or `[num_blocks, *block_shape]`.
        indices: the tensors that kernels read, in memory that never moves, so that CUDA graphs may hold them.

    After an error nothing has changed.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        tokens: int | None = None,
        budget_bytes: int | None = None,
        block_size: int = 16,
        max_sequences: int = 8,
        max_context: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        block_shape: tuple[int, ...] | None = None,
    ) -> None:
        if not 8 <= block_size <= 256 or block_size & (block_size - 1):
            raise ValueError(f"block_size is {block_size}; it must be a power of two from 8 to 256.")
        if max_sequences < 1:
            raise ValueError(f"max_sequences is {max_sequences}; it must be at least 1.")
        block_shape = block_shape or (block_size, config.num_key_value_heads, config.head_dim)
        block_bytes = 2 * config.num_hidden_layers * torch.Size(block_shape).numel() * dtype.itemsize
        num_blocks = _number_of_blocks(tokens, budget_bytes, block_size, block_bytes)
        longest = min(config.max_position_embeddings, num_blocks * block_size)
        max_context = longest if max_context is None else max_context
        if not 1 <= max_context <= longest:
            raise ValueError(
                f"max_context is {max_context}; it must be from 1 to {longest}, which the model and the cache allow."
            )
        self.block_size, self.block_bytes, self.max_context = block_size, block_bytes, max_context
        self.max_sequences = max_sequences
        shape = (config.num_hidden_layers, num_blocks, *block_shape)
        self._k = torch.zeros(shape, dtype=dtype, device=device)
        self._v = torch.zeros(shape, dtype=dtype, device=device)
        self.k, self.v = self._k.unbind(0), self._v.unbind(0)
        self._pool = BlockPool(num_blocks)
        self._sequences: dict[int, _Sequence] = {}
        self._next_sequence = 0
        self.indices = DeviceIndices(
            max_sequences, -(-max_context // block_size), num_blocks * block_size, self._k.device
        )

    @property
    def nbytes(self) -> int:
        """Bytes of K and V, used or not."""
        return self._k.nbytes + self._v.nbytes

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    @property
    def sequences(self) -> tuple[int, ...]:
        """Those that are allocated, the oldest first."""
        return tuple(self._sequences)

    def allocate(self) -> int:
        """A new, empty sequence. It takes no memory yet. Numbers are never used again."""
        return self._enter(_Sequence())

    # --8<-- [start:append]
    def append(
        self,
        sequences: Sequence[int],
        tokens: Sequence[int] | None = None,
    ) -> Batch:
        """Makes room for new tokens and says where they go. The caller then writes K and V.

        Args:
            sequences: each at most once, up to `max_sequences`.
            tokens: how many new tokens each gets; by default one.
        Returns:
            What kernels need, on the device: the tokens of the first sequence, then those
            of the next. Views of `indices`, which the next `append` overwrites.
        Raises:
            OutOfBlocks: more blocks are needed than are free.
            ValueError: a sequence is unknown or named twice, a number is below 1, or a
                sequence would grow beyond `max_context`.
        """
        counts = [1] * len(sequences) if tokens is None else list(tokens)
        grown = self._grown(sequences, counts)
        plan = self._pool.plan()
        copies: Copies = []
        blocks = []
        for one, count in zip(grown, counts, strict=True):
            blocks.append(self._grow(one, count, plan, copies))
        plan.commit()  # or raises OutOfBlocks, and nothing has happened
        self._copy(copies)
        starts = [one.length for one in grown]
        for one, count, theirs in zip(grown, counts, blocks, strict=True):
            one.length, one.blocks = one.length + count, theirs
        return self.indices.fill(starts, counts, blocks, self.block_size)

    # --8<-- [end:append]

    def fork(self, sequence: int) -> int:
        """A new sequence with the same tokens. The two share their blocks, so it takes no memory yet.

        Raises:
            ValueError: the sequence is unknown.
        """
        parent = self._known(sequence)
        self._pool.share(parent.blocks)
        return self._enter(_Sequence(parent.length, list(parent.blocks)))

    def free(self, sequence: int) -> None:
        """Forgets a sequence. Its blocks are free again, but for those that others share.

        Raises:
            ValueError: the sequence is unknown, perhaps because it has been freed already.
        """
        self._pool.release(self._known(sequence).blocks)
        del self._sequences[sequence]

    def truncate(self, sequence: int, length: int) -> None:
        """Forgets every token behind the first `length`, and the blocks that only they needed.

        Raises:
            ValueError: the sequence is unknown, or does not hold so many tokens.
        """
        one = self._known(sequence)
        if not 0 <= length <= one.length:
            raise ValueError(f"length is {length}; it must be from 0 to {one.length}, the tokens held.")
        needed = -(-length // self.block_size)
        self._pool.release(one.blocks[needed:])
        one.length, one.blocks = length, one.blocks[:needed]

    def length(self, sequence: int) -> int:
        """Tokens appended so far. Raises ValueError if the sequence is unknown."""
        return self._known(sequence).length

    def block_table(self, sequence: int) -> tuple[int, ...]:
        """The blocks of a sequence, in the order of its tokens. Raises ValueError if it is unknown."""
        return tuple(self._known(sequence).blocks)

    def read(self, sequence: int, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of all tokens of a sequence, gathered from its blocks: two copies `[length, Hkv, D]`.

        Raises:
            ValueError: the sequence is unknown.
        """
        one = self._known(sequence)
        blocks = torch.tensor(one.blocks, dtype=torch.long, device=self._k.device)
        k, v = (cache[layer][blocks].flatten(0, 1)[: one.length] for cache in (self.k, self.v))
        return k, v

    def _enter(self, sequence: _Sequence) -> int:
        number = self._next_sequence
        self._next_sequence += 1
        self._sequences[number] = sequence
        return number

    def _known(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            why = "it has been freed" if 0 <= sequence < self._next_sequence else "it was never allocated"
            raise ValueError(f"sequence {sequence} is not in the cache: {why}.")
        return self._sequences[sequence]

    def _grown(self, sequences: Sequence[int], counts: Sequence[int]) -> list[_Sequence]:
        """The sequences of an `append`, once it is known that it asks for nothing impossible."""
        if not 1 <= len(sequences) <= self.max_sequences or len(counts) != len(sequences):
            raise ValueError(
                f"append got {len(sequences)} sequences and {len(counts)} numbers of tokens; it takes from 1 to "
                f"{self.max_sequences}, max_sequences, and as many numbers."
            )
        if len(set(sequences)) < len(sequences):
            raise ValueError(f"sequences is {list(sequences)}; each may be named only once.")
        known = [self._known(sequence) for sequence in sequences]
        for sequence, one, count in zip(sequences, known, counts, strict=True):
            if count < 1:
                raise ValueError(f"sequence {sequence} is to get {count} tokens; it must be at least 1.")
            if one.length + count > self.max_context:
                raise ValueError(
                    f"sequence {sequence} has {one.length} tokens; with {count} more it would be longer than "
                    f"max_context, {self.max_context}."
                )
        return known

    # --8<-- [start:grow]
    def _grow(
        self,
        one: _Sequence,
        count: int,
        plan: BlockPool.Plan,
        copies: Copies,
    ) -> list[int]:
        """The blocks of a sequence with `count` more tokens.

        A last block that others share is copied before it is written: `copies` says so.
        """
        blocks = list(one.blocks)
        if one.length % self.block_size and plan.is_shared(blocks[-1]):
            copies.append((blocks[-1], plan.take()))
            plan.release(blocks[-1])
            blocks[-1] = copies[-1][1]
        while len(blocks) * self.block_size < one.length + count:
            blocks.append(plan.take())
        return blocks

    # --8<-- [end:grow]

    def _copy(self, copies: Copies) -> None:
        """Copies blocks in all layers. It is queued before whatever the caller writes next."""
        if copies:
            old, new = torch.tensor(copies, dtype=torch.long).to(self._k.device).unbind(1)
            for cache in (self._k, self._v):
                cache[:, new] = cache[:, old]


def _number_of_blocks(tokens: int | None, budget_bytes: int | None, block_size: int, block_bytes: int) -> int:
    if (tokens is None) == (budget_bytes is None):
        raise ValueError(
            f"tokens is {tokens} and budget_bytes {budget_bytes}; one of them must be given, and only one."
        )
    if tokens is not None:
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; it must be at least 1.")
        number = -(-tokens // block_size)
    else:
        assert budget_bytes is not None
        number = budget_bytes // block_bytes
        if number < 1:
            raise ValueError(
                f"budget_bytes is {budget_bytes}; one block of {block_size} tokens takes {block_bytes} bytes."
            )
    if number * block_size > torch.iinfo(torch.int32).max:
        raise ValueError(
            f"{number} blocks of {block_size} tokens are more slots than an int32 can number: ask for less."
        )
    return number
