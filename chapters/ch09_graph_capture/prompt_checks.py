"""What a prompt that is filled up must leave as it is: its logits, its K and V, and every block that is not its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch09_graph_capture.prompt_graphs import PromptGraphs
from qwen_cuda.testing.backends import poisoned_memory

PATTERN = 0x5A  # in every byte of the cache


def assert_near(logits: Tensor, expected: Tensor, bound: float) -> None:
    """No logit is off by more than `bound` of the largest; NaN is."""
    error, largest = (float(x.abs().max()) for x in (logits - expected, expected))
    assert error <= bound * largest, f"{error / largest} of the largest logit"


def check_padded(model: PagedModel, prompt: Sequence[int], expected: Tensor, bound: float) -> None:
    """`expected: [2, V]`: logits after the prompt but for its last token, which is then decoded, and after all of it.

    Pads must not be seen: memory that nobody writes is NaN, and the batch before has left its slots.
    """
    cache = model.new_cache(tokens=-(-len(prompt) // 16) * 16 + 256, max_sequences=1)
    for layer in (*cache.k, *cache.v):
        layer.view(torch.uint8).fill_(PATTERN)
    cache.append([cache.allocate()], [40])
    prompts, sequence = PromptGraphs(model, cache), cache.allocate()
    for _ in range(2):
        cache.truncate(sequence, 0)
        with poisoned_memory():
            assert_near(prompts.padded(sequence, prompt[:-1]), expected[0], bound)
    own = set(cache.block_table(sequence))
    others = [block for block in range(cache.num_blocks) if block not in own]
    for layer in (*cache.k, *cache.v):
        assert bool((layer[others].view(torch.uint8) == PATTERN).all()), "a block that is not the prompt's was written"
    assert_near(model.decode(cache, [sequence], prompt[-1:])[0], expected[1], bound)


def check_replays(model: PagedModel, lengths: Sequence[int], vocab: int = 4096) -> None:
    """On a GPU: launched, captured and replayed prompts of one length give the bits of launches, and no more.

    Between two of them another prompt takes the same graph, and leaves tokens and slots behind.
    """
    cache = model.new_cache(tokens=max(lengths) + 16, max_sequences=1)
    graphs, launches = PromptGraphs(model, cache), PromptGraphs(model, cache, enabled=False)
    random = torch.Generator().manual_seed(1)
    for length in lengths:
        prompt = torch.randint(vocab, (length,), generator=random).tolist()
        expected = _computed(launches, prompt)
        for run in range(3):
            found = _computed(graphs, prompt)
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), f"run {run} of {length} tokens"
            _computed(graphs, prompt[-max(1, length - 3) :])
    assert graphs.graphs.failure is None
    assert graphs.graphs.captured
    assert launches.graphs.captured == ()


def _computed(prompts: PromptGraphs, prompt: Sequence[int]) -> list[Tensor]:
    """Logits, and K and V of all layers, of a sequence that is then forgotten."""
    cache = prompts.cache
    sequence = cache.allocate()
    logits = prompts(sequence, prompt).clone()
    held = [x for layer in range(len(cache.k)) for x in cache.read(sequence, layer)]
    cache.free(sequence)
    return [logits, *held]
