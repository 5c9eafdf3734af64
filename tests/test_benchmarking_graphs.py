"""Timing of short kernels: which calls a graph holds, in which order graphs run, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from qwen_cuda.benchmarking.graphs import (
    LEAST_CALLS,
    MOST_CALLS,
    Cache,
    GraphPlayer,
    LoopPlayer,
    Recording,
    graph_timing,
)
from qwen_cuda.benchmarking.operands import CACHES, Operands, cache_bytes, rotate
from qwen_cuda.benchmarking.timing import Call

CPU = torch.device("cpu")


class ScriptedPlayer:
    """A device whose calls take the time that they return, and that writes down what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.recorded: list[tuple[list[str], int]] = []
        self.released = 0

    def call_us(self, call: Call) -> float:
        return self._run(call)[1]

    def record(self, calls: Sequence[Call], keep: int) -> Recording:
        names = [self._run(call)[0] for call in calls]
        self.recorded.append((names, keep))
        self.log.append(f"record {names[0]}")

        def release() -> None:
            self.released += 1

        return Recording(len(calls), lambda: None, release, outputs=calls)

    def replay(self, recording: Recording) -> None:
        self.log.append(f"replay {self._first(recording)}")

    def replay_us(self, recording: Recording, cache: Cache) -> float:
        self.log.append(f"time {self._first(recording)} {cache}")
        return sum(self._run(call)[1] for call in recording.outputs)

    def close(self) -> None:
        self.log.append("close")

    def _first(self, recording: Recording) -> str:
        return self._run(recording.outputs[0])[0]

    @staticmethod
    def _run(call: Any) -> tuple[str, float]:
        name, us = call()
        return name, us


def calls(name: str, count: int, us: float) -> list[Call]:
    return [lambda number=number: (f"{name}{number}", us) for number in range(count)]  # type: ignore[misc]


def test_a_sample_is_the_time_of_a_graph_divided_by_its_calls() -> None:
    player = ScriptedPlayer()
    variants = {"slow": calls("s", 20, 3.0), "fast": calls("f", 20, 0.5)}
    times = graph_timing(variants, CPU, replay_us=30.0, player=player)
    assert [times[name].median for name in variants] == pytest.approx([3.0, 0.5])
    assert [len(names) for names, _ in player.recorded] == [10, 20], "as many calls as fill the time, each set once"


def test_graphs_of_all_variants_are_replayed_in_turn_after_a_warm_up() -> None:
    player = ScriptedPlayer()
    variants = {"a": calls("a", 9, 1.0), "b": calls("b", 9, 1.0)}
    graph_timing(variants, CPU, min_samples=2, max_samples=2, player=player)
    rounds = ["time a0 cold", "time b0 cold"] * 2
    assert player.log[-8:] == ["record a0", "record b0", "replay a0", "replay b0", *rounds]


def test_cold_sets_return_only_where_all_of_them_overflow_the_cache() -> None:
    once, again, warm = ScriptedPlayer(), ScriptedPlayer(), ScriptedPlayer()
    variants = {"": calls("x", 3, 1.0)}
    graph_timing(variants, CPU, replay_us=10.0, player=once)
    graph_timing(variants, CPU, replay_us=10.0, again=True, player=again)
    graph_timing(variants, CPU, replay_us=10.0, cache="warm", player=warm)
    assert once.recorded == [(["x0", "x1", "x2"], 3)]
    assert again.recorded == [(["x0", "x1", "x2"] * 3 + ["x0"], 3)], "outputs stay in use until their set is due again"
    assert warm.recorded == [(["x0"] * 10, 1)]


@pytest.mark.parametrize(("us", "count"), [(1e6, LEAST_CALLS), (1e-3, MOST_CALLS)])
def test_a_graph_is_neither_too_short_nor_endless(us: float, count: int) -> None:
    player = ScriptedPlayer()
    graph_timing({"": calls("x", 3, us)}, CPU, again=True, player=player)
    assert len(player.recorded[0][0]) == count


def test_what_a_variant_needs_is_entered_while_it_is_recorded_and_left_before_the_next() -> None:
    player = ScriptedPlayer()

    @contextmanager
    def inside(name: str) -> Iterator[None]:
        player.log.append(f"enter {name}")
        yield
        player.log.append(f"leave {name}")

    variants = {"a": calls("a", 8, 1.0), "b": calls("b", 8, 1.0)}
    graph_timing(variants, CPU, inside={"a": partial(inside, "a")}, min_samples=1, max_samples=1, player=player)
    assert player.log[:4] == ["enter a", "record a0", "leave a", "record b0"]


def test_recordings_are_released_even_when_a_later_variant_fails() -> None:
    player = ScriptedPlayer()

    def broken() -> object:
        raise RuntimeError("this kernel is broken")

    with pytest.raises(RuntimeError, match="broken"):
        graph_timing({"a": calls("a", 8, 1.0), "b": [broken]}, CPU, player=player)
    assert player.released == 1
    with pytest.raises(ValueError, match="no calls for b; each variant needs"):
        graph_timing({"a": calls("a", 8, 1.0), "b": []}, CPU, player=player)


def test_on_a_cpu_calls_are_looped_over() -> None:
    small, large = torch.ones(1000), torch.ones(1_000_000)
    variants: dict[str, list[Call]] = {"small": [small.sum], "large": [large.sum]}
    times = graph_timing(variants, CPU, cache="warm", replay_us=500.0, budget_s=0.02)
    assert 0 < times["small"].median < times["large"].median
    player = LoopPlayer()
    recording = player.record([lambda: small + 1, lambda: small + 2], keep=1)
    player.replay(recording)
    (kept,) = recording.outputs
    assert isinstance(kept, torch.Tensor)
    assert float(kept.max()) == 3.0


def operands(number: int, elements: int = 16) -> Operands:
    return {"x": torch.full((elements,), float(number)), "out": torch.full((elements,), torch.nan)}


def test_operands_rotate_over_four_times_the_cache() -> None:
    rotation = rotate(operands, cache_bytes=1000)
    assert rotation.set_bytes == 2 * 16 * 4
    assert rotation.bytes >= CACHES * 1000 > rotation.bytes - rotation.set_bytes, "no more sets than needed"
    assert rotation.overflows
    assert [float(one["x"][0]) for one in rotation.sets] == list(range(len(rotation.sets)))


def test_small_operands_do_not_claim_to_overflow_the_cache() -> None:
    rotation = rotate(operands, cache_bytes=10**6, most=5)
    assert (len(rotation.sets), rotation.overflows) == (5, False)
    large = rotate(partial(operands, elements=1000), cache_bytes=100)
    assert (len(large.sets), large.overflows) == (2, True)
    none = rotate(operands, cache_bytes(CPU))
    assert (len(none.sets), none.overflows) == (1, False)


def test_sets_that_share_memory_are_refused() -> None:
    weight = torch.ones(16)
    with pytest.raises(ValueError, match="two sets that share memory"):
        rotate(lambda number: {"x": torch.ones(16), "weight": weight}, cache_bytes=1000)
    with pytest.raises(ValueError, match="without elements"):
        rotate(lambda number: {"x": torch.ones(0)}, cache_bytes=1000)
    shared = rotate(lambda number: dict(zip("qk", torch.ones(2, 16), strict=True)), cache_bytes=1000)
    assert shared.set_bytes == 2 * 16 * 4, "memory behind two names of one set counts once"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
class TestOnAGpu:
    def test_a_replay_computes_again_and_outputs_stay_apart(self) -> None:
        device = torch.device("cuda")
        player = GraphPlayer(device)
        numbers = [torch.full((4,), float(n), device=device) for n in range(3)]
        recording = player.record([partial(torch.add, number, 1) for number in numbers], keep=3)
        for number in numbers:
            number.mul_(10)
        player.replay(recording)
        outputs: list[Any] = list(recording.outputs)
        assert [float(tensor[0]) for tensor in outputs] == [1.0, 11.0, 21.0]
        recording.release()
        player.close()

    def test_cold_operands_take_longer_than_warm_ones(self) -> None:
        device = torch.device("cuda")
        nbytes = cache_bytes(device) // 16
        rotation = rotate(lambda n: {"x": torch.ones(nbytes // 4, device=device)}, cache_bytes(device))
        variants = {"sum": [one["x"].sum for one in rotation.sets]}
        cold = graph_timing(variants, device, again=rotation.overflows)["sum"]
        warm = graph_timing(variants, device, cache="warm")["sum"]
        assert warm.median < cold.median

    def test_timing_leaves_no_memory_behind(self) -> None:
        device = torch.device("cuda")
        x = torch.ones(2**20, device=device)
        graph_timing({"": [partial(torch.add, x, 1)]}, device)
        before = torch.cuda.memory_reserved()
        graph_timing({"": [partial(torch.add, x, 1)] * 3}, device)
        assert torch.cuda.memory_reserved() <= before
