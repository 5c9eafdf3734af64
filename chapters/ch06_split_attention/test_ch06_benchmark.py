"""Chapter 6's benchmark and tuning: who takes part, targets, plans, and the table that is written. Runs on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import benchmark, candidates, plan_table, profiled, tuning
from chapters.ch06_split_attention.benchmark import Comparison, plan
from chapters.ch06_split_attention.dispatch import Plan, Row
from chapters.ch06_split_attention.targets import CONTEXTS, OP, PEERS, US, judge
from qwen_cuda.benchmarking import Case, Quantiles, Report
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check
from qwen_cuda.testing.benchmarks import CPU, complaint_of_a_run, result, results_of_a_run

pytestmark = pytest.mark.usefixtures("operators")


def test_each_way_to_split_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "plan_for", lambda batch, heads, context, device: Plan(16, 5))
    for shape in (Shape(70, 2, 4, 2), Shape(33, 1, 7, 1, 64, 8, dtype=torch.float16)):
        made = grouped.operands(shape, CPU, peers=False)(0)
        variants = list(candidates.ours(shape, CPU))
        assert [one.name for one in variants] == ["ours", "ours_long_graph", "ours_grouped", "ours_two_launches"]
        for variant in variants:
            check(variant, made, grouped.truth(shape, made), LoopPlayer(), str(shape))


def test_a_plan_of_one_partition_needs_no_second_launch() -> None:
    names = [one.name for one in candidates.ours(Shape(40), CPU)]
    assert names == ["ours", "ours_long_graph", "ours_grouped"]


def test_flashinfer_takes_part_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(40, 2, 4, 2)
    made = grouped.operands(shape, CPU, peers=False)(0)
    monkeypatch.setattr(candidates, "flashinfer_unavailable", lambda: "not here.")
    assert candidates.flashinfer(shape, made) == "not here."

    class Wrapper:
        def run(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
            return torch.ops.qwen_cuda.paged_attention_grouped(
                q, *caches, made["block_table"], made["context_lens"], shape.scale
            )

    monkeypatch.setattr(candidates, "flashinfer_unavailable", lambda: None)
    monkeypatch.setattr(candidates, "flashinfer_wrapper", lambda call: Wrapper())
    variant = candidates.flashinfer(shape, made)
    assert not isinstance(variant, str)
    check(variant, made, grouped.truth(shape, made), LoopPlayer(), str(shape))


def test_the_plan_of_chapter_6_holds_what_its_targets_need() -> None:
    full, quick = (list(plan(on_gpu=True, quick=quick)) for quick in (False, True))
    single = {c.shape.context for c in full if c.shape == Shape(c.shape.context) and c.peers}
    assert single == set(CONTEXTS) >= set(US)
    assert len({str(grouped.work(OP, c.shape)) for c in full}) == len(full)
    assert set(quick) < set(full)
    assert {c.shape.query_heads // c.shape.kv_heads for c in full} == {2, 4, 5, 8}


def test_a_run_of_chapter_6_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(Shape(20, 1, 4, 2))])
    data = results_of_a_run(benchmark, tmp_path)
    assert (data["chapter"], {case["op"] for case in data["cases"]}) == (benchmark.CHAPTER, {OP})
    assert [case["variant"] for case in data["cases"]] == ["ours", "ours_long_graph", "ours_grouped", "sdpa"]


def test_a_wrong_split_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(Shape(20, 1, 4, 2))])
    monkeypatch.setattr(candidates, "_grouped", lambda shape, of: [of["q"].clone()])
    assert "wrong answer, nothing is reported: paged_attention, context 20" in complaint_of_a_run(
        benchmark, tmp_path, capsys
    )


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: variant_context."""
    cases = []
    for context in CONTEXTS:
        work = grouped.work(OP, Shape(context))
        for variant in ("ours", "ours_long_graph", *PEERS):
            time = us.get(f"{variant}_{context}", US.get(context, 50.0) * (0.8 if variant.startswith("ours") else 1.5))
            cases.append(result(work, variant, time))
    return {"ceilings": {"read_gbps": 4500.0}, "cases": cases}


def test_targets_of_chapter_6_are_met_or_missed_by_the_figures_alone() -> None:
    assert all(verdict.passed for verdict in judge(results())), judge(results())

    def missed(**us: float) -> list[str]:
        return [verdict.name for verdict in judge(results(**us)) if verdict.passed is False]

    assert missed(ours_1024=5.21) == ["1,024 tokens"]
    assert missed(ours_8192=12.9) == ["8,192 tokens (stretch)"]
    assert missed(ours_long_graph_128=3.9) == ["128 tokens, captured for 32,768"]
    every = ", ".join(f"{context:,}" for context in CONTEXTS) + " tokens"
    assert missed(flashinfer_2048=40.0) == [every], "as fast is not faster"
    assert all(verdict.passed is None for verdict in judge({"ceilings": {}, "cases": []}))


@pytest.mark.parametrize("heads", [8, 64, 256])
def test_plans_that_are_tried_are_sensible(heads: int) -> None:
    for context in (1, 128, 1000, 32768):
        tried = plan_table.plans(heads, context, sms=132)
        assert tried[0].partitions == 1
        assert len(set(tried)) == len(tried)
        assert all(one.partition_size in plan_table.SIZES for one in tried)
        assert all((one.partitions - 1) * one.partition_size < context for one in tried[1:])


def test_each_plan_is_timed_and_the_fastest_becomes_a_row(quick_ceilings: None) -> None:
    report, shape = Report(plan_table.RESULTS, CPU, quick=True), Shape(300, 2, 4, 2)
    assert plan_table.measure(report, [shape], sms=8) == [shape]
    tried = [plan_table.name_of(one) for one in plan_table.plans(4, 300, 8)]
    assert [case.variant for case in report.cases] == tried == ["1 × 256", "2 × 64", "4 × 64", "5 × 64", *tried[4:]]
    fast = Quantiles(1e-6, 1e-6, 1e-6)
    report.cases[2] = dataclasses.replace(report.cases[2], us=fast)
    report.add(Case(OP, "1 × 256", grouped.work(OP, Shape(128)).shape, "bfloat16", "cold", us=fast))
    assert plan_table.best(report, shape, sms=8) == Row(heads=4, context=300, partition_size=64, partitions=4)


def test_plans_are_measured_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_table.main(["--device", "cpu"]) == 2
    assert "plans are measured on a GPU" in capsys.readouterr().err


def test_each_idea_is_tried_on_short_and_long_contexts() -> None:
    found = [trial.work.shape["context"] for trial in tuning.trials(CPU)]
    assert found == list(tuning.CONTEXTS)
    assert {128, 32768} < set(found)


def test_the_profiler_knows_one_operator() -> None:
    assert all(set(case) == {"op", "context", "batch"} for case in profiled.CASES)
    with pytest.raises(ValueError, match=r"op is 'none'; there is paged_attention\."):
        profiled.prepared("none", 128, 1).__enter__()
