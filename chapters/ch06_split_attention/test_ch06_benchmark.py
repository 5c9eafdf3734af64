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
from chapters.ch06_split_attention import fused_candidates as fused
from chapters.ch06_split_attention.benchmark import Comparison, plan
from chapters.ch06_split_attention.dispatch import Op, Plan, Row
from chapters.ch06_split_attention.targets import CONTEXTS, OP, PEERS, US, judge
from qwen_cuda.benchmarking import Case, Quantiles, Report
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check
from qwen_cuda.testing.benchmarks import CPU, complaint_of_a_run, result, results_of_a_run

pytestmark = pytest.mark.usefixtures("operators")


def test_each_way_to_split_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "plan_for", lambda batch, heads, context, device: Plan(16, 4))
    for shape in (Shape(70, 2, 4, 2), Shape(33, 1, 7, 1, 64, 8, dtype=torch.float16)):
        made = grouped.operands(shape, CPU, peers=False)(0)
        variants = list(candidates.ours(shape, CPU))
        names = ["ours", "ours_long_graph", "ours_grouped", "ours_last_block", "ours_two_launches"]
        assert [one.name for one in variants] == names
        for variant in variants:
            check(variant, made, grouped.truth(shape, made), LoopPlayer(), str(shape))


def test_each_way_of_the_fused_form_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for cut in (Plan(16, 5), Plan(16, 1)):
        monkeypatch.setattr(fused, "plan_for", lambda *given, cut=cut, **more: cut)
        for shape in (Shape(70, 2, 4, 2), Shape(33, 1, 7, 1, block_size=8, dtype=torch.float16)):
            variants = list(fused.ours(shape, CPU))
            by_merge = ["ours_last_block"] if cut.partitions > 1 else []
            assert [one.name for one in variants] == ["ours", *by_merge, "in_turn"]
            for variant in variants:
                made = fused.operands(shape, CPU)(0)
                check(variant, made, fused.truth(shape, made), LoopPlayer(), str(shape))


def test_a_cut_is_merged_by_a_cluster_where_one_can(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    for capability, partitions, expected in (
        ((9, 0), 8, ["last_block", "cluster"]),
        ((9, 0), 1, []),
        ((9, 0), 12, ["last_block"]),
        ((8, 9), 8, ["last_block"]),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device, it=capability: it)
        assert [plan.merge for plan in candidates.merges(Plan(64, partitions), gpu)] == expected
    assert [plan.merge for plan in candidates.merges(Plan(64, 8), CPU)] == ["last_block"]


def test_the_least_traffic_of_the_fused_form_is_that_of_its_parts() -> None:
    """Against attention alone: qkv comes in place of q, and the new K and V go out; they are not read."""
    for shape in (Shape(100), Shape(33, 3, 4, 2)):
        token = shape.batch * 2 * shape.kv_heads * shape.head_dim * 2
        constants = shape.batch * 4 * shape.head_dim + 2 * 2 * shape.head_dim
        assert fused.work(shape).bytes == grouped.work(OP, shape).bytes + token + constants
        assert (fused.work(shape).op, fused.work(shape).shape) == (fused.OP, grouped.work(OP, shape).shape)


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
    for op in (OP, fused.OP):
        mine = [c for c in full if c.op == op]
        single = {c.shape.context for c in mine if c.shape == Shape(c.shape.context) and c.peers == (op == OP)}
        assert single == set(CONTEXTS) >= set(US)
        assert len({str(grouped.work(op, c.shape)) for c in mine}) == len(mine)
    assert len({str(c) for c in full if c.shape.dtype == torch.bfloat16}) == len(full) - len(benchmark.QUICK_CONTEXTS)
    assert set(quick) < set(full)
    assert {c.shape.query_heads // c.shape.kv_heads for c in full} == {2, 4, 5, 8}


def test_a_run_of_chapter_6_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = Shape(20, 1, 4, 2)
    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(shape), Comparison(shape, False, fused.OP)])
    data = results_of_a_run(benchmark, tmp_path)
    found = [(case["op"], case["variant"]) for case in data["cases"]]
    assert data["chapter"] == benchmark.CHAPTER
    assert found[:4] == [(OP, name) for name in ("ours", "ours_long_graph", "ours_grouped", "sdpa")]
    assert found[4:] == [(fused.OP, "ours"), (fused.OP, "in_turn")]


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
        tried = plan_table.plans(heads, context, sms=132, clusters=True)
        whole = [one for one in tried if one.partitions == 1]
        assert whole == tried[: len(whole)] == [Plan(192, 1), Plan(256, 1), Plan(512, 1)]
        assert len({plan_table.name_of(one) for one in tried}) == len(set(tried)) == len(tried)
        by_cluster = [one for one in tried if one.merge == "cluster"]
        assert all(one.partitions in (2, 4, 8, 16) and one.partitions * heads <= 264 for one in by_cluster)
        assert bool(by_cluster) == (context > 64 and heads < 256)
        assert plan_table.plans(heads, context, sms=132, clusters=False) == [x for x in tried if x.merge != "cluster"]
        assert all(one.partition_size in plan_table.SIZES for one in tried[len(whole) :])
        assert all((one.partitions - 1) * one.partition_size < context for one in tried)


@pytest.mark.parametrize("op", plan_table.OPERATORS)
def test_each_plan_is_timed_and_the_fastest_becomes_a_row(quick_ceilings: None, op: Op) -> None:
    report, shape = Report(plan_table.RESULTS, CPU, quick=True), Shape(300, 2, 4, 2)
    operator = plan_table.OPERATORS[op]
    assert plan_table.measure(report, op, operator, [shape], sms=8) == [shape]
    tried = [plan_table.name_of(one) for one in plan_table.tried(shape, CPU, 8)]
    first = ["1 × 192", "1 × 256", "1 × 512", "2 × 64", "4 × 64"]
    assert [case.variant for case in report.cases] == tried == [*first, *tried[len(first) :]]
    fast = Quantiles(1e-6, 1e-6, 1e-6)
    report.cases[4] = dataclasses.replace(report.cases[4], us=fast)
    report.add(Case(op, "1 × 256", grouped.work(op, Shape(128)).shape, "bfloat16", "cold", us=fast))
    other = OP if op == fused.OP else fused.OP
    report.add(Case(other, "1 × 256", grouped.work(other, shape).shape, "bfloat16", "cold", us=fast))
    assert plan_table.best(report, op, operator, shape, sms=8) == Row(4, 300, 64, 4, op, "last_block")


def test_a_plan_says_by_its_name_who_merges() -> None:
    assert plan_table.name_of(Plan(64, 8, "last_block")) == "8 × 64"
    assert plan_table.name_of(Plan(64, 8, "cluster")) == "8 × 64, cluster"


def test_plans_are_measured_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_table.main(["--device", "cpu"]) == 2
    assert "plans are measured on a GPU" in capsys.readouterr().err


def test_each_idea_is_tried_on_short_and_long_contexts() -> None:
    found = [trial.work.shape["context"] for trial in tuning.trials(CPU)]
    assert found == list(tuning.CONTEXTS)
    assert {128, 32768} < set(found)


def test_the_profiler_knows_two_operators() -> None:
    assert all(set(case) == {"op", "context", "batch"} for case in profiled.CASES)
    with pytest.raises(ValueError, match=r"op is 'none'; there are paged_attention and fused_decode_attention\."):
        profiled.prepared("none", 128, 1).__enter__()
