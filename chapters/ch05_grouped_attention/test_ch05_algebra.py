"""The algebra under the kernel: (m, l, o) merge in any order and any cut to the softmax's weighted mean. In float64."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qwen3_ref import functional as F
from qwen3_ref.functional import Partial
from qwen_cuda.testing.strategies import examples, seeds

DIM = 5
TOLERANCE = 1e-12  # sums of at most 40 terms of order one, an exponential each, in numbers of 53 bits


@st.composite
def scored(draw: st.DrawFn, most: int = 40) -> tuple[Tensor, Tensor]:
    """Scores `[t]`, some −inf, and values `[t, DIM]`. Differences of scores reach 2000: e^2000 is no float64."""
    count = draw(st.integers(0, most))
    spread = draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
    generator = torch.Generator().manual_seed(draw(seeds()))
    scores = spread * (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1)
    hidden = torch.rand(count, generator=generator) < draw(st.sampled_from([0.0, 0.2, 1.0]))
    return scores.masked_fill(hidden, -torch.inf), torch.randn(count, DIM, generator=generator, dtype=torch.float64)


def partial(scores: Tensor, values: Tensor) -> Partial:
    """By attention_partition: a query of one dimension that is 1, so that the keys are the scores."""
    finite = scores.isfinite()
    keys = scores[finite][None, None, :, None]
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    m, l, _ = F.attention_partition(one, keys, keys, 1.0)  # noqa: E741 - the letter of the literature
    weights = torch.exp(scores[finite] - (m.flatten() if finite.any() else 0.0))
    return Partial(m[0, 0], l[0, 0], (weights[:, None] * values[finite]).sum(0)[None])


def definition(scores: Tensor, values: Tensor) -> Tensor:
    if not scores.isfinite().any():
        return torch.zeros(1, DIM, dtype=torch.float64)
    return (torch.softmax(scores, 0)[:, None] * values).sum(0)[None]


def assert_equal(a: Partial, b: Partial) -> None:
    assert torch.equal(a.m, b.m)
    torch.testing.assert_close(a.l, b.l, rtol=TOLERANCE, atol=0)
    torch.testing.assert_close(a.o, b.o, rtol=TOLERANCE, atol=TOLERANCE * float(a.l.max() + 1) * 4)


def parts(some: tuple[Tensor, Tensor], cuts: list[int]) -> list[Partial]:
    edges = [0, *sorted(min(cut, len(some[0])) for cut in cuts), len(some[0])]
    return [partial(some[0][a:b], some[1][a:b]) for a, b in pairwise(edges)]


@examples(200)
@given(scored(), st.lists(st.integers(0, 40), max_size=8), seeds())
def test_any_cut_and_any_order_give_the_definition(some: tuple[Tensor, Tensor], cuts: list[int], seed: int) -> None:
    partials = parts(some, cuts)
    random.Random(seed).shuffle(partials)
    torch.testing.assert_close(F.merge_partitions(partials), definition(*some), rtol=TOLERANCE, atol=TOLERANCE * 4)


@examples(100)
@given(scored(12), scored(12), scored(12))
def test_the_merge_is_associative_and_commutative(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], c: tuple[Tensor, Tensor]
) -> None:
    x, y, z = partial(*a), partial(*b), partial(*c)
    assert_equal(F.merge_partials(x, y), F.merge_partials(y, x))
    assert_equal(F.merge_partials(F.merge_partials(x, y), z), F.merge_partials(x, F.merge_partials(y, z)))


@examples(100)
@given(scored())
def test_an_empty_partition_changes_not_one_bit(some: tuple[Tensor, Tensor]) -> None:
    full, empty = partial(*some), partial(some[0][:0], some[1][:0])
    assert float(empty.m) == -torch.inf
    assert not empty.l.any()
    for merged in (F.merge_partials(full, empty), F.merge_partials(empty, full)):
        for got, want in zip(merged, full, strict=True):
            assert torch.equal(got, want)


@examples(100)
@given(scored(), st.sampled_from([-1e4, -3.0, 0.5, 1e4]))
def test_a_constant_added_to_all_scores_changes_nothing(some: tuple[Tensor, Tensor], shift: float) -> None:
    got = F.merge_partitions([partial(some[0] + shift, some[1])])
    # The sum score + shift is rounded: 1e4 · 2^-53 in the exponent.
    torch.testing.assert_close(got, definition(*some), rtol=1e-10, atol=1e-10)


@examples(100)
@given(scored(), st.integers(1, 9))
def test_online_softmax_is_the_merge_of_its_turns(some: tuple[Tensor, Tensor], turn: int) -> None:
    """What a kernel does, token by token: raise m, rescale l and o, add."""
    m, l, o = -torch.inf, 0.0, torch.zeros(DIM, dtype=torch.float64)  # noqa: E741
    for first in range(0, len(some[0]), turn):
        scores, values = some[0][first : first + turn], some[1][first : first + turn]
        higher = max(m, float(scores.max()))
        if higher == -torch.inf:
            continue
        factor = float(torch.exp(torch.tensor(m - higher, dtype=torch.float64)))
        weights = torch.exp(scores - higher)
        m, l, o = higher, l * factor + float(weights.sum()), o * factor + weights @ values  # noqa: E741
    want = partial(*some)
    assert m == float(want.m)
    assert l == pytest.approx(float(want.l), rel=TOLERANCE)
    torch.testing.assert_close(o[None] / (l or 1.0), definition(*some), rtol=TOLERANCE, atol=4 * TOLERANCE)


@examples(100)
@given(scored())
def test_powers_of_two_do_as_well(some: tuple[Tensor, Tensor]) -> None:
    """The kernel's scores are multiplied by log2(e) and its exponential is 2^x."""
    scores, values = some
    if scores.isfinite().any():
        weights = torch.exp2((scores - scores.max()) * torch.tensor(2.0, dtype=torch.float64).log().reciprocal())
        got = (weights[:, None] * values).sum(0)[None] / weights.sum()
        torch.testing.assert_close(got, definition(*some), rtol=1e-11, atol=1e-11)
