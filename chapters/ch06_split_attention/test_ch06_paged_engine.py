"""Chapters 4 to 6 in the generator: the reference's tokens, over every border of pages, partitions and chunks.

Where tokens must agree, the weights are float32 and the cache float16: the 11 bits of Q, K, V and the output of
attention then move no logit as far as the reference's best token leads the second. In bfloat16, with 8 bits, two right
computations need not agree. `test_only_near_ties_are_tipped_in_bfloat16` holds both sentences against the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch06_split_attention import dispatch
from chapters.ch06_split_attention.attention import backend_names, unavailable
from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.paged_engine import PagedEngine
from chapters.ch06_split_attention.paged_model import Plans
from chapters.ch06_split_attention.tiny_story import BF16, FP32, PROMPT, TOKENS, few_plans, paged, story, weights
from qwen3_ref.generate import ReferenceEngine
from qwen_cuda.testing import backends
from qwen_cuda.testing.backends import Backend


class Recorded:
    """A table of plans that remembers which it gave."""

    def __init__(self, plans: Plans) -> None:
        self._plans, self.given = plans, list[Plan]()

    def __call__(self, batch: int, kv_heads: int, longest: int, device: torch.device) -> Plan:
        self.given.append(self._plans(batch, kv_heads, longest, device))
        return self.given[-1]


def follow(engine: PagedEngine, expected: Sequence[int], prompt: Sequence[int] = PROMPT) -> None:
    """The engine tells the same story."""
    told = story(engine, prompt, len(expected)).run().token_ids
    wrong = next((i for i, (ours, theirs) in enumerate(zip(told, expected, strict=True)) if ours != theirs), None)
    assert wrong is None, f"token {wrong} is {told[wrong or 0]}, the reference's {expected[wrong or 0]}"


def test_the_story_is_the_references(registered_backend: Backend, reference: Callable[[int], list[int]]) -> None:
    """Over the borders of pages, from one partition to several, and to ones that no longer hold the context."""
    tokens = 70 if registered_backend.name == "sim" else 300
    plans = Recorded(few_plans)
    follow(PagedEngine(paged(registered_backend, plans=plans), 320), reference(tokens))
    assert {plan.partitions for plan in plans.given} >= {1, 3}
    assert len(PROMPT) + tokens > 16 * 3, "three partitions of 16 tokens have grown"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "plans"),
    [
        ("cpu", few_plans),
        pytest.param("cuda", few_plans, marks=pytest.mark.cuda),
        pytest.param("cuda", dispatch.plan_for, marks=pytest.mark.cuda),
    ],
    ids=["cpu", "cuda-few_plans", "cuda-dispatch"],
)
def test_two_thousand_tokens_are_the_references(name: Any, plans: Plans, reference: Callable[[int], list[int]]) -> None:
    if reason := backends.unavailable(name):
        pytest.skip(reason)
    plans = Recorded(plans)
    engine = PagedEngine(paged(Backend(name), plans=plans), len(PROMPT) + TOKENS)
    follow(engine, reference(TOKENS))
    assert any(one != other for one, other in pairwise(plans.given)), "no border of the dispatch was crossed"
    # The last token has not been fed back.
    assert engine.cache.num_blocks - engine.cache.free_blocks == -(-(len(PROMPT) + TOKENS - 1) // 16)


def moved(truth: Tensor, logits: Tensor) -> float:
    """How far rounding moved the lead of the truth's best token over any other, at the most."""
    best = truth.argmax()
    return float(((truth[best] - truth) - (logits[best] - logits)).abs().max())


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_only_near_ties_are_tipped_in_bfloat16(
    name: Any, reference: Callable[[int], list[int]], record_property: Callable[[str, object], None]
) -> None:
    """All are forced to the tokens of the reference in float32, which is the referee.

    Bfloat16: ours rounds less often than the reference, so its logits are no farther from float32's, by root mean
    square. Where it would choose another token, float32's best led by less than the reference's rounding moves a lead.
    """
    if reason := backends.unavailable(name):
        pytest.skip(reason)
    steps = 300 if name == "cpu" else TOKENS
    text = PROMPT + reference(steps)
    backend = Backend(name)
    truth, hf = (ReferenceEngine(weights(dtype), 2048) for dtype in (FP32, BF16))
    ours, precise = (PagedEngine(paged(backend, dtype), 2048) for dtype in (BF16, FP32))
    leads, tipped = torch.zeros(steps), list[tuple[int, float]]()  # steps, and by how much float32's best led
    errors = torch.zeros(3, steps, dtype=torch.float64)
    for step in range(steps):
        exact, *others = (
            (engine.decode(text[len(PROMPT) + step - 1]) if step else engine.prefill(PROMPT)).cpu()
            for engine in (truth, hf, ours, precise)
        )
        errors[:, step] = torch.tensor([moved(exact, logits) for logits in others])
        best, second = exact.topk(2).values
        leads[step] = best - second
        if others[1].argmax() != exact.argmax():
            tipped.append((step, float(leads[step])))
    record_property("choices that bfloat16 tipped", tipped)
    assert errors[2].max() < leads.min(), "float16 around float32 could tip a choice: the story is no test of tokens"
    hf_error, our_error, _ = errors.square().mean(1).sqrt().tolist()
    assert our_error <= hf_error
    assert all(lead <= errors[0].max() for _, lead in tipped), tipped
    assert len(tipped) <= steps // 100, f"so many are no near-ties: {tipped}"


@pytest.mark.parametrize("name", [name for name in backend_names() if name != "auto"])
def test_every_attention_tells_the_story(name: str, reference: Callable[[int], list[int]]) -> None:
    if reason := unavailable(name):
        pytest.skip(reason)
    backend = Backend("cuda" if torch.cuda.is_available() else "cpu")
    follow(PagedEngine(paged(backend, attention=name), 64), reference(40))


@pytest.mark.parametrize("chunk", [1, 16, 17, 1000])
def test_a_prompt_in_chunks_of_any_size(
    registered_backend: Backend, reference: Callable[[int], list[int]], chunk: int
) -> None:
    """The tokens, and the logits of the reference up to a rounding of float16 in each of two right computations: tokens
    alone would not show a key that is left out."""
    prompt = PROMPT + reference(61)
    engine = PagedEngine(paged(registered_backend), 128, chunk=chunk)
    exact = ReferenceEngine(weights(FP32), 128).prefill(prompt)
    error = (engine.prefill(prompt).cpu() - exact).abs().max()
    assert error <= 2 * 2**-11 * exact.abs().max()
    follow(engine, reference(61 + 12)[61:], prompt)


def test_a_prompt_may_come_in_two_calls(registered_backend: Backend, reference: Callable[[int], list[int]]) -> None:
    """As the second message of a chat does, behind an answer."""
    text = PROMPT + reference(60)
    engine = PagedEngine(paged(registered_backend), 128, chunk=8)
    engine.prefill(text[:21])
    engine.decode(text[21])
    assert int(engine.prefill(text[22:45]).argmax()) == text[45]
    assert engine.length == 45
    engine.reset(30)
    assert engine.length == 30
    assert int(engine.prefill(text[30:50]).argmax()) == text[50]


def test_three_sequences_decode_together_as_each_alone(
    registered_backend: Backend, reference: Callable[[int], list[int]]
) -> None:
    """Of ragged lengths; one leaves on the way, and its pages go to the others."""
    model = paged(registered_backend)
    text = PROMPT + reference(60)
    starts, steps = (4, 15, 33), 20
    cache = model.new_cache(tokens=8 * 16, max_sequences=3)
    live = [cache.allocate() for _ in starts]
    last = [int(model.prefill(cache, one, text[:n]).argmax()) for one, n in zip(live, starts, strict=True)]
    told = [[token] for token in last]
    for step in range(steps):
        if step == 12:
            cache.free(live.pop(0))
            last.pop(0)
        logits = model.decode(cache, live, last)
        last = logits.argmax(-1).tolist()
        for tokens, token in zip(told[-len(live) :], last, strict=True):
            tokens.append(token)
    for tokens, start in zip(told, starts, strict=True):
        assert tokens == text[start : start + len(tokens)]


def test_a_step_takes_no_memory(registered_backend: Backend) -> None:
    """The cache, its indices and the workspaces are where they were, however far the story goes."""
    engine = PagedEngine(paged(registered_backend), 64)
    cache = engine.cache

    def places() -> list[int]:
        indices = [tensor for tensor in vars(cache.indices).values() if isinstance(tensor, Tensor)]
        kept = [*cache.k, *cache.v, *indices, *engine.model._workspaces.values()]
        return [tensor.data_ptr() for tensor in kept]

    follow_on = story(engine, PROMPT, 50)
    list(islice(follow_on, 30))
    before = places()
    list(islice(follow_on, 20))
    assert engine.length == len(PROMPT) + 49
    assert places() == before
