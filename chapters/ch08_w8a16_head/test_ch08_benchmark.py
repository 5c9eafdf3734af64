"""Chapter 8's benchmark and tuning: who takes part, bytes, targets, Machete's packing. Small runs on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch08_w8a16_head import benchmark, candidates, machete, profiled, tuning
from chapters.ch08_w8a16_head.benchmark import Comparison, plan
from chapters.ch08_w8a16_head.candidates import OPS, Shape
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch08_w8a16_head.targets import K, N, judge
from qwen_cuda.benchmarking import Case, Ceilings, Operands, Quantiles
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.side_by_side import WrongAnswer, check
from qwen_cuda.loading import load_operators

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_gbps=4500.0, copy_gbps=4000.0, matmul_tflops={}, graph_node_us=0.7)
SMALL = Shape(3, 256, 90)


class FakeMachete:
    """vLLM's two operators, as far as their arguments go: words `[k/4, n]` of unsigned bytes with a bias of 128."""

    @staticmethod
    def machete_prepack_B(words: Tensor, a: torch.dtype, kind: int, scales: torch.dtype) -> Tensor:
        assert words.dtype == torch.int32
        assert words.stride(0) == 1
        assert kind == machete.UINT8_BIAS_128
        return words.flip(0)

    @staticmethod
    def machete_mm(x: Tensor, words: Tensor, kind: int, out: torch.dtype, scales: Tensor, *others: Any) -> Tensor:
        zeros, group, channel_scales, token_scales, schedule = others
        assert zeros is channel_scales is token_scales is schedule is None
        low = [(words.flip(0).long() >> 8 * j & 255) - 128 for j in range(4)]  # column 4 c + j
        weight = torch.stack(low, 1).flatten(0, 1).float() * scales.float().repeat_interleave(group, 0)
        return (x.float() @ weight).to(out)


FAKE = Vllm(FakeMachete, "fake")


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    load_operators()


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that took no time."""
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)


@pytest.mark.parametrize("op", OPS)
def test_the_traffic_of_a_head_is_what_its_operands_and_results_hold(op: candidates.Op) -> None:
    for shape in (SMALL, Shape(1, 256, 90, None), Shape(2, 64, 7, 32)):
        made = candidates.operands(op, shape, CPU)(0)
        (answer,) = next(candidates.variants(op, shape, CPU)).run(made)
        assert candidates.work(op, shape).bytes == sum(one.nbytes for one in made.values()) + answer.nbytes
        assert candidates.work(op, shape).flops == 2 * shape.batch * shape.k * shape.n


@pytest.mark.parametrize("op", OPS)
def test_everybody_finds_the_answer_of_a_head(op: candidates.Op) -> None:
    for shape in (SMALL, Shape(1, 96, 40, None), Shape(8, 64, 33, 32)):
        made = candidates.operands(op, shape, CPU)(3)
        want = candidates.truth(op, made)
        for variant in candidates.variants(op, shape, CPU):
            check(variant, made, want, LoopPlayer(), str(shape))


def test_a_wrong_id_is_found_out() -> None:
    made = candidates.operands("w8a16_argmax", SMALL, CPU)(0)
    (want,) = candidates.truth("w8a16_argmax", made)
    assert want.tolist() == [5] * 3, "the row that was made to win"
    for variant in candidates.variants("w8a16_argmax", SMALL, CPU):
        with pytest.raises(WrongAnswer):
            check(variant, made, [want + 1], LoopPlayer(), "here")


def test_machete_gets_the_integers_of_the_head() -> None:
    made = candidates.operands("w8a16_linear", SMALL, CPU, packed=True)(0)
    variant = candidates.vllm_machete(SMALL, FAKE)
    assert variant.truth is not None
    ready = machete.prepacked(FAKE, made)
    check(variant, ready, variant.truth(ready), LoopPlayer(), "here")
    with pytest.raises(WrongAnswer):
        check(variant, {**ready, "words": made["words"].clone()}, variant.truth(ready), LoopPlayer(), "here")


def test_machete_is_left_out_with_a_reason() -> None:
    assert machete.unavailable(FAKE, 128) is None
    assert "not here" in str(machete.unavailable(None, 128))
    assert "not here" in str(machete.unavailable(Vllm(object(), "older"), 128))
    assert "this group" in str(machete.unavailable(FAKE, 32))
    with pytest.raises(ValueError, match="k must be a multiple of 4"):
        machete.packed(torch.ones(2, 6, dtype=torch.int8), torch.ones(2, 1))


def test_sets_of_a_head_differ_and_repeat() -> None:
    make = candidates.operands("w8a16_linear", SMALL, CPU)
    assert not torch.equal(make(0)["qweight"], make(1)["qweight"])
    assert torch.equal(make(1)["qweight"], make(1)["qweight"])


def test_the_plan_holds_the_heads_that_chapter_8_promises() -> None:
    full = list(plan(on_gpu=True, quick=False))
    assert {(one.shape.k, one.shape.batch, one.op) for one in full} == {
        (k, batch, op) for k in (1024, 2048, 2560) for batch in (1, 2, 4, 8) for op in OPS
    }
    assert {one.shape.n for one in full} == {151936}
    assert {one.shape.group for one in full if one.shape.k == 1024} == {128, 64, 32, None}
    assert len({str(one) for one in full}) == len(full)
    assert len(list(plan(on_gpu=True, quick=True))) < len(full) / 2
    assert all(one.caches == ("warm",) and one.shape.n < N / 10 for one in plan(on_gpu=False, quick=False))


def test_each_step_of_the_ladder_exports_w8a16_linear() -> None:
    texts = {library.name[:2]: library.sources[0].read_text() for library in candidates.step_libraries()}
    assert list(texts) == ["v1", "v2", "v3"]
    assert all("void qwen_w8a16_linear(" in text for text in texts.values())


def small_plan(on_gpu: bool, quick: bool) -> list[Comparison]:
    return [Comparison(op, SMALL, caches=("warm",)) for op in OPS]


def test_a_run_writes_every_operation_of_the_head(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan", small_plan)
    output = tmp_path / "out.json"
    assert benchmark.main(["--device", "cpu", "--output", str(output)]) == 0
    data = json.loads(output.read_text())
    assert (data["schema"], data["chapter"]) == (1, "ch08_w8a16_head")
    assert {(case["op"], case["variant"]) for case in data["cases"]} == {
        ("w8a16_linear", "ours"), ("w8a16_linear", "ours_bf16_logits"),
        ("w8a16_argmax", "ours"), ("w8a16_argmax", "ours_two_launches"),
        ("bf16_linear", "cublas"), ("head_argmax", "ours"), ("head_argmax", "cublas"),
    }  # fmt: skip
    assert "w8a16_linear" in capsys.readouterr().out


def test_a_wrong_head_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._logits

    def swaps_two_rows(of: Operands) -> list[Tensor]:
        return [right(of)[0].roll(1, dims=1)]

    monkeypatch.setattr(benchmark, "plan", small_plan)
    monkeypatch.setattr(candidates, "_logits", swaps_two_rows)
    assert benchmark.main(["--device", "cpu", "--output", str(tmp_path / "out.json")]) == 1
    said = capsys.readouterr()
    assert "wrong answer, nothing is reported: w8a16_linear, batch 3, k 256, n 90, group 128" in said.err
    assert not list(tmp_path.iterdir())


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: op__variant."""
    times = {
        ("w8a16_linear", "ours"): 39.0, ("w8a16_linear", "vllm_machete"): 50.0, ("bf16_linear", "cublas"): 78.0,
        ("w8a16_argmax", "ours"): 40.0, ("w8a16_argmax", "ours_two_launches"): 50.0,
        ("head_argmax", "ours"): 71.0, ("head_argmax", "cublas"): 90.0,
    }  # fmt: skip
    cases = []
    for (op, variant), time in times.items():
        time = us.get(f"{op}__{variant}", time)
        work = candidates.work(op, Shape(1, K, N))  # type: ignore[arg-type]
        quantiles = Quantiles(time * 0.99, time, time * 1.01)
        case = Case(op, variant, work.shape, "bfloat16", "cold", bytes=work.bytes, us=quantiles)
        cases.append(case.to_dict(CEILINGS))
    return {"ceilings": {"read_gbps": 4500.0}, "cases": cases}


def test_targets_of_the_head_are_met_or_missed_by_the_figures_alone() -> None:
    verdicts = judge(results())
    assert len(verdicts) == 7
    assert all(verdict.passed for verdict in verdicts), verdicts

    def missed(**us: float) -> list[str]:
        return [verdict.target for verdict in judge(results(**us)) if verdict.passed is False]

    floor = candidates.work("w8a16_linear", Shape(1, K, N)).bytes / 4500 / 1e3
    assert missed(w8a16_linear__ours=39.51, w8a16_argmax__ours=40.5) == ["≤ 39.5 µs in a CUDA graph"]
    assert "≥ 90% of the measured read bandwidth" in missed(w8a16_linear__ours=floor / 0.899)
    assert "≥ 90% of the measured read bandwidth" not in missed(w8a16_linear__ours=floor / 0.901)
    assert missed(w8a16_argmax__ours=40.6) == ["at most 1.5 µs more than the logits take"]
    assert missed(bf16_linear__cublas=70.1) == ["≥ 1.8 times as fast as cuBLAS with bf16 weights"]
    assert missed(w8a16_linear__vllm_machete=38.9) == ["faster than vLLM's Machete"]
    assert missed(head_argmax__ours=95.0) == ["not slower than cuBLAS and torch.argmax"]
    assert all(verdict.passed is None for verdict in judge({"ceilings": {"read_gbps": 4500.0}, "cases": []}))


def test_chapter_8_tunes_the_heads_that_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "N", 40)
    trials = list(tuning.trials(CPU))
    assert [(one.work.shape["k"], one.work.shape["batch"]) for one in trials] == [
        (k, batch) for k in (1024, 2560) for batch in (1, 2, 4, 8)
    ]
    made = trials[0].operands(0)
    check(trials[0].run, made, trials[0].truth(made), LoopPlayer(), "tuning")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [({"op": "bf16_linear"}, "op is 'bf16_linear'"), ({"op": "softmax"}, "op is 'softmax'")],
)
def test_unknown_operations_of_the_head_are_not_profiled(changed: dict[str, str], sentence: str) -> None:
    call: dict[str, Any] = {"op": "w8a16_linear", "batch": 1, "k": 64, "n": 8, **changed}
    with pytest.raises(ValueError, match=sentence), profiled.prepared(**call):
        pass


def test_a_heads_group_and_bytes_are_told() -> None:
    head = W8Head.of(torch.ones(4, 256), 64)
    assert (head.group, head.nbytes) == (64, 4 * 256 + 4 * 4 * 4)
