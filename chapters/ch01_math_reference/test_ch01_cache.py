"""The KV cache keeps what is appended, in order, and says when it cannot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chapters.ch01_math_reference.twins import SHAPES
from qwen3_ref import QWEN3_0_6B, KVCache, Qwen3
from qwen3_ref.cost import kv_bytes_per_token

CONFIG = SHAPES["group2-untied"]  # 2 layers, 2 KV heads of 32


def random_kv(batch: int, tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, batch, 2, tokens, 32, generator=generator)
    return k, v


@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(st.integers(1, 6), min_size=1, max_size=6), batch=st.integers(1, 3), spare=st.integers(0, 3))
def test_what_is_appended_in_chunks_is_read_back_whole(chunks: list[int], batch: int, spare: int) -> None:
    cache = KVCache(CONFIG, batch, sum(chunks) + spare, torch.float32)
    cache.k.fill_(torch.nan)  # whatever was never written must never be seen
    cache.v.fill_(torch.nan)
    held: list[list[tuple[Tensor, Tensor]]] = [[], []]
    for step, tokens in enumerate(chunks):
        for layer in range(2):
            held[layer].append(random_kv(batch, tokens, seed=10 * step + layer))
            k, v = cache.append(layer, *held[layer][-1])
            assert torch.equal(k, torch.cat([part[0] for part in held[layer]], dim=2))
            assert torch.equal(v, torch.cat([part[1] for part in held[layer]], dim=2))
        cache.advance(tokens)
        assert cache.length == sum(chunks[: step + 1])
    assert int(cache.k.isnan().sum()) == 2 * batch * 2 * spare * 32


def test_append_returns_views_of_storage_that_never_moves() -> None:
    cache = KVCache(CONFIG, 1, 4, torch.float32)
    at = cache.k.data_ptr()
    k, _ = cache.append(1, *random_kv(1, 2, 0))
    assert k.data_ptr() == cache.k[1].data_ptr()
    cache.advance(2)
    cache.append(0, *random_kv(1, 2, 1))
    assert cache.k.data_ptr() == at


def test_length_moves_only_with_advance() -> None:
    cache = KVCache(CONFIG, 1, 4, torch.float32)
    first, second = random_kv(1, 2, 0), random_kv(1, 2, 1)
    cache.append(0, *first)
    k, _ = cache.append(0, *second)  # the step was not finished: the same place again
    assert torch.equal(k, second[0])
    cache.advance(2)
    cache.clear()
    assert cache.length == 0
    assert torch.equal(cache.append(0, *first)[0], first[0])


def test_a_full_cache_refuses_and_writes_nothing() -> None:
    cache = KVCache(CONFIG, 1, 3, torch.float32)
    cache.k.zero_()  # fresh storage may hold NaN, which equals nothing
    cache.append(0, *random_kv(1, 2, 0))
    cache.advance(2)
    before = cache.k.clone()
    with pytest.raises(ValueError, match="the KV cache holds 2 of 3 tokens; 2 more don't fit"):
        cache.append(0, *random_kv(1, 2, 1))
    assert torch.equal(cache.k, before)
    for tokens in (-1, 2):
        with pytest.raises(ValueError, match=f"tokens is {tokens}; it must be from 0 to 1"):
            cache.advance(tokens)
    assert cache.length == 2


def test_a_model_that_overfills_its_cache_leaves_it_as_it_was() -> None:
    model = Qwen3.random(CONFIG)
    cache = KVCache(CONFIG, 1, 5, torch.float32)
    tokens = torch.arange(7)[None]
    model(tokens[:, :4], cache)
    with pytest.raises(ValueError, match="holds 4 of 5 tokens; 2 more"):
        model(tokens[:, 4:6], cache)
    assert cache.length == 4
    again = model(tokens[:, 4:5], cache)
    assert torch.equal(again, model_in_two_steps(model, tokens[:, :5]))


def model_in_two_steps(model: Qwen3, tokens: Tensor) -> Tensor:
    cache = KVCache(model.config, 1, 5, torch.float32)
    model(tokens[:, :4], cache)
    return model(tokens[:, 4:], cache)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_cache_for_another_batch_model_or_dtype_is_refused(batch: int) -> None:
    """PyTorch would broadcast one sequence over a larger batch, and round to the cache's dtype, without a word."""
    model, tokens = Qwen3.random(CONFIG), torch.arange(4)[None].expand(batch, 4)
    others = [
        KVCache(CONFIG, 3, 8, torch.float32),
        KVCache(CONFIG, batch, 8, torch.bfloat16),
        KVCache(SHAPES["group1-tied"], batch, 8, torch.float32),
    ]
    for cache in others:
        with pytest.raises(ValueError, match=r"this KV cache takes \[.*make one for this batch, model and dtype"):
            model(tokens, cache)
        assert cache.length == 0


def test_sizes_below_one_are_refused() -> None:
    for batch, max_len in ((0, 4), (1, 0), (-1, -1)):
        with pytest.raises(ValueError, match=f"batch is {batch} and max_len is {max_len}; both must be at least 1"):
            KVCache(CONFIG, batch, max_len, torch.float32)


def test_bytes_are_those_of_the_cost_model() -> None:
    for dtype, value_bytes in ((torch.float32, 4), (torch.bfloat16, 2)):
        assert KVCache(CONFIG, 3, 7, dtype).nbytes == 3 * 7 * kv_bytes_per_token(CONFIG, value_bytes)
    assert KVCache(QWEN3_0_6B, 1, 8192, torch.bfloat16, device="meta").nbytes == 896 * 2**20
