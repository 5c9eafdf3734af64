"""What chapter 11 promises of `sample_tokens`, each promise a function of the backend.

A token that differs from the reference's in one of many draws shows any wrong number: of what is kept, of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_ref.gumbel import gumbel_noise, philox4x32
from qwen3_ref.sampling import Sampler, SamplingParams
from qwen_cuda.operators import seen_tokens
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.references import REFERENCES

INF, NAN = torch.inf, torch.nan
PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seeds", "draws")
DTYPES = {"top_k": torch.int32, "seeds": torch.int64, "draws": torch.int64}


@dataclass(frozen=True)
class Draws:
    """Rows of logits, float32 `[b, V]`; of each parameter a value for each row, or one for all."""

    logits: Tensor
    temperature: float | Sequence[float] = 1.0
    top_k: int | Sequence[int] = 0
    top_p: float | Sequence[float] = 1.0
    min_p: float | Sequence[float] = 0.0
    repetition_penalty: float | Sequence[float] = 1.0
    seeds: int | Sequence[int] = 1
    draws: int | Sequence[int] = 0
    histories: Sequence[Sequence[int]] = ()  # without any, nothing was seen

    def parameters(self) -> dict[str, Tensor]:
        """Each parameter as the operator takes it: `[b]`."""
        rows = self.logits.shape[0]
        listed = {name: getattr(self, name) for name in PARAMETERS}
        return {
            name: torch.tensor(
                list(value) if isinstance(value, Sequence) else [value] * rows, dtype=DTYPES.get(name, torch.float32)
            )
            for name, value in listed.items()
        }

    def seen(self) -> Tensor:
        rows, vocab = self.logits.shape
        return seen_tokens(self.histories or [()] * rows, vocab)


def normal(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    """Logits as a model has them: many unlikely ones, and a few above."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def drawn(backend: Backend, some: Draws) -> list[int]:
    """Runs `sample_tokens` and holds it against the reference. → the token of each row.

    Nothing but `seen` is written, and there only the bit of each token.
    """
    parameters, before = some.parameters(), some.seen()
    placed = {name: backend.place(value) for name, value in {"logits": some.logits, **parameters}.items()}
    seen = backend.place(before)
    facts = {name: value.tolist() for name, value in parameters.items()}
    with case("sample_tokens", shape=tuple(some.logits.shape), **facts):
        token = backend.op("sample_tokens")(**{name: one.tensor for name, one in placed.items()}, seen=seen.tensor)
        assert (token.dtype, tuple(token.shape)) == (torch.int64, (some.logits.shape[0],))
        for name, one in placed.items():
            one.check_untouched(name)
        seen.check_guards("seen")
        tokens: list[int] = token.tolist()
        want = REFERENCES["sample_tokens"](some.logits, **parameters, seen=before)
        assert tokens == want.tolist(), f"the tokens are {tokens}; those of the reference are {want.tolist()}"
        assert torch.equal(seen.tensor.cpu(), before), "seen has other tokens than those before and those drawn"
    return tokens


def many(backend: Backend, some: Draws, calls: int) -> set[int]:
    """The tokens of `calls` draws of each row."""
    return {token for call in range(calls) for token in drawn(backend, replace(some, draws=call))}


def params_of(some: Draws) -> SamplingParams:
    """As the reference takes them; one value for all rows."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return SamplingParams(**{name: getattr(some, name) for name in names}, seed=1)


def check_any_size_and_filter(backend: Backend) -> None:
    """Vocabularies of one token, around a word of bits, a block, clusters of two, four and more; each filter, all."""
    options: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.7, "top_k": 20},
        {"top_p": 0.9},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.5, "min_p": 0.05},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.3},
        {"temperature": 0.0, "repetition_penalty": 1.3},
    )
    for vocab in (1, 2, 31, 32, 33, 515, 1024):
        for n, option in enumerate(options):
            logits, history = normal(2, vocab, seed=vocab + n), range(0, vocab, 3)
            drawn(backend, Draws(logits, **option, seeds=[n, -n], draws=vocab, histories=[history, history]))
    for vocab, n in ((1025, 5), (1500, 3), (2077, 2), (4101, 5), (8200, 4)):
        logits, history = normal(1, vocab, seed=vocab), range(0, vocab, 3)
        drawn(backend, Draws(logits, **options[n], seeds=7, histories=[history]))


def check_kept_tokens_are_the_references(backend: Backend) -> None:
    """Near-equal logits, so that each kept token is drawn: exactly those of `qwen3_ref.sampling.filtered`."""
    logits = (torch.randperm(60, generator=torch.Generator().manual_seed(3)).float() * 0.01).expand(8, 60).contiguous()
    for some in (
        Draws(logits, top_k=5),
        Draws(logits, top_k=1),
        Draws(logits, top_p=0.1),
        Draws(logits, top_p=0.093, top_k=30),
        Draws(logits, temperature=0.05, min_p=0.3),
        Draws(logits, temperature=0.5, top_k=20, top_p=0.5, min_p=0.85),
        Draws(logits - 3, temperature=2.0, top_k=4),
    ):
        some = replace(some, seeds=range(8))
        kept = Sampler(params_of(some)).filtered(some.logits[0])
        assert many(backend, some, 6) == set(torch.nonzero(kept > -INF).flatten().tolist())


def check_thresholds_anywhere(backend: Backend) -> None:
    """Far below the largest, where a search begins anew; among equals; among numbers of any size and sign."""
    steps = torch.arange(40.0)
    for logits in (
        torch.cat((torch.tensor([50.0]), steps * 0.01)),  # the k-th is 50 below
        torch.cat((torch.tensor([40.0, 39.5]), -steps * 0.01)),
        torch.cat((steps[:1] + 30, steps * 1e-30)),
        -steps * 1e-3,
        -1000 - steps * 0.5,
        (steps - 20) * 1e-3,
        torch.cat((steps * 0, steps * 0 + 1)),
    ):
        rows = logits.expand(2, -1).contiguous()
        for option in ({"top_k": 5}, {"top_k": 39}, {"top_p": 0.5}, {"top_k": 39, "top_p": 0.999}):
            # A temperature of 1e4 makes even the far ones likely; it does not change their order.
            drawn(backend, Draws(rows * 1e4, 1e4, **option, seeds=range(2)))
            drawn(backend, Draws(rows, 1e4, **option, seeds=range(2)))


def check_ties_stay(backend: Backend) -> None:
    """Tokens equal to the last one kept are kept: of top-k, and of top-p, where the reference keeps some of them."""
    logits = torch.tensor([1.0, 3.0, 1.0, 2.0, 1.0, 0.5, 1.0]).expand(8, 7).contiguous()
    equal = {0, 1, 2, 3, 4, 6}
    assert many(backend, Draws(logits, 5.0, top_k=3, seeds=range(8)), 6) == equal
    assert many(backend, Draws(logits, 50.0, top_p=0.3, seeds=range(8)), 6) == equal
    assert many(backend, Draws(logits, top_p=1e-4, seeds=range(8)), 2) == {1}
    flat = torch.zeros(8, 12)
    for option in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        assert many(backend, Draws(flat, **option, seeds=range(8)), 8) == set(range(12))
    assert drawn(backend, Draws(flat, temperature=0.0)) == [0] * 8


def check_extremes(backend: Backend) -> None:
    """Filters at their ends, temperatures from 1e-5 to 1e5, logits of −inf and of the largest size."""
    logits = normal(4, 700, seed=5)
    first = logits.argmax(-1).tolist()
    for option in ({"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-5}):
        assert drawn(backend, Draws(logits, **option, seeds=range(4))) == first
    everything = drawn(backend, Draws(logits, seeds=range(4)))
    for option in ({"top_k": 700}, {"top_k": 2**31 - 1}, {"top_k": -1}, {"top_p": 2.0}, {"min_p": -1.0}):
        assert drawn(backend, Draws(logits, **option, seeds=range(4))) == everything
    drawn(backend, Draws(logits, 1e5, top_p=0.5, seeds=range(4)))
    few = torch.full((8, 90), -INF)
    few[:, 33], few[:, 60] = 1.0, 2.0
    for option in ({}, {"top_k": 10}, {"top_p": 0.9999}, {"top_k": 2, "min_p": 0.1}):
        assert many(backend, Draws(few, **option, seeds=range(8)), 4) == {33, 60}
    huge = normal(2, 90, spread=1e37)
    drawn(backend, Draws(huge, top_k=5, top_p=0.9))
    drawn(backend, Draws(huge, 3e38, top_k=5, top_p=0.9))


def check_broken_rows_give_minus_one(backend: Backend) -> None:
    """One NaN, an infinity, −inf everywhere, a quotient that overflows; the other rows do not notice."""
    for temperature in (0.0, 1.0):
        logits = normal(6, 1500, seed=6)
        logits[0, 1400], logits[1, 3], logits[2], logits[4, 70] = NAN, INF, -INF, -NAN
        some = Draws(logits, temperature, top_k=5, top_p=0.9, min_p=0.1)
        tokens = drawn(backend, some)
        assert [token < 0 for token in tokens] == [True, True, True, False, True, False]
    assert drawn(backend, Draws(normal(1, 40) * 1e35, 1e-4)) == [-1]


def check_greedy(backend: Backend) -> None:
    """The first of the largest below 1e-6, after the penalty; filters and seeds do not matter; −0 is 0."""
    logits = torch.tensor([[-0.0, -1.0, 0.0, -0.0], [5.0, 4.9, 4.0, -2.0]])
    for temperature in (0.0, 9.9e-7, -1.0, NAN):
        assert drawn(backend, Draws(logits, temperature, top_k=1, top_p=0.1, seeds=[1, 2])) == [0, 0]
        assert drawn(backend, Draws(logits, temperature, repetition_penalty=2.0, histories=[[0], [0]])) == [0, 1]
    assert drawn(backend, Draws(torch.tensor([[-1.0, -1.5]]), 0.0, repetition_penalty=2.0, histories=[[0]])) == [1]
    warm = Draws(torch.tensor([[1e-6, 0.0]]).expand(8, 2).contiguous(), 1.1e-6, seeds=range(8))
    assert many(backend, warm, 3) == {0, 1}, "a temperature above it draws"


def check_every_seen_bit_counts(backend: Backend) -> None:
    """A penalty that rules out what was seen: of 70 tokens the one that was not is drawn, wherever it is."""
    for left in (0, 1, 30, 31, 32, 63, 64, 69):
        history = [token for token in range(70) if token != left]
        some = Draws(torch.ones(2, 70), repetition_penalty=[1e4, 1.0], histories=[history, history])
        some = replace(some, temperature=[0.01, 0.0])
        assert drawn(backend, some)[0] == left
    drawn(backend, Draws(torch.ones(1, 2000), 0.01, repetition_penalty=1e4, histories=[range(1999)]))


def check_rows_are_alone_in_a_batch(backend: Backend) -> None:
    """A batch of rows with parameters of their own, one of them greedy, one broken: the same tokens alone."""
    logits = normal(8, 1100, seed=8)
    logits[5, 9] = NAN
    some = Draws(
        logits,
        temperature=[1.0, 0.0, 0.7, 2.0, 1.0, 1.0, 0.3, 1.0],
        top_k=[0, 5, 40, 0, 3, 7, 0, 1],
        top_p=[0.9, 1.0, 0.95, 1.0, 1.0, 0.3, 0.5, 1.0],
        min_p=[0.0, 0.5, 0.02, 0.01, 0.0, 0.0, 0.0, 0.9],
        repetition_penalty=[1.0, 1.2, 1.1, 1.0, 0.8, 1.0, 3.0, 1.0],
        seeds=[1, 2, 3, 2**62, -5, 6, 2**32 + 1, 8],
        draws=[0, 1, 2**31, 2**32, 2**40 + 3, 5, 6, 7],
        histories=[list(range(row, 1100, 2 + row)) for row in range(8)],
    )
    together = drawn(backend, some)
    for row in range(8):
        own = {name: [getattr(some, name)[row]] for name in PARAMETERS}
        alone = Draws(logits[row : row + 1], **own, histories=[some.histories[row]])
        assert drawn(backend, alone) == [together[row]]


def check_seeds_and_draws_have_64_bits(backend: Backend) -> None:
    """Each bit changes the token of flat logits; −1 is a seed like any other."""
    flat = torch.zeros(8, 900)
    for name in ("seeds", "draws"):
        values = [0, 1, 2**31, 2**32, 2**33, 2**62, -1, -(2**63)]
        changed: dict[str, Any] = {name: values}
        tokens = drawn(backend, Draws(flat, **changed))
        assert len(set(tokens)) >= 7


RARE = (6, 46, 2357)  # seed, draw, token: its word is one of the 2^9 smallest of 2^32


def check_the_noise_of_rare_words(backend: Backend) -> None:
    """Next to u = 1 the noise is large, and must be exact: against a second token that is a little less, or more."""
    seed, draw, token = RARE
    counter = np.array([[token // 4], [0], [draw], [0]], np.uint32)
    assert philox4x32(counter, seed)[token % 4, 0] < 2**9
    noise = gumbel_noise(seed, draw, token + 1)
    for difference in (-0.01, 0.01):
        logits = torch.full((1, token + 1), -INF)
        logits[0, token] = -10.0
        logits[0, 0] = float(noise[token] - noise[0]) - 10 + difference
        assert drawn(backend, Draws(logits, seeds=seed, draws=draw)) == [token if difference < 0 else 0]


CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_any_size_and_filter,
    check_rows_are_alone_in_a_batch,
    check_kept_tokens_are_the_references,
    check_thresholds_anywhere,
    check_ties_stay,
    check_extremes,
    check_broken_rows_give_minus_one,
    check_greedy,
    check_every_seen_bit_counts,
    check_seeds_and_draws_have_64_bits,
    check_the_noise_of_rare_words,
)
