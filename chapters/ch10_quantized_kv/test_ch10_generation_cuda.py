"""What only a GPU has: a step over codes, replayed as a graph, gives the bits of its launches and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from chapters.ch06_split_attention.tiny_story import BF16, PROMPT, TOKENIZER, few_plans, weights
from chapters.ch09_graph_capture.decoder import STEPS, Decoder, Run
from chapters.ch10_quantized_kv.cache_formats import CASTS, cache_format
from chapters.ch10_quantized_kv.quantized_model import QuantizedPagedModel
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
GREEDY = SamplingParams()
TOKENS = 300


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def decoder(gpu: Backend, name: str, rows: int = 1, **options: Any) -> Decoder:
    some = weights(BF16, gpu.device)
    model = QuantizedPagedModel(some, cache_format(name, some.config), plans=options.pop("plans", few_plans))
    return Decoder(model, model.new_cache(tokens=rows * 400, max_sequences=rows, max_context=400), rows=rows, **options)


def everything(some: Decoder, run: Run) -> list[int]:
    return list(iter(lambda: some.next(run), None))


@pytest.mark.parametrize("plans", [few_plans, None], ids=["few plans", "the dispatch table's"])
@pytest.mark.parametrize("name", CASTS)
def test_replay_over_codes_gives_the_bits_of_launches(gpu: Backend, name: str, plans: Any) -> None:
    told, caches = [], []
    for graphs in (True, False):
        some = decoder(gpu, name, graphs=graphs, plans=plans)
        told.append(everything(some, some.start(0, PROMPT, GREEDY, TOKENS)))
        caches.append((*some.cache.k, *some.cache.v))
        assert some.graphs.failure is None
        assert (len(some.graphs.captured) >= (3 if plans else 1)) == graphs
        assert any(kind.steps == STEPS for kind in some.graphs.captured) == graphs
    assert len(told[0]) == TOKENS
    assert told[0] == told[1]
    assert all(torch.equal(one, other) for one, other in zip(*caches, strict=True))


def test_replayed_steps_over_codes_allocate_nothing_and_mind_no_neighbour(gpu: Backend) -> None:
    alone = decoder(gpu, "fp8")
    expected = everything(alone, alone.start(0, PROMPT, GREEDY, TOKENS))
    some = decoder(gpu, "fp8", rows=2)
    run = some.start(0, PROMPT, GREEDY, TOKENS)
    told = [some.next(run) for _ in range(200)]
    before = torch.cuda.memory_stats()
    told += [some.next(run) for _ in range(20)]
    after = torch.cuda.memory_stats()
    for counter in ("allocation.all.allocated", "allocation.all.freed", "num_alloc_retries"):
        assert after[counter] == before[counter], counter
    other = some.start(1, TOKENIZER.encode("The cat"), GREEDY, 40)
    told += [some.next(run) for _ in range(TOKENS - 220)]
    assert told == expected
    assert len(everything(some, other)) == 40
