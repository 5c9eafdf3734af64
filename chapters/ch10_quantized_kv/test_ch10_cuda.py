"""What only a GPU has: streams, graphs, and the conversions of its own instructions, which all other tests also use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from chapters.ch05_grouped_attention.paged_cases import assert_within
from chapters.ch10_quantized_kv.attention_cases import quantized_case
from chapters.ch10_quantized_kv.matrix_runs import check_combination
from chapters.ch10_quantized_kv.store_checks import KEYS, LATENT, NVFP4
from chapters.ch10_quantized_kv.store_runs import Setting, table, weight_of
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    RopeArgs,
    attention_workspace,
    norm_rope_hadamard_quant_store,
    paged_attention_quantized,
)
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def test_a_replayed_graph_stores_what_its_memory_holds_then(gpu: Backend) -> None:
    setting = Setting(replace(KEYS, cast=NVFP4, heads=8))
    x, (positions, slots) = setting.x(4).cuda(), setting.indices(4)
    form = setting.how.format
    caches = [form.new(3, "cuda") for _ in range(4)]
    norm, transform = NormArgs(weight_of(setting).cuda()), HadamardArgs(128**-0.5)
    rope = RopeArgs(positions.cuda(), table(300, 128).cuda())
    where = slots.cuda()

    def store(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        to = KVCacheOut(k_cache, where, form, v_cache)
        norm_rope_hadamard_quant_store(x, norm, rope, transform, form.cast, to)

    store(caches[2], caches[3])
    for cache in caches:
        cache.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        store(caches[0], caches[1])
    x.mul_(-1.5)
    where.copy_(where.flip(0))
    graph.replay()
    store(caches[2], caches[3])
    for one, other in ((0, 2), (1, 3)):
        assert_same_bits(caches[one], caches[other])


def test_the_store_runs_on_the_current_stream(gpu: Backend) -> None:
    """x is written late on a side stream: a kernel on any other would read what was before."""
    setting = Setting(LATENT)
    x, late = setting.x(4).cuda(), torch.zeros(4, 1, 512, dtype=torch.bfloat16, device="cuda")
    expected = norm_rope_hadamard_quant_store(x, cast=NVFP4)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late.copy_(x)
        got = norm_rope_hadamard_quant_store(late, cast=NVFP4)
    side.synchronize()
    for one, other in zip(got, expected, strict=True):  # type: ignore[arg-type]
        assert_same_bits(one.view(torch.uint8), other.view(torch.uint8))


def test_many_heads_of_many_tokens(gpu: Backend) -> None:
    check_combination(gpu, replace(KEYS, heads=8, cast=NVFP4, layout="block_wide"), 4097, "invalid")


def test_a_replayed_graph_attends_to_what_is_stored_by_then(gpu: Backend) -> None:
    """A graph of one launch serves a context that grows beyond its partitions, by either merge."""
    some = quantized_case((300, 200), NVFP4, hadamard_scale=128**-0.5, seed=1)
    lens, final = some.plain.context_lens.cuda(), some.plain.context_lens.cuda()
    q, k, v, table = (one.cuda() for one in (some.plain.q, some.k_cache, some.v_cache, some.plain.block_table))
    for partitions in (4, 5):
        workspace = attention_workspace(q, some.form.heads, partitions)
        attend = partial(
            paged_attention_quantized,
            q,
            k,
            v,
            table,
            scale=some.plain.scale,
            format=some.form,
            partition_size=32,
            partitions=partitions,
            workspace=workspace,
            hadamard=HadamardArgs(128**-0.5),
        )
        expected = attend(context_lens=final)
        lens.copy_(torch.tensor([7, 0]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attend(context_lens=lens)
        graph.replay()
        lens.copy_(final)
        graph.replay()
        assert_same_bits(out, expected)
        assert_within(out, *some.truth_and_bound())
