"""The random numbers of a draw: Philox against its published answers, logarithm and noise against float64, the draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qwen3_ref.gumbel import draw_token, gumbel, gumbel_noise, natural_log, philox4x32

# Known answers of philox4x32 with ten rounds, from the authors' implementation, Random123: key, counter, result.
KNOWN = [
    (0, [0, 0, 0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (2**64 - 1, [0xFFFFFFFF] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        0x299F31D0A4093822,
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN)
def test_philox_gives_the_known_answers(key: int, counter: list[int], answer: list[int]) -> None:
    several = np.array([counter, [1, 2, 3, 4]], np.uint32).T
    assert philox4x32(several, key)[:, 0].tolist() == answer


def test_the_logarithm_is_near_enough() -> None:
    """Up to |ln y| = 24: the product with the exponent and the sum round by 2^-20 each. And relatively next to 1."""
    y = np.exp(np.random.default_rng(1).uniform(-24, 22, 100_000)).astype(np.float32)
    error = natural_log(y) - np.log(y.astype(np.float64))
    assert float(np.abs(error).max()) < 2**-18
    near = (1 + np.arange(-1000, 1000) * 2.0**-24).astype(np.float32)
    want = np.log(near.astype(np.float64))
    assert bool((np.abs(natural_log(near) - want) <= 2**-22 * np.abs(want)).all())


def test_the_noise_is_right_from_the_smallest_to_the_largest_word() -> None:
    """Against float64, within 2^-18: four units in the last place of the largest, 22.87."""
    ends = np.arange(5000, dtype=np.uint64)
    middle = np.random.default_rng(2).integers(0, 2**32, 100_000, dtype=np.uint64)
    words = np.concatenate((ends, 2**32 - 1 - ends, 2**30 - 2500 + ends, middle)).astype(np.uint32)
    noise = gumbel(words)
    want = -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-32))
    assert noise.dtype == np.float32
    assert float(np.abs(noise - want).max()) < 2**-18
    assert float(noise.max()) == noise[0] < 22.88
    assert bool((noise[:4999] >= noise[1:5000]).all()), "a smaller word has no smaller noise"


def test_the_noise_has_gumbels_distribution() -> None:
    """Kolmogorov and Smirnov's distance of 200,000 numbers to exp(−e^−g): its 99.9 % point is 1.95 / sqrt(n)."""
    noise = np.sort(np.concatenate([gumbel_noise(3, draw, 20_000) for draw in range(10)]).astype(np.float64))
    ranks = np.arange(noise.size) / noise.size
    assert float(np.abs(np.exp(-np.exp(-noise)) - ranks).max()) < 1.95 / math.sqrt(noise.size)


def test_each_token_draw_and_seed_has_numbers_of_its_own() -> None:
    base = gumbel_noise(5, 9, 1001)
    assert np.unique(base).size > 990
    for seed, draw in ((6, 9), (5 + 2**32, 9), (5, 10), (5, 9 + 2**32), (5 + 2**62, 9)):
        assert np.mean(gumbel_noise(seed, draw, 1001) == base) < 0.01
    assert np.array_equal(gumbel_noise(5, 9, 7), base[:7]), "a token's number does not depend on the vocabulary"


def test_a_draw_takes_the_largest_sum_and_never_a_dropped_token() -> None:
    logits = torch.tensor([0.3, -torch.inf, 1.2, 0.0, 0.9])
    for draw in range(200):
        noise = torch.from_numpy(gumbel_noise(1, draw, 5))
        assert draw_token(logits, 1, draw) == int((logits + noise).argmax()) != 1
    assert draw_token(torch.tensor([-torch.inf, -3e38]), 1, 0) == 1


def test_a_common_offset_of_the_logits_changes_no_draw() -> None:
    logits = torch.randint(-8, 8, (50,), generator=torch.Generator().manual_seed(0)) / 4  # sums are exact
    for draw in range(50):
        assert draw_token(logits + 4096, 2, draw) == draw_token(logits, 2, draw)
