"""PagedKVCache under any sequence of calls, against a model in which each sequence is a list of numbers of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chapters.ch04_paged_kv.paged_cache import OutOfBlocks, PagedKVCache
from qwen3_ref.config import Qwen3Config
from qwen_cuda.testing.strategies import examples

LAYERS, BLOCK = 2, 8
CONFIG = Qwen3Config(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS, num_attention_heads=1,
    num_key_value_heads=1, head_dim=2, max_position_embeddings=64,
)  # fmt: skip
MOST, LONGEST = 3, 40


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedKVCache(
            CONFIG, tokens=7 * BLOCK, block_size=BLOCK, max_sequences=MOST, max_context=LONGEST, dtype=torch.float32
        )
        self.tokens: dict[int, list[int]] = {}  # what each sequence must hold
        self.gone: list[int] = []
        self.next_token = 1

    def some(self, data: st.DataObject, most: int = 1) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.tokens)), min_size=1, max_size=most, unique=True))

    @rule()
    def allocate(self) -> None:
        new = self.cache.allocate()
        assert new not in self.tokens
        assert new not in self.gone
        self.tokens[new] = []

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        (parent,) = self.some(data)
        free = self.cache.free_blocks
        self.tokens[self.cache.fork(parent)] = list(self.tokens[parent])
        assert self.cache.free_blocks == free

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        (one,) = self.some(data)
        self.cache.free(one)
        del self.tokens[one]
        self.gone.append(one)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        (one,) = self.some(data)
        length = data.draw(st.integers(0, len(self.tokens[one])))
        self.cache.truncate(one, length)
        del self.tokens[one][length:]

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), name=st.sampled_from(["free", "fork", "length", "block_table"]))
    def use_a_freed_sequence(self, data: st.DataObject, name: str) -> None:
        with pytest.raises(ValueError, match="it has been freed"):
            getattr(self.cache, name)(data.draw(st.sampled_from(self.gone)))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        chosen = self.some(data, MOST)
        counts = [data.draw(st.integers(1, 12) | st.sampled_from([1, BLOCK])) for _ in chosen]
        if any(len(self.tokens[one]) + count > LONGEST for one, count in zip(chosen, counts, strict=True)):
            self.refused(ValueError, chosen, counts)
            return
        needed = self.needed(chosen, counts)
        if needed > self.cache.free_blocks:
            assert self.refused(OutOfBlocks, chosen, counts).needed == needed
            return
        free = self.cache.free_blocks
        batch = self.cache.append(chosen, counts)
        assert self.cache.free_blocks == free - needed
        starts = [len(self.tokens[one]) for one in chosen]
        positions = [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)]
        assert batch.positions.tolist() == positions
        assert batch.context_lens.tolist() == [start + n for start, n in zip(starts, counts, strict=True)]
        slots = batch.slot_mapping.long()
        new = range(self.next_token, self.next_token + len(slots))
        self.next_token = new.stop
        for layer in range(LAYERS):
            for tensor, sign in ((self.cache.k[layer], 1), (self.cache.v[layer], -1)):
                values = torch.tensor(new, dtype=torch.float32) * sign + layer / 2
                tensor.view(-1, 2)[slots] = values[:, None].expand(-1, 2)
        for row, (one, count) in enumerate(zip(chosen, counts, strict=True)):
            self.tokens[one] += new[sum(counts[:row]) : sum(counts[:row]) + count]
            blocks = self.cache.block_table(one)
            assert batch.block_table[row].tolist() == [*blocks, *[0] * (blocks_for(LONGEST) - len(blocks))]

    def needed(self, chosen: list[int], counts: list[int]) -> int:
        """New blocks, and copies of half-filled ones that somebody else still uses when a sequence's turn comes."""
        users = Counter(block for one in self.tokens for block in self.cache.block_table(one))
        needed = 0
        for one, count in zip(chosen, counts, strict=True):
            length = len(self.tokens[one])
            needed += blocks_for(length + count) - blocks_for(length)
            if length % BLOCK and users[last := self.cache.block_table(one)[-1]] > 1:
                needed += 1
                users[last] -= 1
        return needed

    def refused(self, error: type[Exception], chosen: list[int], counts: list[int]) -> Any:
        def state() -> Any:
            tables = {one: self.cache.block_table(one) for one in self.tokens}
            tensors = [tensor for tensor in vars(self.cache.indices).values() if isinstance(tensor, torch.Tensor)]
            return self.cache.free_blocks, tables, [tensor.tolist() for tensor in tensors]

        before = state()
        with pytest.raises(error) as raised:
            self.cache.append(chosen, counts)
        assert state() == before
        return raised.value

    @invariant()
    def every_sequence_holds_its_tokens(self) -> None:
        assert self.cache.sequences == tuple(self.tokens)
        for one, tokens in self.tokens.items():
            assert self.cache.length(one) == len(tokens)
            assert len(self.cache.block_table(one)) == blocks_for(len(tokens))
            for layer in range(LAYERS):
                k, v = self.cache.read(one, layer)
                assert k[:, 0, 0].tolist() == [token + layer / 2 for token in tokens]
                assert v[:, 0, 1].tolist() == [layer / 2 - token for token in tokens]

    @invariant()
    def every_block_is_free_or_in_use(self) -> None:
        used = {block for one in self.tokens for block in self.cache.block_table(one)}
        assert len(used) + self.cache.free_blocks == self.cache.num_blocks
        assert used <= set(range(self.cache.num_blocks))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = examples(60)
