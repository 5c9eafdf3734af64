"""Timers for a CPU and a CUDA device: warm-up, then samples in turn, then the median with p10 and p90."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Quantiles:
    """Three quantiles of a sample. Nine of ten samples lie above `p10`, one of ten above `p90`."""

    p10: float
    median: float
    p90: float

    def __post_init__(self) -> None:
        # Written so that a NaN fails.
        if not 0 < self.p10 <= self.median <= self.p90 < math.inf:
            raise ValueError(
                f"quantiles are {self.p10}, {self.median}, {self.p90}; they must be positive and ascending."
            )

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quantiles:
        """Quantiles of at least one sample, between neighbours by linear interpolation.

        Raises:
            ValueError: there is no sample.
        """
        if not samples:
            raise ValueError("samples is empty; it must hold at least one measurement.")
        ordered = sorted(samples)

        def at(q: float) -> float:
            low, part = divmod(q * (len(ordered) - 1), 1)
            neighbours = ordered[int(low) : int(low) + 2]
            return neighbours[0] + part * (neighbours[-1] - neighbours[0])

        return cls(at(0.1), at(0.5), at(0.9))

    def rate(self, work: float) -> Quantiles:
        """`work` per unit of time, from quantiles of the time: the longest time is the lowest rate."""
        return Quantiles(work / self.p90, work / self.median, work / self.p10)


def alternate(
    calls: Mapping[str, Call],
    device: torch.device,
    *,
    budget_s: float = 1.0,
    min_samples: int = 5,
    max_samples: int = 100,
    warmup: int = 2,
    calls_per_sample: int = 1,
) -> dict[str, Quantiles]:
    """Times several functions in turn, so that whatever else the machine does slows all of them alike.

    Args:
        budget_s: after `min_samples` rounds, sampling ends once this much time per function has passed.
        warmup: calls of each function that are not counted.
        calls_per_sample: calls between two readings of the clock, for functions too short to time alone.
    Returns:
        µs per call of each function.
    Raises:
        ValueError: a number of samples or calls is below 1, or `max_samples` below `min_samples`.
    """
    if min_samples < 1 or max_samples < min_samples or calls_per_sample < 1:
        raise ValueError(
            f"min_samples is {min_samples}, max_samples {max_samples}, calls_per_sample {calls_per_sample}; "
            "all must be at least 1, and max_samples no less than min_samples."
        )
    sample = _sample_cuda if device.type == "cuda" else _sample_cpu
    for call in calls.values():
        for _ in range(warmup):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + budget_s * len(calls)
    for done in range(max_samples):
        if done >= min_samples and time.perf_counter() > deadline:
            break
        for name, call in calls.items():
            samples[name].append(sample(call, calls_per_sample, device))
    return {name: Quantiles.of(values) for name, values in samples.items()}


def measure(
    call: Call, device: torch.device, *, budget_s: float = 1.0, min_samples: int = 5, warmup: int = 2
) -> Quantiles:
    """Times one function; µs per call. Arguments as in `alternate`."""
    return alternate({"": call}, device, budget_s=budget_s, min_samples=min_samples, warmup=warmup)[""]


def _sample_cpu(call: Call, repeats: int, device: torch.device) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) * 1e6 / repeats


def _sample_cuda(call: Call, repeats: int, device: torch.device) -> float:
    """From the device's point of view, gaps in which it waits for the next launch included."""
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()  # the queue is empty: what is timed begins with the first launch
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / repeats
