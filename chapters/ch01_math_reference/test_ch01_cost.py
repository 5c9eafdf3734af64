"""The cost model against the shapes, a model that exists, and PyTorch's own flop counter."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from chapters.ch01_math_reference.twins import SHAPES
from qwen3_ref import QWEN3_0_6B, KVCache, Qwen3, cost
from qwen3_ref.weights import expected_shapes

MIB = 2**20


def test_figures_of_qwen3_0_6b() -> None:
    assert cost.layer_parameters(QWEN3_0_6B) == 15_730_944
    assert cost.parameters(QWEN3_0_6B) == 596_049_920
    assert cost.head_parameters(QWEN3_0_6B) == 155_582_464
    assert round(cost.parameters(QWEN3_0_6B) * 2 / 2**30, 2) == 1.11
    assert cost.head_weight_bytes(QWEN3_0_6B) == 296.75 * MIB
    assert cost.layer_weight_bytes(QWEN3_0_6B) == 840 * MIB + 126 * 2**10  # matrices, norm weights
    assert cost.kv_bytes_per_token(QWEN3_0_6B) == 112 * 2**10
    assert cost.decode_cost(QWEN3_0_6B, 8192).kv_read_bytes == 896 * MIB


def test_the_parts_add_up() -> None:
    """Layers, embedding and last norm are the whole: the same total by hand, from the shapes, and from a real model."""
    layer = 1024 * 2048 * 2 + 1024 * 1024 * 2 + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128
    assert cost.layer_parameters(QWEN3_0_6B) == layer
    assert cost.parameters(QWEN3_0_6B) == 28 * layer + 151936 * 1024 + 1024
    with torch.device("meta"):
        model = Qwen3(QWEN3_0_6B)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters(QWEN3_0_6B)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == expected_shapes(QWEN3_0_6B)


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_and_bytes_of_any_shape(shape: str) -> None:
    config = SHAPES[shape]
    for dtype, value_bytes in ((torch.float32, 4), (torch.bfloat16, 2)):
        model = Qwen3.random(config, dtype=dtype)
        assert sum(p.numel() for p in model.parameters()) == cost.parameters(config)
        assert sum(p.nbytes for p in model.parameters()) == cost.parameters(config) * value_bytes
        layers = sum(p.nbytes for p in model.model.layers.parameters())
        assert layers == cost.layer_weight_bytes(config, value_bytes)
        assert model.head_weight.nbytes == cost.head_weight_bytes(config, value_bytes)
    total = sum(prod(shape) for shape in expected_shapes(config).values())
    untied = 0 if config.tie_word_embeddings else cost.head_parameters(config)
    assert total == cost.parameters(config)
    parts = config.num_hidden_layers * cost.layer_parameters(config) + cost.head_parameters(config)
    assert total == parts + untied + config.hidden_size


def counted_flops(model: Qwen3, tokens: int, cache: KVCache) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.int64), cache, last_only=True)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_flops_equal_pytorchs_count(shape: str) -> None:
    config = SHAPES[shape]
    model, cache = Qwen3.random(config), KVCache(config, 1, 40, torch.float32)
    cache.k.zero_()
    cache.v.zero_()
    for context in (0, 1, 39):
        cache.length = context
        assert counted_flops(model, 1, cache) == cost.decode_cost(config, context).flops


@pytest.mark.parametrize("shape", SHAPES)
def test_prefill_flops_equal_pytorchs_count(shape: str) -> None:
    """The model computes the masked half of the scores too; the cost model counts only pairs that a query may read."""
    config, tokens = SHAPES[shape], 17
    counted = counted_flops(Qwen3.random(config), tokens, KVCache(config, 1, tokens, torch.float32))
    masked_pairs = tokens * tokens - tokens * (tokens + 1) // 2
    unneeded = 4 * config.num_hidden_layers * config.q_size * masked_pairs
    assert counted == cost.prefill_cost(config, tokens).flops + unneeded


@given(context=st.integers(0, 50_000), tokens=st.integers(1, 3000), value_bytes=st.sampled_from([1, 2, 4]))
def test_decoding_token_by_token_does_the_attention_of_a_prefill(context: int, tokens: int, value_bytes: int) -> None:
    """Attention flops of t decoded tokens equal those of a prefill of t; weights are read t times instead of once."""
    config = QWEN3_0_6B
    linear = cost.decode_cost(config, 0).flops - 4 * config.num_hidden_layers * config.q_size
    head = 2 * cost.head_parameters(config)
    decoded = sum(cost.decode_cost(config, i).flops for i in range(min(tokens, 40)))
    prefill = cost.prefill_cost(config, min(tokens, 40)).flops
    steps = min(tokens, 40)
    assert decoded - steps * linear == prefill - steps * (linear - head) - head
    step = cost.decode_cost(config, context, value_bytes)
    per_token = cost.kv_bytes_per_token(config, value_bytes)
    assert step.kv_read_bytes == context * per_token
    assert step.kv_write_bytes == per_token
    # Every layer and the head once, one row of the embedding and the last norm.
    assert step.weight_bytes == cost.layer_weight_bytes(config, value_bytes) + cost.head_weight_bytes(
        config, value_bytes
    ) + value_bytes * (config.hidden_size + config.hidden_size)
    assert step.bytes == step.weight_bytes + step.kv_read_bytes + step.kv_write_bytes
    assert step.intensity == step.flops / step.bytes


def test_floor_is_the_slower_of_memory_and_arithmetic() -> None:
    step = cost.PhaseCost(flops=3_000_000, weight_bytes=1_000_000, kv_read_bytes=500_000, kv_write_bytes=500_000)
    assert step.floor_us(read_gbps=1000) == pytest.approx(2.0)  # 2 MB at 1 TB/s
    assert step.floor_us(read_gbps=1000, tflops=1.0) == pytest.approx(3.0)  # 3 Mflop at 1 Tflop/s
    assert step.floor_us(read_gbps=1000, tflops=10.0) == pytest.approx(2.0)
    decode = cost.decode_cost(QWEN3_0_6B, 0)
    assert 0.9 < decode.intensity < 1.1, "at batch 1, one multiply-add for each bf16 weight"
    assert cost.prefill_cost(QWEN3_0_6B, 512).intensity > 300
