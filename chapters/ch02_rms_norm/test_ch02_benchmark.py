"""Chapter 2's benchmark: who takes part where, bytes, targets, and no time for a wrong answer. Small runs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch02_rms_norm import benchmark, candidates
from chapters.ch02_rms_norm.benchmark import Comparison, plan
from chapters.ch02_rms_norm.targets import MANY_ROWS, ROWS, judge
from qwen_cuda.benchmarking import Operands, Report, Variant, WrongAnswer, rotate
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.benchmarking.side_by_side import check
from qwen_cuda.testing.benchmarks import (
    CPU,
    complaint_of_a_run,
    memory_is_full,
    printed_targets,
    result,
    results_of_a_run,
)

pytestmark = pytest.mark.usefixtures("operators")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


class FakeVllm:
    """vLLM's two operators, with their arguments and roundings."""

    @staticmethod
    def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        out.copy_(torch.nn.functional.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight)

    @staticmethod
    def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        residual.add_(x)
        FakeVllm.rms_norm(x, residual, weight, eps)


def test_the_traffic_is_what_the_operands_hold() -> None:
    for op, tensors in (("rms_norm", 2), ("add_rms_norm", 4)):
        work = candidates.work(op, rows=3, hidden=10, dtype=torch.bfloat16)
        assert work.bytes == 2 * (tensors * 3 * 10 + 10)
    assert candidates.work("rms_norm", 1, 10, torch.float32).bytes == 4 * (2 * 10 + 10)
    made = candidates.operands("rms_norm", 3, 10, torch.bfloat16, CPU)(0)
    work = candidates.work("rms_norm", 3, 10, torch.bfloat16)
    assert sum(tensor.nbytes for tensor in made.values()) == work.bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", candidates.OPS)
def test_everybody_is_right_on_odd_and_even_sizes(op: str, dtype: torch.dtype) -> None:
    variants = [*candidates.ours(op, dtype), *candidates.peers(op, dtype, Vllm(FakeVllm, "fake"))]
    assert {"ours", "vllm", "torch_eager"} <= {variant.name for variant in variants}
    for rows, hidden in ((1, 1023), (5, 64)):
        made = candidates.operands(op, rows, hidden, dtype, CPU)(0)
        for variant in variants:
            check(variant, made, candidates.truth(op, made), LoopPlayer(), f"{rows} × {hidden}")


@pytest.mark.parametrize("op", candidates.OPS)
def test_a_peer_may_round_as_it_does_and_our_operator_may_not(op: str) -> None:
    made = candidates.operands(op, 64, 256, torch.bfloat16, CPU)(0)
    (eager,) = [one for one in candidates.peers(op, torch.bfloat16, None) if one.name == "torch_eager"]
    as_ours = Variant("ours", eager.run, ulps=candidates.ULPS[torch.bfloat16])
    with pytest.raises(WrongAnswer, match="1 are allowed"):
        check(as_ours, made, candidates.truth(op, made), LoopPlayer(), "here")


def test_sets_of_operands_differ_and_repeat() -> None:
    make = candidates.operands("add_rms_norm", 2, 8, torch.float32, CPU)
    first, second = rotate(make, cache_bytes=100).sets[:2]
    for name in ("x", "residual", "weight"):
        assert not torch.equal(first[name], second[name])
        assert torch.equal(first[name], make(0)[name])
    assert not torch.equal(first["weight"], torch.ones(8)), "a norm with unit weights hides a forgotten weight"


def test_each_step_of_the_ladder_has_its_operators() -> None:
    texts = {library.name[:2]: library.sources[0].read_text() for library in candidates.step_libraries()}
    assert list(texts) == ["v1", "v2", "v3", "v4", "v5"]
    assert all("void qwen_rms_norm(" in text for text in texts.values())
    assert "void qwen_add_rms_norm(" in texts["v5"]


def test_the_plan_holds_the_shapes_that_the_chapter_promises() -> None:
    full = list(plan(on_gpu=True, quick=False))
    bf16 = [c for c in full if c.dtype == torch.bfloat16]
    for op in candidates.OPS:
        shapes = {(c.rows, c.hidden) for c in bf16 if c.op == op}
        assert shapes >= {(rows, hidden) for rows in (1, 8, 128, 512, 1024, 8192, 32768)
                          for hidden in (896, 1023, 1024, 2560, 4096)}  # fmt: skip
        assert {(c.rows, c.dtype) for c in full if c.op == op and c.dtype != torch.bfloat16} == {
            (rows, dtype) for rows in (128, 8192) for dtype in (torch.float16, torch.float32)
        }
    assert {c.rows for c in full if c.compiled} <= {c.rows for c in full if c.everybody}
    assert all("cold" in c.caches for c in full)
    assert {c.rows for c in full if "warm" in c.caches} == {1, 8, 128}
    assert len(set(full)) == len(full)
    assert set(plan(on_gpu=True, quick=True)) < {*full, *plan(on_gpu=True, quick=True)}
    assert len(list(plan(on_gpu=True, quick=True))) < len(full) / 5
    assert all(c.caches == ("warm",) and c.rows <= 1024 for c in plan(on_gpu=False, quick=False))


def test_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    step, compiled = Variant("ours", lambda of: [], "v1"), Variant("torch_compile", lambda of: [])
    monkeypatch.setattr(candidates, "ladder", lambda op, dtype: iter([step]))
    monkeypatch.setattr(candidates, "compiled", lambda op, dtype: compiled)
    peer = Vllm(FakeVllm, "fake")

    def names(everybody: bool, compiled: bool = False, on_gpu: bool = True) -> list[str]:
        what = Comparison("rms_norm", 1, 1024, torch.bfloat16, everybody, compiled)
        return [variant.label for variant in benchmark._taking_part(what, peer, on_gpu)]

    others = ["ours", "ours_in_place", "vllm", "torch_rms_norm", "torch_eager"]
    assert names(everybody=True) == ["ours v1", "copy", *others]
    assert names(everybody=True, compiled=True)[-1] == "torch_compile"
    assert names(everybody=True, on_gpu=False) == others
    assert names(everybody=False) == ["ours", "vllm", "torch_rms_norm"]


def small_plan(on_gpu: bool, quick: bool) -> list[Comparison]:
    return [Comparison(op, 4, 64, torch.float32, everybody=True, caches=("warm",)) for op in candidates.OPS]


def test_a_run_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan", small_plan)
    data = results_of_a_run(benchmark, tmp_path)
    found = {(case["op"], case["variant"]) for case in data["cases"]}
    assert found == {
        *(("rms_norm", name) for name in ("ours", "ours_in_place", "torch_rms_norm", "torch_eager")),
        *(("add_rms_norm", name) for name in ("ours", "ours_out_of_place", "ours_unfused", "torch_eager")),
    }
    said = capsys.readouterr()
    assert "rms_norm, float32" in said.out
    assert "targets" not in said.out, "the targets are a GPU's"
    assert benchmark.main(["--device", "cpu", "--quick"]) == 0
    assert "wrote" not in capsys.readouterr().out, "a CPU's figures stay out of docs/results"


def test_a_wrong_kernel_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._add_rms_norm_in_place

    def forgets_the_sum(of: Operands) -> Sequence[Tensor]:
        return [right(of)[0], of["residual"].neg()]

    monkeypatch.setattr(benchmark, "plan", small_plan)
    monkeypatch.setattr(candidates, "_add_rms_norm_in_place", forgets_the_sum)
    said = complaint_of_a_run(benchmark, tmp_path, capsys)
    assert "wrong answer, nothing is reported: add_rms_norm, rows 4, hidden 64" in said
    assert "output 2 is" in said


def test_a_full_memory_leaves_one_shape_out(quick_ceilings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_cuda.benchmarking.operator_benchmark.side_by_side", memory_is_full)
    report = Report(benchmark.CHAPTER, CPU, quick=True)
    benchmark.compare(report, Comparison("rms_norm", 2, 8, torch.float32), None)
    assert report.notes == ["rms_norm [2, 8] float32: left out, the device's memory is full."]


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: op_variant_rows_cache."""
    cases = []
    for op in candidates.OPS:
        for variant in ("ours", "vllm", "torch_eager"):
            for rows in sorted({*ROWS, *MANY_ROWS}):
                for cache in ("cold", "warm"):
                    work = candidates.work(op, rows, 1024, torch.bfloat16)
                    time = max(2.0, work.bytes / 4000 / 1e3 / 0.9) * {"torch_eager": 5.0}.get(variant, 1.0)
                    time = us.get(f"{op}_{variant}_{rows}_{cache}", time)
                    cases.append(result(work, variant, time, cache=cache, spread=0.01))
    return {"ceilings": {"copy_gbps": 4000.0}, "cases": cases}


def test_targets_are_met_or_missed_by_the_figures_alone() -> None:
    verdicts = judge(results())
    assert len(verdicts) == 9
    assert all(verdict.passed for verdict in verdicts), verdicts
    assert verdicts[0].measured == "90.0%"

    def missed(**us: float) -> list[str]:
        return [verdict.name for verdict in judge(results(**us)) if verdict.passed is False]

    many = 2 * 1024 * (2 * 32768 + 1) / 4000 / 1e3
    assert missed(rms_norm_ours_32768_cold=many / 0.849) == ["rms_norm, 32,768 rows, cold"]
    assert missed(rms_norm_ours_32768_cold=many / 0.851) == []
    assert missed(rms_norm_ours_1_warm=2.21) == ["rms_norm, 1 row, warm"]
    assert missed(rms_norm_ours_8_cold=2.03) == ["rms_norm, 1, 8, 128, 1,024, 8,192 rows, cold"], "vLLM's p90 is 2.02"
    assert missed(rms_norm_ours_8_cold=2.01) == []
    assert missed(add_rms_norm_torch_eager_128_cold=8.1) == ["add_rms_norm, 1, 8, 128, 1,024, 8,192 rows, cold"]


def test_what_was_not_measured_is_neither_met_nor_missed(quick_ceilings: None) -> None:
    found = results()
    found["cases"] = [case for case in found["cases"] if case["variant"] != "vllm"]
    unknown = [verdict for verdict in judge(found) if verdict.passed is None]
    assert [verdict.target for verdict in unknown] == ["not slower than vLLM"] * 2
    assert printed_targets(benchmark).count("not measured") == 9


@pytest.mark.slow
def test_a_quick_run_on_a_gpu_measures_the_ladder(gpu_device: torch.device, tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path, "--quick")
    steps = {(case["op"], case["step"]) for case in data["cases"] if case["variant"] == "ours"}
    assert steps >= {("rms_norm", None), ("add_rms_norm", None), *(("rms_norm", f"v{n}") for n in range(1, 6))}
    assert all(case["us"]["median"] >= data["ceilings"]["graph_node_us"] * 0.5 for case in data["cases"])


@pytest.mark.slow
def test_compiled_code_is_right_and_timed_on_a_gpu(gpu_device: torch.device, quick_ceilings: None) -> None:
    report = Report(benchmark.CHAPTER, gpu_device, quick=True)
    with torch.inference_mode():
        for op in candidates.OPS:
            what = Comparison(op, 8, 1024, torch.bfloat16, everybody=True, compiled=True)
            benchmark.compare(report, what, None)
    assert [case.op for case in report.cases if case.variant == "torch_compile"] == list(candidates.OPS), report.notes
