"""How long requests take: all contenders in turn, from an idle device to an idle device, by the clock of the host.

Each round times a request of one token, which is the time to the first one, and the whole request. Decoding is what
the second takes longer. The same holds for everybody, whatever happens inside.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from chapters.ch11_generator.end_to_end.contender import Answer, Inside
from qwen_cuda.benchmarking import Quantiles

ROUNDS, LEAST_ROUNDS = 10, 3
BUDGET_S = 4.0  # a contender that has used it up takes part in LEAST_ROUNDS rounds only


@dataclass
class Samples:
    """Seconds of each round. `rounds` names those in which a contender took part."""

    new_tokens: int
    rounds: list[int] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    @property
    def decode_s(self) -> list[float]:
        """Of the tokens after the first. The first one's median is taken off: its noise is not that of decoding."""
        first = statistics.median(self.first_s)
        return [whole - first for whole in self.whole_s]

    @property
    def whole(self) -> Quantiles:
        """Tokens per second of whole requests."""
        return Quantiles.of(self.whole_s).rate(self.new_tokens)

    @property
    def decode(self) -> Quantiles | None:
        """Tokens per second after the first; None where the clock cannot tell, or there is but one token."""
        if self.new_tokens == 1 or min(self.decode_s) <= 0:
            return None
        return Quantiles.of(self.decode_s).rate(self.new_tokens - 1)

    @property
    def first_us(self) -> Quantiles:
        """Time to the first token."""
        return Quantiles.of([seconds * 1e6 for seconds in self.first_s])


def measured(
    ready: Mapping[str, tuple[Answer, Inside]], new_tokens: int, device: torch.device, rounds: int = ROUNDS
) -> dict[str, Samples]:
    """Times contenders that have run before. They take turns there and back: whatever drifts hits all alike."""
    samples = {name: Samples(new_tokens) for name in ready}
    for number in range(rounds):
        names = list(ready)[:: -1 if number % 2 else 1]
        with _undisturbed():
            for name in names:
                mine = samples[name]
                if number >= LEAST_ROUNDS and sum(mine.first_s) + sum(mine.whole_s) > BUDGET_S:
                    continue
                answer, inside = ready[name]
                with inside():
                    mine.first_s.append(_seconds(answer, 1, device))
                    mine.whole_s.append(_seconds(answer, new_tokens, device))
                mine.rounds.append(number)
    return samples


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Python collects its garbage before the round, and not within a sample of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _seconds(answer: Answer, new_tokens: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    answer(new_tokens)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
