"""What only a GPU has: streams, graphs, several devices, large shapes, and a host that never waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv.cache_write_checks import sized
from chapters.ch04_paged_kv.cache_write_runs import EPS, NAME, THETA, Setting, scattered, table, write
from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from qwen3_ref.config import Qwen3Config
from qwen_cuda.operators.qk_norm_rope_cache_write import cos_sin_table
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
SETTING = Setting(num_heads=16, num_kv_heads=8, num_blocks=64, max_positions=2048)
CONFIG = Qwen3Config(
    vocab_size=8, hidden_size=1024, intermediate_size=8, num_hidden_layers=2, num_attention_heads=16,
    num_key_value_heads=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def tensors(tokens: int, seed: int = 1) -> list[Tensor]:
    """All tensors of a call, on the GPU."""
    setting = replace(SETTING, seed=seed)
    positions, slots = scattered(tokens, setting)
    caches = [torch.zeros(64, 16, 8, 128, dtype=setting.dtype) for _ in "kv"]
    return [t.cuda() for t in (setting.qkv(tokens), *setting.weights(), table(2048), positions, slots, *caches)]


def test_the_cache_write_runs_on_the_current_stream(gpu: Backend) -> None:
    """qkv, position and slot are written late on a side stream: a kernel on any other would read what was before."""
    given = tensors(4)
    expected, _ = gpu.op(NAME)(*given, EPS, 16)
    late = [torch.zeros_like(t) for t in given]
    for index in (1, 2, 3):
        late[index].copy_(given[index])
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        for index in (0, 4, 5):
            late[index].copy_(given[index])
        q, _ = gpu.namespace.qk_norm_rope_cache_write(*late, EPS, 16)
    side.synchronize()
    assert_same_bits(q, expected)
    for index in (6, 7):
        assert_same_bits(late[index], given[index])


@pytest.mark.skipif(
    "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ,
    reason="allocating without PyTorch's cache, as under a sanitizer, waits",
)
def test_neither_the_cache_write_nor_append_waits(gpu: Backend) -> None:
    cache = PagedKVCache(CONFIG, tokens=512, device="cuda")
    sequence, given = cache.allocate(), tensors(1)

    def step() -> None:
        batch = cache.append([sequence])
        given[4:8] = [batch.positions, batch.slot_mapping, cache.k[0], cache.v[0]]
        gpu.namespace.qk_norm_rope_cache_write(*given, EPS, 16)

    step()
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        step()
        done.record()
        assert not done.query(), "the calls returned only after the kernels had run"
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()


def test_a_graph_of_decoding_follows_the_cache(gpu: Backend) -> None:
    """Captured once for two sequences, replayed while they grow, and with one of them alone: the other slot is −1."""
    cache, plain = (PagedKVCache(CONFIG, tokens=512, max_sequences=2, device="cuda") for _ in range(2))
    held = [(cache.allocate(), plain.allocate()) for _ in range(2)]
    for of in (cache, plain):
        of.append(of.sequences, [15, 30])
    weights, positions = [w.cuda() for w in SETTING.weights()], cos_sin_table(512, THETA, "cuda")
    qkv = torch.zeros(2, 32 * 128, dtype=torch.bfloat16, device="cuda")
    indices = cache.indices
    static = [indices.positions[:2], indices.slot_mapping[:2], cache.k[1], cache.v[1]]
    nothing = torch.full_like(indices.slot_mapping[:2], -1)
    gpu.namespace.qk_norm_rope_cache_write(qkv, *weights, positions, static[0], nothing, *static[2:], EPS, 16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, _ = gpu.namespace.qk_norm_rope_cache_write(qkv, *weights, positions, *static, EPS, 16)
    for step, rows in enumerate((2, 2, 2, 1, 2)):
        values = replace(SETTING, seed=step).qkv(2).cuda()
        cache.append([pair[0] for pair in held[:rows]])
        batch = plain.append([pair[1] for pair in held[:rows]])
        qkv.copy_(values)
        graph.replay()
        expected, _ = gpu.namespace.qk_norm_rope_cache_write(
            values[:rows], *weights, positions, batch.positions, batch.slot_mapping, plain.k[1], plain.v[1], EPS, 16
        )
        assert_same_bits(q[:rows], expected)
    for layer in (0, 1):
        assert_same_bits(cache.k[layer], plain.k[layer])
        assert_same_bits(cache.v[layer], plain.v[layer])


def test_the_device_of_qkv_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    given = tensors(3)
    expected, _ = gpu.op(NAME)(*given, EPS, 16)
    with torch.cuda.device(0):
        q, _ = gpu.namespace.qk_norm_rope_cache_write(*(t.to(there) for t in given), EPS, 16)
        assert (q.device, torch.cuda.current_device()) == (there, 0)
    assert_same_bits(q, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sizes_of_models_at_many_tokens(gpu: Backend, dtype: torch.dtype) -> None:
    """The shapes of the benchmark, which are too large for the simulator; one that has more slots than 2^16."""
    for tokens in (1, 8, 128, 1024, 8192, 32768):
        blocks = -(-tokens // 16) + 8
        sized(gpu, replace(SETTING, dtype=dtype, num_blocks=blocks, max_positions=40_960, kind="wide"), tokens)


def test_a_prompt_and_its_tokens_one_by_one_give_the_same_bytes(gpu: Backend) -> None:
    tokens = 300
    setting = replace(SETTING, kind="wide")
    qkv, (positions, slots) = setting.qkv(tokens), scattered(tokens, setting)
    whole = write(gpu, setting, qkv, positions, slots)
    given = tensors(1)
    for token in range(tokens):
        given[0], given[4], given[5] = (t[token : token + 1].cuda() for t in (qkv, positions, slots))
        gpu.namespace.qk_norm_rope_cache_write(*given, EPS, 16)
    for cache, theirs in ((given[6], whole.k_cache), (given[7], whole.v_cache)):
        assert_same_bits(cache.view(-1, 8, 128)[slots], theirs[slots])


def test_launches_in_flight_see_what_the_one_before_wrote(gpu: Backend) -> None:
    """A chain in which each kernel reads the q that the one before wrote: launches overlap, but none may be early."""
    given = tensors(64)
    heads = given[0][:, 16 * 128 :]

    def chain(wait: bool) -> Tensor:
        qkv = given[0].clone()
        for _ in range(30):
            q, _ = gpu.namespace.qk_norm_rope_cache_write(qkv, *given[1:], EPS, 16)
            qkv = torch.cat((q.flatten(1), heads), dim=1)
            if wait:
                torch.cuda.synchronize()
        return qkv

    expected = chain(wait=True)
    assert_same_bits(chain(wait=False), expected)
