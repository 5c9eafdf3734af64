"""What only a GPU has: a prompt that is replayed gives the bits of one that is launched, and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch06_split_attention.tiny_story import BF16, TOKENIZER, few_plans, paged, weights
from chapters.ch09_graph_capture.decoder import Decoder
from chapters.ch09_graph_capture.prompt_checks import assert_near, check_replays
from chapters.ch09_graph_capture.prompt_graphs import CUDNN_FROM, LONGEST, PromptGraphs
from qwen3_ref.model import Qwen3, attention_kernels
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
TEXT = TOKENIZER.encode("One day, Tom and his dog went to the park to play with a big red ball.") * 16


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def long_model(gpu: Backend) -> PagedModel:
    """Two layers that know as many positions as a graph may have."""
    config = replace(weights(BF16).config, num_hidden_layers=2, max_position_embeddings=LONGEST + 256)
    return PagedModel(Qwen3.random(config, dtype=BF16, device=gpu.device), plans=few_plans)


def told(some: Decoder, prompt: list[int], tokens: int = 60) -> list[int]:
    run = some.start(0, prompt, SamplingParams(), tokens)
    found = list(iter(lambda: some.next(run), None))
    some.finish(run)
    some.cache.free(run.sequence)
    return [token for token in found if token is not None]


def test_replayed_prompts_have_the_bits_of_launches_around_the_lengths(gpu: Backend) -> None:
    check_replays(paged(gpu, BF16), [1, 127, 128, 129, 1024, 1025, 1536, 1537, 2000])


def test_replayed_prompts_that_cudnn_attends_have_the_bits_of_launches(gpu: Backend) -> None:
    model = long_model(gpu)
    check_replays(model, [3584, CUDNN_FROM - 1, CUDNN_FROM, LONGEST - 1, LONGEST], model.config.vocab_size)


def test_cudnn_is_what_prefer_cudnn_chooses(gpu: Backend) -> None:
    from torch.nn.attention import SDPBackend

    q, k = (torch.zeros(1, heads, 4096, 128, dtype=BF16, device=gpu.device) for heads in (4, 2))
    chosen = []
    for prefer in (True, False, True):
        with attention_kernels(q, prefer_cudnn=prefer):
            chosen.append(torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=True))
    cudnn, flash = SDPBackend.CUDNN_ATTENTION.value, SDPBackend.FLASH_ATTENTION.value
    assert chosen == [cudnn, flash, cudnn]


@pytest.mark.parametrize("tokens", [100, 1000, 5000])
def test_a_filled_up_prompt_is_near_the_one_that_is_not(gpu: Backend, tokens: int) -> None:
    """By the width of bfloat16: products of other shapes, another attention from 4,096 tokens on."""
    model = long_model(gpu)
    cache = model.new_cache(tokens=2 * (LONGEST + 64), max_sequences=1)
    prompt = torch.randint(model.config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = model.prefill(cache, cache.allocate(), prompt)
    assert_near(PromptGraphs(model, cache)(cache.allocate(), prompt), expected, 8 * 2**-8)


@pytest.mark.parametrize("count", [20, 128, 300])
def test_every_request_of_a_prompt_tells_the_same_story(gpu: Backend, count: int) -> None:
    """Launched, captured, replayed, with another prompt between them, and without graphs."""
    model, prompt = paged(gpu, BF16), TEXT[:count]
    sizes = {"tokens": 640, "max_sequences": 1, "max_context": 640}
    some, without = (Decoder(model, model.new_cache(**sizes), graphs=graphs) for graphs in (True, False))
    stories = []
    for other in (5, 3, 1):
        stories.append(told(some, prompt))
        told(some, TEXT[other : count - other])
    stories += [told(without, prompt), told(without, prompt)]
    assert len(stories[0]) == 60
    assert stories == stories[:1] * 5
    assert some.prompts.graphs.captured
    assert some.prompts.graphs.failure is None
    assert without.prompts.graphs.captured == ()


def test_a_replayed_prompt_allocates_nothing(gpu: Backend) -> None:
    model = paged(gpu, BF16)
    cache = model.new_cache(tokens=640, max_sequences=1)
    prompts, counts = PromptGraphs(model, cache), (200, 256, 130, 129)
    counters = []
    for count in (150, 250, *counts):
        sequence = cache.allocate()
        prompts(sequence, TEXT[:count])
        cache.free(sequence)
        counters.append(torch.cuda.memory_stats())
    assert prompts.graphs.captured == (256,)
    for name in ("allocation.all.allocated", "allocation.all.freed", "num_alloc_retries"):
        assert {one[name] for one in counters[1:]} == {counters[1][name]}, name


def test_a_prompt_that_begins_between_replayed_steps_changes_no_other(gpu: Backend) -> None:
    """Steps and prompts share a stream and a cache, and nothing else."""
    model = paged(gpu, BF16)
    alone = Decoder(model, model.new_cache(tokens=640, max_sequences=1, max_context=640))
    expected = told(alone, TEXT[:40], 200)
    some = Decoder(model, model.new_cache(tokens=1280, max_sequences=2, max_context=640), rows=2)
    run = some.start(0, TEXT[:40], SamplingParams(), 200)
    found = [some.next(run) for _ in range(50)]
    for _ in range(3):
        other = some.start(1, TEXT[:30], SamplingParams(), 2)
        found += [some.next(run) for _ in range(50)]
        some.finish(other)
        some.cache.free(other.sequence)
    assert found == expected
