"""Sampling: each filter against its definition and against transformers, the draw against its distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process

from qwen3_ref.sampling import Sampler, SamplingParams, keep_min_p, keep_top_k, keep_top_p, penalise_repetition

NAN, INF = math.nan, math.inf
hf: Any = logits_process  # it declares LongTensor and FloatTensor, which no tensor is to a type checker
# Logits with ties, large gaps and tokens already dropped (−inf); never all of them.
LOGITS = (
    st.lists(st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, 2.5, -INF]), min_size=1, max_size=24)
    .filter(lambda row: max(row) > -INF)
    .map(torch.tensor)
)


def kept(filtered: Tensor) -> set[int]:
    return set(torch.nonzero(filtered > -INF).flatten().tolist())


def probabilities(logits: Tensor) -> list[float]:
    weights = [math.exp(x - float(logits.max())) for x in logits.tolist()]
    return [weight / math.fsum(weights) for weight in weights]


@given(logits=LOGITS, k=st.integers(1, 30))
def test_top_k_keeps_the_k_largest_and_their_ties(logits: Tensor, k: int) -> None:
    kth = sorted(logits.tolist(), reverse=True)[min(k, len(logits)) - 1]
    want = {i for i, x in enumerate(logits.tolist()) if x >= kth and x > -INF}
    assert kept(keep_top_k(logits, k)) == want
    assert torch.equal(keep_top_k(logits, k), hf.TopKLogitsWarper(k)(torch.zeros(1, 1), logits[None])[0])


@given(logits=LOGITS, p=st.floats(0.01, 0.999))
def test_top_p_keeps_the_fewest_most_likely_tokens_that_reach_p(logits: Tensor, p: float) -> None:
    got = kept(keep_top_p(logits, p))
    chance = probabilities(logits)
    mass = math.fsum(chance[i] for i in got)
    slack = 1e-5  # sums of 24 float32 probabilities
    assert got
    assert mass >= p - slack, "the kept tokens reach p"
    least = min(got, key=lambda i: chance[i])
    assert mass - chance[least] <= p + slack or len(got) == 1, "without the least likely of them they do not"
    dropped = [chance[i] for i in range(len(chance)) if i not in got]
    assert max(dropped, default=0) <= chance[least] + 1e-9, "nothing likelier was dropped"
    assert torch.equal(keep_top_p(logits, p), hf.TopPLogitsWarper(p)(torch.zeros(1, 1), logits[None])[0])


@given(logits=LOGITS, p=st.floats(0.001, 1))
def test_min_p_keeps_tokens_near_enough_to_the_most_likely(logits: Tensor, p: float) -> None:
    got, chance = kept(keep_min_p(logits, p)), probabilities(logits)
    for i, one in enumerate(chance):
        ratio = one / max(chance)
        if abs(ratio - p) > 1e-5 * p:  # float32 probabilities may fall on either side of a tie
            assert (i in got) == (ratio >= p), i
    assert int(logits.argmax()) in got
    assert torch.equal(keep_min_p(logits, p), hf.MinPLogitsWarper(p)(torch.zeros(1, 1), logits[None])[0])


@given(logits=LOGITS, penalty=st.floats(0.5, 3), data=st.data())
def test_repetition_penalty_equals_transformers(logits: Tensor, penalty: float, data: st.DataObject) -> None:
    history = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=9))
    want = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits[None].clone())[0]
    seen = torch.tensor(sorted(set(history)))
    assert torch.equal(penalise_repetition(logits, seen, penalty), want)
    for i, (before, after) in enumerate(zip(logits.tolist(), want.tolist(), strict=True)):
        factor = penalty if before < 0 else 1 / penalty
        assert after == (pytest.approx(before * factor, rel=1e-6) if i in history else before)


@given(
    logits=LOGITS,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_all_together_equal_transformers_in_its_order(logits: Tensor, penalty: float, **options: Any) -> None:
    history = [0, len(logits) - 1, 0]
    sampler = Sampler(SamplingParams(repetition_penalty=penalty, **options))
    chain: list[Any] = [
        hf.RepetitionPenaltyLogitsProcessor(penalty),
        hf.TemperatureLogitsWarper(options["temperature"]),
    ]
    chain += [hf.TopKLogitsWarper(options["top_k"])] if options["top_k"] else []
    chain += [hf.TopPLogitsWarper(options["top_p"])] if options["top_p"] < 1 else []
    chain += [hf.MinPLogitsWarper(options["min_p"])] if options["min_p"] else []
    want = logits[None].clone()
    for step in chain:
        want = step(torch.tensor([history]), want)
    before = logits.clone()
    assert torch.equal(sampler.filtered(logits, history), want[0])
    assert torch.equal(logits, before), "the caller's logits stay as they are"
    assert sampler(logits, history) in kept(want[0])


@given(logits=LOGITS)
def test_greedy_takes_the_largest_and_ignores_the_filters(logits: Tensor) -> None:
    assert Sampler(SamplingParams())(logits) == int(logits.argmax())
    assert Sampler(SamplingParams(top_k=1, top_p=0.1, min_p=0.9, seed=3))(logits) == int(logits.argmax())


def test_greedy_heeds_the_repetition_penalty() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0])
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    assert [sampler(logits, history) for history in ([], [0], [0, 1])] == [0, 1, 0]
    assert Sampler(SamplingParams(repetition_penalty=2.0))(torch.tensor([-1.0, -1.5]), [0]) == 1


@pytest.mark.parametrize(
    ("options", "logits_scale"),
    [
        ({"temperature": 1.0}, 1.0),
        ({"temperature": 0.5}, 2.0),
        ({"temperature": 2.0}, 0.5),
        ({"temperature": 1, "top_k": 3}, 1.0),
    ],
)
def test_draws_follow_the_distribution(options: dict[str, Any], logits_scale: float) -> None:
    """Pearson's χ² of 4,000 draws, seeded. Its 99.9 % point is 20.5 for 5 degrees of freedom and 13.8 for 2."""
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, 2.0])
    sampler, draws = Sampler(SamplingParams(seed=7, **options)), 4_000
    counts = [0] * 6
    for _ in range(draws):
        counts[sampler(logits)] += 1
    alive = sorted(range(6), key=lambda i: -float(logits[i]))[: options.get("top_k", 6)]
    weights = {i: math.exp(float(logits[i]) * logits_scale) for i in alive}
    expected = {i: draws * weight / sum(weights.values()) for i, weight in weights.items()}
    chi2 = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in alive)
    assert sum(counts[i] for i in alive) == draws, "a dropped token was drawn"
    assert chi2 < {6: 20.5, 3: 13.8}[len(alive)]


def test_a_seed_repeats_the_draws_and_another_does_not() -> None:
    logits = torch.zeros(1000)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler(logits) for _ in range(20)]

    torch.manual_seed(0)
    first = draws(5)
    torch.manual_seed(1)  # nobody else's seed matters
    assert draws(5) == first
    assert draws(0) != first
    assert draws(None) != draws(None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 2},
        {"temperature": 1, "top_p": 0.5},
        {"temperature": 1, "min_p": 0.1},
    ],
)
@pytest.mark.parametrize(
    "bad", [[NAN, 1.0, 2.0], [1.0, NAN, 2.0], [1.0, 2.0, NAN], [NAN] * 3, [-INF] * 3, [1.0, INF, 2.0], [-INF, NAN, 0.0]]
)
def test_broken_logits_raise_and_never_draw(options: dict[str, Any], bad: list[float]) -> None:
    for history in ([], [0, 1]):
        sampler = Sampler(SamplingParams(**options, repetition_penalty=1.1))
        with pytest.raises(
            ValueError, match=r"the largest logit is (nan|inf|-inf); the model's weights or activations are broken"
        ):
            sampler(torch.tensor(bad), history)


@settings(deadline=None)
@given(logits=LOGITS, temperature=st.floats(1e-38, 1e38) | st.sampled_from([1e-320, 5e-324]))
def test_extreme_temperatures_still_draw(logits: Tensor, temperature: float) -> None:
    """Good logits never look broken, however cold; very cold is greedy."""
    token = Sampler(SamplingParams(temperature=temperature, seed=0))(logits)
    assert float(logits[token]) > -INF
    if temperature < 1e-9:
        assert float(logits[token]) == float(logits.max())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be a finite number of at least 0"),
        ({"temperature": NAN}, "temperature is nan; it must be"),
        ({"temperature": INF}, "temperature is inf; it must be"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number of at least 0"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
        ({"top_k": True}, "top_k is True; it must be a whole number"),
        ({"top_p": 0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01; it must be above 0"),
        ({"top_p": NAN}, "top_p is nan; it must be above 0"),
        ({"min_p": -0.5}, "min_p is -0.5; it must be between 0 and 1"),
        ({"min_p": NAN}, "min_p is nan; it must be between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a finite number above 0"),
        ({"repetition_penalty": INF}, "repetition_penalty is inf; it must be a finite number"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be a whole number from 0 to"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)
