"""A benchmark of operators checks before it times: called and replayed, poisoned, in place or not; peers may refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.benchmarking import (
    Ceilings,
    Operands,
    Quantiles,
    Report,
    Rotation,
    Variant,
    Work,
    WrongAnswer,
    rotate,
    side_by_side,
)
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check

CPU = torch.device("cpu")
CEILINGS = Ceilings(100.0, 80.0, {"float32": 0.5}, graph_node_us=1.0)
WORK = Work("double", {"rows": 4}, "float32", bytes=160_000, bandwidth="copy")


def operands(number: int) -> Operands:
    generator = torch.Generator().manual_seed(number)
    return {"x": torch.randn(4, 8, generator=generator), "out": torch.full((4, 8), torch.nan)}


def truth(of: Operands) -> Sequence[Tensor]:
    return [2 * of["x"].double()]


def functional(of: Operands) -> list[Tensor]:
    return [of["x"] + of["x"]]


def into_out(of: Operands) -> list[Tensor]:
    torch.add(of["x"], of["x"], out=of["out"])
    return [of["out"]]


def in_place(of: Operands) -> list[Tensor]:
    of["x"].mul_(2)
    return [of["x"]]


def leaves_one_out(of: Operands) -> list[Tensor]:
    torch.add(of["x"][:, 1:], of["x"][:, 1:], out=of["out"][:, 1:])
    return [of["out"]]


def one_ulp_off(of: Operands) -> list[Tensor]:
    return [torch.nextafter(2 * of["x"], torch.tensor(torch.inf))]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """A report whose ceilings took no time."""
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)
    return Report("ch02_x", CPU, quick=True)


@pytest.fixture
def rotation() -> Rotation:
    return rotate(operands, cache_bytes=300)


def run(report: Report, rotation: Rotation, *variants: Variant, **more: Any) -> None:
    side_by_side(report, WORK, variants, rotation, truth, budget_s=0.0, **more)


def test_every_way_to_give_an_answer_is_checked_and_timed(report: Report, rotation: Rotation) -> None:
    ways = [Variant("ours", functional), Variant("ours", into_out, "v1"), Variant("in_place", in_place)]
    run(report, rotation, *ways, caches=("cold", "warm"))
    found = [(case.variant, case.step, case.cache, case.bytes) for case in report.cases]
    assert found == [
        (way.name, way.step, cache, nbytes) for cache, nbytes in (("cold", 160_000), ("warm", 0)) for way in ways
    ]
    assert all(case.us is not None for case in report.cases)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (leaves_one_out, r"double, rows 4, float32, ours v2, called: it is nan ulp from float64; 1 are allowed"),
        (lambda of: [of["x"] * 2.0001], r"ours v2, called: it is [\d.e+]+ ulp"),
        (lambda of: [functional(of)[0][:3]], r"the shapes are \[\[3, 8\]\]; they must be \[\[4, 8\]\]"),
        (lambda of: [], r"the shapes are \[\]"),
    ],
)
def test_a_wrong_variant_is_named_and_nothing_is_timed(
    wrong: Any, says: str, report: Report, rotation: Rotation
) -> None:
    with pytest.raises(WrongAnswer, match=says):
        run(report, rotation, Variant("ours", functional), Variant("ours", wrong, "v2"))
    assert report.cases == []


def test_the_bound_is_the_variants_own(report: Report, rotation: Rotation) -> None:
    with pytest.raises(WrongAnswer, match=r"1 ulp from float64; 0\.5 are allowed"):
        run(report, rotation, Variant("ours", one_ulp_off, ulps=0.5))
    run(report, rotation, Variant("ours", one_ulp_off))


def test_an_answer_that_is_right_only_the_first_time_is_found_out() -> None:
    """As a kernel is that runs on another stream than the recorded one: the replay has no effect."""
    done: list[Tensor] = []

    def only_once(of: Operands) -> list[Tensor]:
        if len(done) < 2:  # called once, and once more to be recorded
            done.append(torch.add(of["x"], of["x"], out=of["out"]))
        return [of["out"]]

    with pytest.raises(WrongAnswer, match="replayed: it is nan ulp"):
        check(Variant("ours", only_once), operands(0), truth(operands(0)), LoopPlayer(), "here")


def test_integers_that_a_replay_does_not_write_are_found_out() -> None:
    """They hold the largest integer before, as floats hold NaN."""
    done: list[Tensor] = []

    def only_once(of: Operands) -> list[Tensor]:
        if len(done) < 2:
            done.append(of["ids"].copy_(of["x"].argmax(-1)))
        return [of["ids"]]

    def differs(got: Tensor, want: Tensor) -> Tensor:
        return (got != want).double()

    given = {"x": torch.eye(3), "ids": torch.zeros(3, dtype=torch.int64)}
    every_time = Variant("ours", lambda of: [of["x"].argmax(-1)], ulps=0.0, error=differs)
    check(every_time, given, [torch.arange(3)], LoopPlayer(), "here")
    with pytest.raises(WrongAnswer, match="replayed"):
        check(Variant("ours", only_once, ulps=0.0, error=differs), given, [torch.arange(3)], LoopPlayer(), "here")


def test_checking_leaves_the_operands_as_they_are() -> None:
    mine, kept = operands(0), operands(0)
    check(Variant("ours", in_place), mine, truth(mine), LoopPlayer(), "here")
    assert torch.equal(mine["x"], kept["x"])


def test_a_peer_that_refuses_is_left_out_with_a_note(report: Report, rotation: Rotation) -> None:
    def refuses(of: Operands) -> list[Tensor]:
        raise RuntimeError("hidden size must be a multiple of 16\nmore lines")

    run(report, rotation, Variant("ours", functional), Variant("vllm", refuses, peer=True))
    assert [case.variant for case in report.cases] == ["ours"]
    assert report.notes[-1].endswith("vllm is left out, it says: hidden size must be a multiple of 16")
    with pytest.raises(RuntimeError, match="multiple of 16"):
        run(report, rotation, Variant("ours", refuses))
    with pytest.raises(WrongAnswer, match="vllm"):
        run(report, rotation, Variant("vllm", leaves_one_out, peer=True))


def test_a_full_memory_is_no_refusal_of_a_peer(report: Report, rotation: Rotation) -> None:
    def needs_more(of: Operands) -> list[Tensor]:
        raise torch.OutOfMemoryError("no")

    with pytest.raises(torch.OutOfMemoryError):
        run(report, rotation, Variant("vllm", needs_more, peer=True))


@pytest.mark.parametrize(("device", "nodes"), [("cpu", 0), ("cuda", 1)])
def test_the_floor_of_a_kernel_is_that_of_a_copy_or_of_an_empty_node(device: str, nodes: int) -> None:
    us = Quantiles(2.0, 2.0, 2.0)
    cold = WORK.case(Variant("ours", functional), "cold", us, torch.device(device))
    warm = WORK.case(Variant("ours", functional), "warm", us, torch.device(device))
    assert cold.floor_us(CEILINGS) == pytest.approx(2.0), "160 kB at the 80 GB/s of a copy"
    assert warm.floor_us(CEILINGS) == (1.0 if nodes else None), "what a cache holds is not bound by memory"
    data = cold.to_dict(CEILINGS)
    assert data["bandwidth"] == "copy"
    assert data.get("nodes", 0) == nodes
    assert data["gbps"] == pytest.approx(80.0)
    assert warm.to_dict(CEILINGS)["gbps"] is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_a_kernel_on_another_stream_is_found_out_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)
    device = torch.device("cuda")
    elsewhere = torch.cuda.Stream()

    def on_another_stream(of: Operands) -> list[Tensor]:
        if torch.cuda.is_current_stream_capturing():
            return [of["out"]]  # what a launch that is not recorded leaves in the graph: nothing
        elsewhere.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(elsewhere):
            answer = into_out(of)
        torch.cuda.current_stream().wait_stream(elsewhere)
        return answer

    def on_the_gpu(number: int) -> Operands:
        return {name: tensor.cuda() for name, tensor in operands(number).items()}

    rotation = rotate(on_the_gpu, cache_bytes=300)
    report = Report("ch02_x", device, quick=True)
    torch.cuda.synchronize()
    run(report, rotation, Variant("ours", functional), Variant("ours", into_out, "v1"), Variant("in_place", in_place))
    assert len(report.cases) == 3
    fresh = rotate(on_the_gpu, cache_bytes=300)  # those that were timed hold the answer already
    with pytest.raises(WrongAnswer, match="replayed: it is nan ulp"):
        run(report, fresh, Variant("ours", on_another_stream))
