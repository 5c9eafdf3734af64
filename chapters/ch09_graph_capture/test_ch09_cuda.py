"""What only a GPU has: a replayed step gives the bits of a launched one, allocates nothing, and minds no neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from chapters.ch06_split_attention.tiny_story import BF16, PROMPT, TOKENIZER, few_plans, paged
from chapters.ch09_graph_capture.decoder import STEPS, Decoder, Run
from qwen3_ref.sampling import SamplingParams
from qwen_cuda.testing.backends import Backend, opened

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
GREEDY = SamplingParams()
TOKENS = 512


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def decoder(gpu: Backend, rows: int = 1, **options: Any) -> Decoder:
    plans = options.pop("plans", few_plans)
    model = paged(gpu, BF16, plans=plans)
    return Decoder(model, model.new_cache(tokens=rows * 640, max_sequences=rows, max_context=640), rows=rows, **options)


def everything(some: Decoder, run: Run) -> list[int]:
    return list(iter(lambda: some.next(run), None))


@pytest.mark.parametrize("plans", [few_plans, None], ids=["few plans", "the dispatch table's"])
def test_replay_gives_the_bits_of_launches_over_512_tokens(gpu: Backend, plans: Any) -> None:
    told, caches = [], []
    for graphs in (True, False):
        some = decoder(gpu, graphs=graphs, plans=plans)
        told.append(everything(some, some.start(0, PROMPT, GREEDY, TOKENS)))
        caches.append((some.cache.k, some.cache.v))
        assert some.graphs.failure is None
        assert (len(some.graphs.captured) >= (3 if plans else 1)) == graphs
        assert any(kind.steps == STEPS for kind in some.graphs.captured) == graphs
    assert len(told[0]) == TOKENS
    assert told[0] == told[1]
    for replayed, launched in zip(*caches, strict=True):
        for one, other in zip(replayed, launched, strict=True):
            assert torch.equal(one, other)


def test_replayed_steps_allocate_nothing(gpu: Backend) -> None:
    some = decoder(gpu)
    run = some.start(0, PROMPT, GREEDY, TOKENS)
    for _ in range(200):  # up to the longest plan, which is captured by then
        assert some.next(run) is not None
    kinds, before = len(some.graphs.captured), torch.cuda.memory_stats()
    for _ in range(200):
        assert some.next(run) is not None
    after = torch.cuda.memory_stats()
    assert len(some.graphs.captured) == kinds
    for name in ("allocation.all.allocated", "allocation.all.freed", "num_alloc_retries"):
        assert after[name] == before[name], name


def test_a_row_that_begins_between_replays_changes_no_other(gpu: Backend) -> None:
    alone = decoder(gpu)
    expected = everything(alone, alone.start(0, PROMPT, GREEDY, 300))
    some = decoder(gpu, rows=2)
    run = some.start(0, PROMPT, GREEDY, 300)
    told = [some.next(run) for _ in range(100)]
    other = some.start(1, TOKENIZER.encode("The cat"), GREEDY, 40)
    told += [some.next(run) for _ in range(200)]
    assert told == expected
    assert len(everything(some, other)) == 40
