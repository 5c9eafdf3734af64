"""Sampling on the device, on every backend: kept sets, distribution, determinism; and what PyTorch sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import qwen_cuda.operators as ops
from chapters.ch11_generator.sampling_checks import (
    CHECKS,
    Draws,
    check_any_size_and_filter,
    check_rows_are_alone_in_a_batch,
    drawn,
    normal,
)
from qwen3_ref.sampling import Sampler, SamplingParams, keep_top_p
from qwen_cuda.testing.backends import Backend, schedule
from qwen_cuda.testing.strategies import examples
from qwen_cuda.testing.token_draws import keep_nucleus, masses


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_sample_tokens(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_threads_does_not_change_a_token(registered_backend: Backend, seed: int) -> None:
    with schedule(seed):
        check_any_size_and_filter(registered_backend)
        check_rows_are_alone_in_a_batch(registered_backend)


def test_a_row_that_does_not_fit_into_shared_memory(registered_backend: Backend) -> None:
    vocab = 2**18 + 5
    some = Draws(normal(1, vocab), 0.8, top_k=40, top_p=0.9, repetition_penalty=1.2, histories=[range(0, vocab, 7)])
    drawn(registered_backend, some)


def test_draws_are_those_of_the_reference_sampler(registered_backend: Backend) -> None:
    """A generation: the history grows by the token, the count of draws by one. As `qwen3_ref.sampling.Sampler`."""
    params = SamplingParams(0.8, top_k=30, top_p=0.9, min_p=0.02, repetition_penalty=1.3, seed=11)
    sampler, history = Sampler(params), [3, 5, 7]
    device = registered_backend.device
    some = Draws(normal(1, 300), 0.8, 30, 0.9, 0.02, 1.3, seeds=11, histories=[history])
    given, seen = {name: one.to(device) for name, one in some.parameters().items()}, some.seen().to(device)
    for step in range(30):
        logits = normal(1, 300, seed=step)
        token = registered_backend.op("sample_tokens")(logits.to(device), **given, seen=seen)
        assert int(token) == sampler(logits[0], history), step
        history.append(int(token))
        given["draws"] += 1


# Logits with ties, large gaps and tokens already dropped (−inf); never all of them.
LOGITS = (
    st.lists(st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, 2.5, -torch.inf]), min_size=1, max_size=24)
    .filter(lambda row: max(row) > -torch.inf)
    .map(torch.tensor)
)


@examples(300)
@given(LOGITS, st.floats(0.01, 0.999))
def test_the_nucleus_is_the_references_but_for_ties_and_rounding(logits: Tensor, p: float) -> None:
    """Where the two differ, a token is as likely as one that both keep, or the sums meet p within 24 roundings."""
    ours, theirs = (
        set(torch.nonzero(kept > -torch.inf).flatten().tolist())
        for kept in (keep_nucleus(logits, p), keep_top_p(logits, p))
    )
    chance = logits.double().softmax(-1)
    for token in ours ^ theirs:
        above = float(chance[logits > logits[token]].sum())
        tied = any(logits[token] == logits[other] for other in ours & theirs)
        assert (tied and token in ours) or abs(above - p) < 2e-6, token


def test_masses_are_exponentials() -> None:
    """Within 2^-18, of which the rounded power of two has most, and one unit of 2^-40; the largest is exact."""
    below = -torch.cat((torch.zeros(1), torch.logspace(-8, 1.6, 20_000), torch.tensor([1e4, torch.inf])))
    want = below.double().exp() * 2.0**40
    error = (masses(below).double() - want).abs()
    assert int(masses(below)[0]) == 2**40
    assert bool((error <= want * 2.0**-18 + 1).all())


def counts_of(some: Draws, calls: int) -> Tensor:
    """What the CPU's operator draws: int64 `[calls, b]`."""
    parameters = some.parameters()
    rows = []
    for call in range(calls):
        parameters["draws"] = torch.full_like(parameters["draws"], call)
        rows.append(ops.sample_tokens(some.logits, **parameters, seen=some.seen()))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("options", "kept", "limit"),
    [({}, 6, 20.5), ({"temperature": 0.5}, 6, 20.5), ({"top_k": 4}, 4, 16.3), ({"top_p": 0.75}, 3, 13.8)],
)
def test_tokens_follow_the_distribution(options: dict[str, Any], kept: int, limit: float) -> None:
    """Pearson's χ² of 8,000 draws, of eight seeds: its 99.9 % point for 5, 3 or 2 degrees of freedom is `limit`."""
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, 2.0])
    some = Draws(logits.expand(8, 6).contiguous(), seeds=range(8), **options)
    tokens = counts_of(some, 1000)
    alive = logits.argsort(descending=True)[:kept]
    expected = (logits[alive].double() / options.get("temperature", 1.0)).softmax(-1) * tokens.numel()
    counts = torch.bincount(tokens.flatten(), minlength=6)[alive].double()
    assert int(counts.sum()) == tokens.numel(), "a dropped token was drawn"
    assert float(((counts - expected) ** 2 / expected).sum()) < limit


def test_one_draw_tells_nothing_of_the_next_nor_one_seed_of_another() -> None:
    """χ² of pairs: 66.6 is the 99.9 % point for 35 degrees of freedom."""
    tokens = counts_of(Draws(torch.zeros(8, 6), seeds=range(8)), 1000)
    for first, second in ((tokens[:-1], tokens[1:]), (tokens[:, :-1], tokens[:, 1:])):
        pairs = torch.bincount((first * 6 + second).flatten(), minlength=36).double()
        expected = first.numel() / 36
        assert float(((pairs - expected) ** 2 / expected).sum()) < 66.6


def arguments(device: torch.device, rows: int = 3) -> tuple[Tensor, ...]:
    some = Draws(normal(rows, 50), 0.9, 20, 0.9, 0.01, 1.2, seeds=range(rows), histories=[range(4)] * rows)
    return tuple(one.to(device) for one in (some.logits, *some.parameters().values(), some.seen()))


@pytest.mark.parametrize("rows", [3, 0])
def test_opcheck_of_sampling(registered_backend: Backend, rows: int) -> None:
    """PyTorch's own checks: the schema tells what is mutated, the fake gives the right shapes, tracing works."""
    torch.library.opcheck(
        registered_backend.namespace.sample_tokens.default, arguments(registered_backend.device, rows)
    )


def test_a_compiled_step_draws_the_eager_tokens(registered_backend: Backend) -> None:
    def step(*given: Tensor) -> tuple[Tensor, Tensor]:
        token = registered_backend.namespace.sample_tokens(*given)
        return token + 1, given[-1] + 0

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    one, other = (function(*arguments(registered_backend.device)) for function in (compiled, step))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_rows_may_be_shared_out_among_threads() -> None:
    some = Draws(normal(8, 4000), 0.9, top_k=50, top_p=0.9, seeds=range(8))
    given, threads = some.parameters(), torch.get_num_threads()
    expected = ops.sample_tokens(some.logits, **given, seen=some.seen())
    torch.set_num_threads(3)
    try:
        assert torch.equal(ops.sample_tokens(some.logits, **given, seen=some.seen()), expected)
    finally:
        torch.set_num_threads(threads)


def test_seen_tokens_sets_one_bit_a_token() -> None:
    seen = ops.seen_tokens([[0, 31, 32, 32, 69], [], iter([33])], 70)
    assert (seen.dtype, seen.is_contiguous()) == (torch.int32, True)
    assert seen.tolist() == [[1 - 2**31, 1, 32], [0, 0, 0], [0, 2, 0]]
    for wrong in (70, -1):
        with pytest.raises(ValueError, match="a history holds token ids outside 0 to 69"):
            ops.seen_tokens([[3, wrong]], 70)


def test_a_row_does_not_see_what_another_has_drawn() -> None:
    some = Draws(torch.ones(2, 40), 0.01, repetition_penalty=1e4, seeds=[1, 2])
    given, seen = some.parameters(), some.seen()
    both = [ops.sample_tokens(some.logits, **given, seen=seen) for _ in range(40)]
    assert torch.equal(torch.stack(both).sort(0).values, torch.arange(40)[:, None].expand(40, 2)), "each token once"
    assert seen.tolist() == [[-1, 255]] * 2
