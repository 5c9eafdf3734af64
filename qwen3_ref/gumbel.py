"""Random numbers that mean the same everywhere, and a draw by their largest sum with the logits.

No state: a number is a function of the seed, of how many draws came before and of the token. Each step is one operation
on integers or one rounded operation of float32, so a kernel that repeats them has the same bits.

Sources: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011, section 3.3 (Philox); Maddison et al., A*
Sampling, 2014, section 2 (the Gumbel-max trick).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
ROUNDS = 10
LN_2 = np.float32(0.6931471805599453)
SQRT_HALF_BITS = 0x3F3504F3  # of the float32 next to sqrt(1/2)


def philox4x32(counter: Words, key: int) -> Words:
    """Philox4x32-10: 128 random bits for each counter. `counter: [4, n]` → `[4, n]`.

    Args:
        key: 64 bits; the low word comes first.
    """
    even, odd = counter[0::2], counter[1::2]  # words 0 and 2, words 1 and 3
    keys = np.array([[key & 0xFFFFFFFF], [key >> 32 & 0xFFFFFFFF]], np.uint32)
    for _ in range(ROUNDS):
        product = even * MULTIPLIERS
        even, odd = (product >> 32).astype(np.uint32)[::-1] ^ odd ^ keys, product.astype(np.uint32)[::-1]
        keys = keys + KEY_STEPS
    return np.stack((even[0], odd[0], even[1], odd[1]))


def _log_of_ratio(difference: Floats, total: Floats) -> Floats:
    """ln(a/b) from a − b and a + b, for a/b from sqrt(1/2) to sqrt(2), as 2 artanh((a − b)/(a + b))."""
    z = difference / total
    square = z * z
    series = square * np.float32(1 / 9)
    for divisor in (7, 5, 3):
        series = (series + np.float32(1 / divisor)) * square
    return (z + z) * (series + np.float32(1))


def natural_log(y: Floats) -> Floats:
    """ln y within 2^-18, for float32 y with |ln y| up to 24, by single rounded operations."""
    bits = y.view(np.int32)
    exponent = bits - SQRT_HALF_BITS >> 23
    mantissa = (bits - (exponent << 23)).view(np.float32)  # from sqrt(1/2) to sqrt(2)
    one = np.float32(1)
    return exponent.astype(np.float32) * LN_2 + _log_of_ratio(mantissa - one, mantissa + one)


def gumbel(words: Words) -> Floats:
    """−ln(−ln u) for u = 1 − (word + 1/2) / 2^32; any shape.

    At most 22.88, and exact to a few units in the last place also where u is next to 1: there it is large, and decides
    the draw.
    """
    half, scale = np.float32(0.5), np.float32(2.0**-32)
    v = (words.astype(np.float32) + half) * scale
    u = ((~words).astype(np.float32) + half) * scale
    log_u = np.where(words < 1 << 30, _log_of_ratio(-v, np.float32(2) - v), natural_log(u))
    return -natural_log(-log_u)


def gumbel_noise(seed: int, draw: int, size: int) -> Floats:
    """The noise of tokens 0 to size − 1 in draw number `draw` of a seed. → `[size]`.

    Token i takes word i % 4 of Philox with the seed as key and (i // 4, 0, draw modulo 2^32, draw // 2^32) as counter.
    """
    counter = np.zeros((4, (size + 3) // 4), np.uint32)
    counter[0] = np.arange(counter.shape[1])
    counter[2], counter[3] = draw & 0xFFFFFFFF, draw >> 32 & 0xFFFFFFFF
    return gumbel(philox4x32(counter, seed).T.reshape(-1)[:size])


# --8<-- [start:draw]
def draw_token(logits: Tensor, seed: int, draw: int) -> int:
    """A token drawn by softmax(logits): the first of the largest sums of logit and noise.

    Args:
        logits: float32 `[V]`; the largest is finite, −inf is never drawn.
        seed: from 0 to 2^63 − 1.
        draw: how many tokens the seed has drawn before.

    The largest logit is taken off first: near it, where it counts, the difference is exact.
    """
    noise = torch.from_numpy(gumbel_noise(seed, draw, logits.shape[0])).to(logits.device)
    return int((logits - logits.max() + noise).argmax())


# --8<-- [end:draw]
