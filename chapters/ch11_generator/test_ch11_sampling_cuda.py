"""What only a GPU has: clusters of real blocks, graphs whose parameters change, streams, overlapping launches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from chapters.ch11_generator.sampling_checks import Draws, drawn, normal
from qwen_cuda.testing.backends import Backend, opened

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]
VOCABULARY = 151936


@pytest.fixture(scope="module")
def gpu() -> Iterator[Backend]:
    with opened("cuda") as backend:
        yield backend


def placed(some: Draws) -> dict[str, Tensor]:
    return {name: one.cuda() for name, one in {"logits": some.logits, **some.parameters(), "seen": some.seen()}.items()}


def requests(rows: int, seed: int = 0) -> Draws:
    """A different request in each row, over a real vocabulary."""
    return Draws(
        normal(rows, VOCABULARY, seed=seed),
        temperature=[1.0, 0.6, 0.0, 1.5, 0.8, 1.0, 0.3, 1.2][:rows],
        top_k=[0, 20, 5, 0, 1000, 0, 3, 50][:rows],
        top_p=[1.0, 0.95, 1.0, 0.99, 0.9, 0.5, 1.0, 1.0][:rows],
        min_p=[0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.1][:rows],
        repetition_penalty=[1.0, 1.1, 1.2, 1.0, 1.3, 1.0, 1.0, 1.5][:rows],
        seeds=range(seed, seed + rows),
        draws=[seed] * rows,
        histories=[range(row, VOCABULARY, 100) for row in range(rows)],
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_a_whole_vocabulary_gives_the_tokens_of_the_reference(gpu: Backend, rows: int) -> None:
    for seed in range(3):
        drawn(gpu, requests(rows, seed))


@pytest.mark.parametrize("vocab", [2**20, 2**20 - 1, 300_000, 49_153, 8191])
def test_a_row_of_any_length_gives_the_tokens_of_the_reference(gpu: Backend, vocab: int) -> None:
    logits = normal(2, vocab, seed=vocab)
    drawn(gpu, Draws(logits, 0.9, top_k=[0, 40], top_p=0.9, seeds=3))


def test_a_graph_serves_every_request(gpu: Backend) -> None:
    """Captured once; parameters, logits and histories change, the host waits for nothing and allocates nothing."""
    static = placed(requests(8))
    gpu.namespace.sample_tokens(**static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = [gpu.namespace.sample_tokens(**static), None]
        static["draws"].add_(1)
        tokens[1] = gpu.namespace.sample_tokens(**static)
    for seed in range(5):
        fresh = placed(requests(8, seed))
        for name, one in fresh.items():
            static[name].copy_(one)
        expected = []
        for _ in range(2):
            expected.append(gpu.namespace.sample_tokens(**fresh))
            fresh["draws"].add_(1)
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
        for one, other in zip(tokens, expected, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(static["seen"], fresh["seen"])


def test_sampling_runs_on_the_current_stream(gpu: Backend) -> None:
    """The logits are written late on a side stream: a kernel on any other stream would read what was there before."""
    given = placed(requests(2))
    late = {**given, "logits": torch.zeros_like(given["logits"]), "seen": given["seen"].clone()}
    expected = gpu.namespace.sample_tokens(**given)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds
        late["logits"].copy_(given["logits"])
        token = gpu.namespace.sample_tokens(**late)
    side.synchronize()
    assert torch.equal(token, expected)


def test_sampling_waits_for_logits_and_history(gpu: Backend) -> None:
    """Launches overlap, but none may read early: logits come from the kernel before, and depend on the last token."""

    def chain(wait: bool) -> Tensor:
        given = placed(requests(4))
        x = normal(4, 1024, seed=1).cuda()
        gain = torch.ones(1024, device="cuda")
        qweight = torch.randint(-127, 128, (8192, 1024), generator=torch.Generator().manual_seed(2)).to(torch.int8)
        weight = (qweight.cuda(), torch.full((8192, 1), 1e-3, device="cuda"))
        given["seen"] = torch.zeros(4, 256, dtype=torch.int32, device="cuda")
        tokens = []
        for _ in range(50):
            x = gpu.namespace.rms_norm(x, gain, 1e-6)
            given["logits"] = gpu.namespace.w8a16_linear(x, *weight, prefetch=True)
            tokens.append(gpu.namespace.sample_tokens(**given))
            if wait:
                torch.cuda.synchronize()
            x = given["logits"][:, :1024] + tokens[-1][:, None] / 8192
        return torch.stack(tokens)

    assert torch.equal(chain(wait=False), chain(wait=True))


def test_the_device_of_the_logits_decides(gpu: Backend) -> None:
    """Not the current one. With a single GPU the two are one, and only the context is tried."""
    there = torch.device("cuda", torch.cuda.device_count() - 1)
    given = placed(requests(2))
    expected = gpu.namespace.sample_tokens(**{**given, "seen": given["seen"].clone()})
    with torch.cuda.device(0):
        token = gpu.namespace.sample_tokens(**{name: one.to(there) for name, one in given.items()})
        assert token.device == there
        assert torch.cuda.current_device() == 0
    assert torch.equal(token.to(expected.device), expected)


def test_many_draws_in_a_row_are_the_same_tokens(gpu: Backend) -> None:
    """Blocks come in any order, and a launch begins while the one before ends: 200 times the same call."""
    given = placed(requests(8))
    seen = given.pop("seen")
    tokens = torch.stack([gpu.namespace.sample_tokens(**given, seen=seen.clone()) for _ in range(200)])
    assert torch.equal(tokens, tokens[:1].expand(200, 8))
