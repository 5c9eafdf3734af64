"""Chapters 4 to 6 together: a cache that grows, writes by the fused kernel, attention over what was written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from chapters.ch05_grouped_attention.paged_cases import BF16, Heads, PagedCase, assert_within, truth_and_bound
from chapters.ch06_split_attention.attention import paged_attention
from chapters.ch06_split_attention.dispatch import Plan
from qwen3_ref.config import Qwen3Config
from qwen3_ref.paged import gather
from qwen_cuda.operators import cos_sin_table
from qwen_cuda.testing.backends import Backend

HEADS = Heads(kv_heads=2, group=2, block_size=8)
CONFIG = Qwen3Config(
    vocab_size=64, hidden_size=96, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=400,
)  # fmt: skip
SCALE = 128**-0.5
PLANS = (Plan(16, 1), Plan(16, 3))


def qkv_of(tokens: int, seed: int) -> Tensor:
    """`[tokens, (4 + 2 · 2) · 128]`; values lie around 0.7, so that a mean does not cancel."""
    packed = torch.randn(tokens, 8, 128, generator=torch.Generator().manual_seed(seed))
    packed[:, 6:] += 0.7
    return packed.flatten(1).to(BF16)


@pytest.mark.parametrize("plan", PLANS, ids=["grouped", "split"])
def test_decoding_attends_to_all_that_was_appended(registered_backend: Backend, plan: Plan) -> None:
    """Prompts of 5 and 17 tokens, then 20 steps over page and partition borders, a fork among them."""
    device, namespace = registered_backend.device, registered_backend.namespace
    cache = PagedKVCache(CONFIG, tokens=200, block_size=8, max_sequences=3, device=device)
    weight = torch.ones(128, dtype=BF16, device=device)
    table = cos_sin_table(400, 1e6, device)
    workspace = None

    def write(sequences: list[int], counts: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
        batch = cache.append(sequences, counts)
        where = batch.positions, batch.slot_mapping, cache.k[0], cache.v[0]
        qkv = qkv_of(sum(counts), seed).to(device)
        q, _ = namespace.qk_norm_rope_cache_write(qkv, weight, weight, table, *where, 1e-6, 4)
        return q, batch.block_table, batch.context_lens

    live = [cache.allocate(), cache.allocate()]
    write(live, [5, 17], seed=1)
    for step in range(20):
        if step == 6:
            live.append(cache.fork(live[0]))
        q, block_table, context_lens = write(live, [1] * len(live), seed=100 + step)
        assert context_lens.tolist() == [cache.length(one) for one in live]
        arguments = (q, cache.k[0], cache.v[0], block_table, context_lens, SCALE)
        if plan.partitions == 1:
            out = namespace.paged_attention_grouped(*arguments)
        else:
            workspace = plan.workspace(q, 2)
            out = namespace.paged_attention_split(*arguments, plan.partition_size, plan.partitions, workspace)
        seen: list[Any] = [x.cpu() if isinstance(x, Tensor) else x for x in arguments]
        assert_within(out, *truth_and_bound(PagedCase(HEADS, *seen)))
        for row, one in enumerate(live):
            k, _ = cache.read(one, 0)
            assert torch.equal(gather(seen[1], seen[3][row], 0, cache.length(one))[0].transpose(0, 1), k.cpu())


def test_the_stage_reads_the_caches_batch_as_it_is() -> None:
    """Rows that a smaller batch leaves unused have a context of 0, and give zeros."""
    cache = PagedKVCache(CONFIG, tokens=64, block_size=8, max_sequences=3)
    one = cache.allocate()
    cache.append([one], [9])
    cache.k[0].normal_(generator=torch.Generator().manual_seed(1))
    cache.v[0].normal_(generator=torch.Generator().manual_seed(2))
    q = qkv_of(3, seed=3)[:, : 4 * 128].unflatten(1, (4, 128))
    out = paged_attention(q, cache.k[0], cache.v[0], cache.indices.block_table, cache.indices.context_lens, SCALE)
    assert out[0].any()
    assert not out[1:].any()
