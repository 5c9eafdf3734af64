"""Times of short kernels on a GPU: many calls in one CUDA graph, replayed in turn with those of the other variants.

To launch a kernel from Python takes longer than a short kernel runs. In a graph the launches are prepared, and the time
from the first kernel to the last, divided by their number, is what a call costs within a model that runs as a graph.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from qwen_cuda.benchmarking.timing import Call, Quantiles

Cache = Literal["cold", "warm"]
Inside = Callable[[], AbstractContextManager[object]]
LEAST_CALLS, MOST_CALLS = 8, 2000


@dataclass
class Recording:
    """Calls that can be run again and again. `outputs` are what the last of them returned when they were recorded."""

    calls: int
    replay: Callable[[], None]
    release: Callable[[], None]
    outputs: Sequence[object] = ()


class Player(Protocol):
    """What records calls on a device and times them."""

    def call_us(self, call: Call) -> float:
        """About how long one call takes, its launch included; the first calls are made here."""

    def record(self, calls: Sequence[Call], keep: int) -> Recording:
        """The calls in order. Memory that a call returns stays in use until `keep` more calls have been made."""

    def replay(self, recording: Recording) -> None:
        """Runs all calls of a recording and waits for them."""

    def replay_us(self, recording: Recording, cache: Cache) -> float:
        """µs of all calls together; `cold`: no cache holds anything at the start, `warm`: they have just been run."""

    def close(self) -> None:
        """Gives back the memory that it used."""


def graph_timing(
    variants: Mapping[str, Sequence[Call]],
    device: torch.device,
    *,
    cache: Cache = "cold",
    again: bool = False,
    inside: Mapping[str, Inside] | None = None,
    replay_us: float = 4000.0,
    budget_s: float = 0.05,
    min_samples: int = 10,
    max_samples: int = 100,
    player: Player | None = None,
) -> dict[str, Quantiles]:
    """Times variants in turn, each as one graph of many calls.

    Args:
        variants: for each variant its calls, one for each set of operands; all do the same work.
        cache: `cold` runs the calls in order, each set at most once after the caches were emptied; `warm` repeats the
            first call only.
        again: all sets together overflow the caches, so that a set is cold when its turn comes again.
        inside: what is entered while a variant is called and recorded.
        replay_us: about how long a graph shall run, judged from single calls, their launches included.
        budget_s: after `min_samples` rounds, sampling ends once this much time per variant has passed.
        player: what records and times; by default CUDA graphs on a GPU and plain loops on a CPU.
    Returns:
        µs per call of each variant; a sample is the mean of one replay.
    Raises:
        ValueError: a variant has no calls.
    """
    if empty := [name for name, calls in variants.items() if not calls]:
        raise ValueError(f"variants has no calls for {', '.join(empty)}; each variant needs at least one.")
    used = player or player_for(device)
    recordings: dict[str, Recording] = {}
    try:
        for name, calls in variants.items():
            with (inside or {}).get(name, nullcontext)():
                one_us = used.call_us(calls[0])
                chosen = _chosen(calls, math.ceil(replay_us / one_us), cache, again)
                recordings[name] = used.record(chosen, keep=1 if cache == "warm" else len(calls))
        for recording in recordings.values():
            used.replay(recording)
        samples: dict[str, list[float]] = {name: [] for name in recordings}
        deadline = time.perf_counter() + budget_s * len(recordings)
        for done in range(max_samples):
            if done >= min_samples and time.perf_counter() > deadline:
                break
            for name, recording in recordings.items():
                samples[name].append(used.replay_us(recording, cache) / recording.calls)
        return {name: Quantiles.of(values) for name, values in samples.items()}
    finally:
        for recording in recordings.values():
            recording.release()
        if player is None:
            used.close()


def _chosen(calls: Sequence[Call], wanted: int, cache: Cache, again: bool) -> list[Call]:
    """Which calls a graph holds, in order, when about `wanted` would fill its time."""
    wanted = min(max(wanted, LEAST_CALLS), MOST_CALLS)
    if cache == "warm":
        return [calls[0]] * wanted
    return list(itertools.islice(itertools.cycle(calls), wanted)) if again else list(calls[:wanted])


def player_for(device: torch.device) -> Player:
    return GraphPlayer(device) if device.type == "cuda" else LoopPlayer()


class GraphPlayer:
    """CUDA graphs, recorded and replayed on a stream of their own, timed by events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # Read, not written, to empty the caches: lines that were written would have to go back to memory first.
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._other = torch.zeros(max(4 * cache_bytes, 2**26) // 4, device=device)
        self._sum = torch.zeros((), device=device)

    def call_us(self, call: Call) -> float:
        times = []
        with self._on_stream():
            for _ in range(2):  # the first one may compile
                call()
            for _ in range(3):
                times.append(self._elapsed_us(call))
        return statistics.median(times)

    def record(self, calls: Sequence[Call], keep: int) -> Recording:
        graph = torch.cuda.CUDAGraph()
        kept: deque[object] = deque(maxlen=keep)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=self._stream):
                for call in calls:
                    kept.append(call())

        def release() -> None:
            kept.clear()
            graph.reset()  # and with it the memory pool of the graph

        return Recording(len(calls), graph.replay, release, kept)

    def replay(self, recording: Recording) -> None:
        with self._on_stream():
            recording.replay()
            self._stream.synchronize()

    def replay_us(self, recording: Recording, cache: Cache) -> float:
        # What runs before keeps the GPU busy while the graph is launched, so that the clock sees no gap.
        with self._on_stream():
            if cache == "warm":
                recording.replay()
            else:
                torch.sum(self._other, dim=0, out=self._sum)
            return self._elapsed_us(recording.replay, wait_first=False)

    def close(self) -> None:
        del self._other, self._sum
        torch.cuda.empty_cache()

    def _on_stream(self) -> AbstractContextManager[object]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def _elapsed_us(self, call: Call, wait_first: bool = True) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if wait_first:
            self._stream.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e3, 0.01)


class LoopPlayer:
    """Plain calls, timed by the clock: a CPU's, where a call costs little. Nothing empties the caches."""

    def call_us(self, call: Call) -> float:
        call()
        return self._loop_us([call, call]) / 2

    def record(self, calls: Sequence[Call], keep: int) -> Recording:
        kept: deque[object] = deque((call() for call in calls), maxlen=keep)

        def replay() -> None:
            for call in calls:
                kept.append(call())

        return Recording(len(calls), replay, kept.clear, kept)

    def replay(self, recording: Recording) -> None:
        recording.replay()

    def replay_us(self, recording: Recording, cache: Cache) -> float:
        return self._loop_us([recording.replay])

    def close(self) -> None:
        pass

    def _loop_us(self, calls: Sequence[Call]) -> float:
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) * 1e6
