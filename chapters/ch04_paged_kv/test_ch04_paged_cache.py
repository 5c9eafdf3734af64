"""PagedKVCache: sizes, slots, sharing, exact errors, and the operator that writes through it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_runs import EPS, THETA
from chapters.ch04_paged_kv.paged_cache import OutOfBlocks, PagedKVCache
from qwen3_ref.config import Qwen3Config
from qwen_cuda.operators.qk_norm_rope_cache_write import cos_sin_table
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

CONFIG = Qwen3Config(
    vocab_size=64, hidden_size=96, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=400,
)  # fmt: skip


def cache(tokens: int = 64, **options: Any) -> PagedKVCache:
    return PagedKVCache(CONFIG, tokens=tokens, block_size=8, **options)


def state(of: PagedKVCache) -> Any:
    """All that a refused call must leave as it is."""
    held = {one: (of.length(one), of.block_table(one)) for one in of.sequences}
    device = [
        getattr(of.indices, name).clone() for name in ("positions", "slot_mapping", "block_table", "context_lens")
    ]
    return of.free_blocks, held, [tensor.tolist() for tensor in device], of.k[0].clone().tolist()


def refused(of: PagedKVCache, error: type[Exception], sentence: str, call: Callable[[], object]) -> None:
    before = state(of)
    with pytest.raises(error, match=re.escape(sentence)):
        call()
    assert state(of) == before


def mark(of: PagedKVCache, slots: Tensor, first: float) -> None:
    """Writes first, first + 1, … into K, and their negatives into V, of every layer."""
    values = torch.arange(len(slots), dtype=torch.float32)[:, None, None] + first
    for layer in range(CONFIG.num_hidden_layers):
        for tensor, sign in ((of.k[layer], 1), (of.v[layer], -1)):
            tensor.view(-1, *tensor.shape[2:])[slots.long()] = (sign * values).to(tensor.dtype).expand(-1, 2, 128)


def marks(of: PagedKVCache, sequence: int, layer: int = 2) -> list[float]:
    k, v = of.read(sequence, layer)
    assert torch.equal(k, -v)
    return k[:, 1, 77].tolist()


def test_a_budget_buys_whole_blocks() -> None:
    block = 2 * 3 * 16 * 2 * 128 * 2  # K and V, layers, tokens, heads, elements, bytes
    for budget, blocks in ((block, 1), (3 * block - 1, 2), (3 * block, 3)):
        made = PagedKVCache(CONFIG, budget_bytes=budget)
        assert (made.num_blocks, made.free_blocks, made.block_bytes) == (blocks, blocks, block)
        assert made.nbytes == blocks * block <= budget
    assert [len(made.k), list(made.k[0].shape)] == [3, [3, 16, 2, 128]]
    assert all(tensor.is_contiguous() for tensor in (*made.k, *made.v))
    assert PagedKVCache(CONFIG, tokens=17).num_blocks == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "tokens is None and budget_bytes None; one of them must be given"),
        ({"tokens": 16, "budget_bytes": 10**9}, "tokens is 16 and budget_bytes 1000000000; one of them must be given"),
        ({"tokens": 0}, "tokens is 0; it must be at least 1."),
        ({"budget_bytes": 49151}, "budget_bytes is 49151; one block of 16 tokens takes 49152 bytes."),
        ({"tokens": 16, "block_size": 24}, "block_size is 24; it must be a power of two from 8 to 256."),
        ({"tokens": 16, "block_size": 4}, "block_size is 4; it must be a power of two from 8 to 256."),
        ({"tokens": 16, "block_size": 512}, "block_size is 512; it must be a power of two from 8 to 256."),
        ({"tokens": 16, "max_sequences": 0}, "max_sequences is 0; it must be at least 1."),
        (
            {"tokens": 16, "max_context": 17},
            "max_context is 17; it must be from 1 to 16, which the model and the cache",
        ),
        ({"tokens": 999, "max_context": 401}, "max_context is 401; it must be from 1 to 400, which the model and"),
        ({"tokens": 2**31}, "134217728 blocks of 16 tokens are more slots than an int32 can number: ask for less."),
    ],
)
def test_a_cache_that_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        PagedKVCache(CONFIG, **options)


def test_a_prompt_and_its_continuation() -> None:
    of = cache(max_sequences=2)
    one, other = of.allocate(), of.allocate()
    batch = of.append([one], [9])
    assert batch.positions.tolist() == list(range(9))
    blocks = of.block_table(one)
    assert batch.slot_mapping.tolist() == [*range(blocks[0] * 8, blocks[0] * 8 + 8), blocks[1] * 8]
    assert (batch.context_lens.tolist(), batch.block_table[:, :2].tolist()) == ([9], [list(blocks)])
    batch = of.append([other, one], [2, 1])
    assert batch.positions.tolist() == [0, 1, 9]
    theirs = of.block_table(other)
    assert batch.slot_mapping.tolist() == [theirs[0] * 8, theirs[0] * 8 + 1, blocks[1] * 8 + 1]
    assert batch.context_lens.tolist() == [2, 10]
    assert batch.block_table.dtype == batch.positions.dtype == batch.slot_mapping.dtype == torch.int32


def test_indices_never_move_and_what_is_unused_does_no_harm() -> None:
    """A graph captured for the largest batch reads all of them: beyond a smaller batch they must write nothing."""
    of = cache(max_sequences=3)
    places = [tensor.data_ptr() for tensor in vars(of.indices).values() if isinstance(tensor, Tensor)]
    held = [of.allocate() for _ in range(3)]
    of.append(held, [12, 3, 1])
    batch = of.append(held[1:2])
    indices = of.indices
    assert (batch.positions.tolist(), indices.context_lens.tolist()) == ([3], [4, 0, 0])
    assert (indices.slot_mapping >= 0).tolist() == [True] + [False] * 63
    assert indices.slot_mapping[1:].eq(-1).all()
    assert not indices.positions[1:].any()
    assert not indices.block_table[1:].any()
    assert indices.block_table[0].tolist() == [*of.block_table(held[1]), *[0] * 7]
    assert [tensor.data_ptr() for tensor in vars(indices).values() if isinstance(tensor, Tensor)] == places


def test_freed_blocks_are_used_again_and_none_gets_lost() -> None:
    of = cache(tokens=32)
    for _ in range(3):
        held = [of.allocate() for _ in range(4)]
        of.append(held, [8, 1, 7, 5])
        assert of.free_blocks == 0
        assert sorted(block for one in held for block in of.block_table(one)) == [0, 1, 2, 3]
        for one in held[::-1]:
            of.free(one)
        assert of.free_blocks == 4


def test_a_fork_shares_until_somebody_writes() -> None:
    of = cache()
    parent = of.allocate()
    mark(of, of.append([parent], [11]).slot_mapping, 1)
    free = of.free_blocks
    child = of.fork(parent)
    assert (of.free_blocks, of.block_table(child), of.length(child)) == (free, of.block_table(parent), 11)
    mark(of, of.append([child]).slot_mapping, 50)
    assert of.free_blocks == free - 1, "the half-filled block was copied, the full one was not"
    assert of.block_table(child)[0] == of.block_table(parent)[0]
    assert of.block_table(child)[1] != of.block_table(parent)[1]
    mark(of, of.append([parent]).slot_mapping, 60)
    assert of.free_blocks == free - 1, "the other copy had one owner left, who may write"
    assert marks(of, child) == [*range(1, 12), 50]
    assert marks(of, parent) == [*range(1, 12), 60]
    of.free(parent)
    assert marks(of, child, layer=0) == [*range(1, 12), 50]
    of.free(child)
    assert of.free_blocks == of.num_blocks


def test_forks_of_one_batch_need_one_copy_less_than_they_are() -> None:
    of = cache(tokens=40)
    first = of.allocate()
    mark(of, of.append([first], [3]).slot_mapping, 1)
    family = [first, of.fork(first), of.fork(first)]
    slots = of.append(family).slot_mapping
    assert of.free_blocks == of.num_blocks - 3
    assert len(set(slots.tolist())) == 3
    mark(of, slots, 70)
    assert [marks(of, one) for one in family] == [[1, 2, 3, 70 + i] for i in range(3)]


def test_a_fork_that_is_cut_back_writes_into_a_copy() -> None:
    of = cache()
    parent = of.allocate()
    mark(of, of.append([parent], [20]).slot_mapping, 1)
    child = of.fork(parent)
    of.truncate(child, 11)
    assert (of.length(child), of.block_table(child)) == (11, of.block_table(parent)[:2])
    mark(of, of.append([child], [2]).slot_mapping, 50)
    assert marks(of, child) == [*range(1, 12), 50, 51]
    assert marks(of, parent) == [*range(1, 21)]
    free = of.free_blocks
    of.truncate(parent, 0)
    assert (of.length(parent), of.free_blocks) == (0, free + 2), "the first block is still the child's"


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    of = cache()
    parent = of.allocate()
    of.append([parent], [16])
    child = of.fork(parent)
    of.append([parent, child])
    assert of.block_table(parent)[:2] == of.block_table(child)[:2]
    assert of.free_blocks == of.num_blocks - 4


def test_a_full_cache_says_so_and_changes_nothing() -> None:
    of = cache(tokens=32, max_context=32)
    one, other = of.allocate(), of.allocate()
    of.append([one, other], [16, 7])
    refused(of, OutOfBlocks, "2 more blocks are needed and 1 of 4 are free", lambda: of.append([one, other], [1, 2]))
    forked = of.fork(other)
    of.append([one])
    refused(of, OutOfBlocks, "1 more blocks are needed and 0 of 4 are free", lambda: of.append([forked]))
    with pytest.raises(OutOfBlocks) as error:
        of.append([other], [25])
    assert (error.value.needed, error.value.free, error.value.total) == (4, 0, 4)
    of.free(forked)
    of.append([other])


def test_what_makes_no_sense_is_refused() -> None:
    of = cache(max_sequences=2, max_context=20)
    one, gone = of.allocate(), of.allocate()
    of.append([one, gone], [3, 4])
    of.free(gone)
    freed, never = (
        f"sequence {gone} is not in the cache: it has been freed.",
        "sequence 7 is not in the cache: it was never",
    )
    by_name = (of.free, of.fork, of.length, of.block_table)
    for call in (*by_name, lambda s: of.read(s, 0), lambda s: of.truncate(s, 0), lambda s: of.append([one, s])):
        refused(of, ValueError, freed, lambda call=call: call(gone))  # type: ignore[misc]
        refused(of, ValueError, never, lambda call=call: call(7))  # type: ignore[misc]
    refused(of, ValueError, "sequences is [0, 0]; each may be named only once.", lambda: of.append([one, one]))
    refused(of, ValueError, "sequence 0 is to get 0 tokens; it must be at least 1.", lambda: of.append([one], [0]))
    refused(of, ValueError, "sequence 0 has 3 tokens; with 18 more it would be longer than max_context, 20.",
            lambda: of.append([one], [18]))  # fmt: skip
    refused(of, ValueError, "append got 1 sequences and 2 numbers of tokens; it takes from 1 to 2, max_sequences",
            lambda: of.append([one], [1, 1]))  # fmt: skip
    for length in (-1, 4):
        refused(of, ValueError, f"length is {length}; it must be from 0 to 3, the tokens held.",
                lambda length=length: of.truncate(one, length))  # type: ignore[misc] # fmt: skip
    refused(of, ValueError, "append got 0 sequences and 0 numbers", lambda: of.append([]))
    refused(of, ValueError, "append got 3 sequences and 3 numbers", lambda: of.append([one, 8, 9]))
    of.append([one], [17])
    assert of.allocate() == gone + 1, "a number of a sequence is never used again"


@pytest.mark.parametrize("order", [(0,), (5,), (1, 2, 4)], ids=["at once", "in halves", "in parts"])
def test_the_operator_writes_the_same_bytes_whatever_the_pages(
    registered_backend: Backend, order: tuple[int, ...]
) -> None:
    """A prompt into a fresh cache; the same through a cache in use, in parts that are appended between others."""
    tokens, where = 21, registered_backend.device
    qkv = rows_of_numbers((tokens, (4 + 4) * 128), torch.bfloat16, seed=3).to(where)
    weights = [norm_weight(128, torch.bfloat16, seed=seed).to(where) for seed in (1, 2)]
    table = cos_sin_table(CONFIG.max_position_embeddings, THETA, where)
    run = registered_backend.op("qk_norm_rope_cache_write")

    def appended(of: PagedKVCache, sequence: int, rows: Tensor) -> Tensor:
        batch = of.append([sequence], [len(rows)])
        q, _ = run(rows, *weights, table, batch.positions, batch.slot_mapping, of.k[1], of.v[1], EPS, 4)
        return q

    fresh, used = cache(device=where), cache(device=where)
    one = fresh.allocate()
    q = appended(fresh, one, qkv)
    others = [used.allocate() for _ in range(3)]
    used.append(others, [9, 1, 8])
    used.free(others[0])
    two = used.allocate()
    parts = []
    for first, last in zip((0, *order), (*order, tokens), strict=True):
        if last > first:
            parts.append(appended(used, two, qkv[first:last]))
            used.append([others[1]], [4])
    assert_same_bits(torch.cat(parts), q)
    assert used.block_table(two) != fresh.block_table(one)
    for ours, theirs in zip(used.read(two, 1), fresh.read(one, 1), strict=True):
        assert_same_bits(ours, theirs)
    assert not used.k[0].any(), "no other layer was written"


def test_a_model_without_a_head_dim_of_128_has_a_cache_too() -> None:
    made = PagedKVCache(replace(CONFIG, head_dim=64), tokens=8, block_size=8, dtype=torch.float32)
    assert (made.k[0].shape[-1], made.k[0].dtype) == (64, torch.float32)
