"""Chapter 10's benchmark: who takes part, bytes, targets, and no time for a wrong code. Small runs on a CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.plan_table import best, measure
from chapters.ch10_quantized_kv import benchmark, candidates, plan_table, profiled, reader_tuning
from chapters.ch10_quantized_kv import fused_candidates as fused
from chapters.ch10_quantized_kv import reader_candidates as reader
from chapters.ch10_quantized_kv.benchmark import (
    Compared,
    Comparison,
    FusedComparison,
    ReaderComparison,
    fused_plan,
    plan,
    reader_plan,
    writer_plan,
)
from chapters.ch10_quantized_kv.targets import FUSED_CONTEXTS, OVER_PLAIN, READER, judge
from qwen_cuda.benchmarking import Report, rotate
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check
from qwen_cuda.building import KERNELS
from qwen_cuda.testing.benchmarks import CPU, complaint_of_a_run, result, results_of_a_run

pytestmark = pytest.mark.usefixtures("operators")


@pytest.mark.parametrize("name", candidates.FORMATS)
def test_the_traffic_of_a_store_is_what_must_move(name: str) -> None:
    """K and V and the indices in; codes and scales, without padding, out."""
    made, form = candidates.operands(32, name, CPU)(0), candidates.FORMATS[name]
    moved = [made[name].nbytes for name in ("x", "weight", "positions", "slot_mapping")]
    moved += [part.nbytes for cache in ("k_cache", "v_cache") for part in form.views(made[cache])]
    assert candidates.work(32, name).bytes == sum(moved) + 32 * 128 * 4
    assert 2 * made["read"].numel() == candidates.work(32, name).bytes // 2


@pytest.mark.parametrize("name", candidates.FORMATS)
def test_everybody_in_chapter_10_is_right(name: str) -> None:
    variants = [candidates.copy_of_the_bytes(), *candidates.everybody(name)]
    assert [variant.name for variant in variants] == ["copy", "ours", "ours_unfused", "torch_eager"]
    for tokens in (1, 40):
        made = candidates.operands(tokens, name, CPU)(tokens)
        want = candidates.truth(name, made)
        for variant in variants:
            mine = variant.truth(made) if variant.truth else want
            check(variant, made, mine, LoopPlayer(), f"{tokens} tokens")


def test_an_error_counts_in_steps_of_a_code() -> None:
    made = candidates.operands(16, "fp8", CPU)(0)
    truth = candidates.truth("fp8", made)[0]
    assert float(candidates.error("fp8", truth, truth).max()) == 0
    form, other = candidates.FORMATS["fp8"], truth.clone()
    codes = form.views(other)[0]
    largest = (codes & 0x7F).amax()
    codes -= ((codes & 0x7F) == largest).to(torch.uint8)  # the code below the largest, in all groups that have it
    assert 0.4 < float(candidates.error("fp8", other, truth).max()) <= 1
    assert not float(candidates.error("fp8", torch.zeros_like(truth), truth).max()) <= candidates.PEER_STEPS


def test_sets_of_a_store_differ_and_repeat() -> None:
    make = candidates.operands(40, "nvfp4", CPU)
    first, second = rotate(make, cache_bytes=100).sets[:2]
    for name in ("x", "weight", "positions", "slot_mapping"):
        assert not torch.equal(first[name], second[name])
        assert torch.equal(first[name], make(0)[name])
    assert len(first["slot_mapping"].unique()) == 40


def test_the_plan_of_chapter_10_holds_what_the_targets_need() -> None:
    full = list(writer_plan(on_gpu=True, quick=False))
    assert {(tokens, name) for tokens in (1, 8192) for name in candidates.FORMATS} <= {
        (c.tokens, c.format) for c in full
    }
    assert len(set(full)) == len(full) == 18
    assert len(list(writer_plan(on_gpu=True, quick=True))) == 6
    assert all(c.caches == ("warm",) for c in writer_plan(on_gpu=False, quick=False))
    taking_part = [variant.label for variant in benchmark._taking_part(full[0], on_gpu=True)]
    assert taking_part == ["ours v1", "ours v2", "copy", "ours", "ours_unfused", "torch_eager"]


def test_the_plan_of_readers_has_each_format_beside_16_bits() -> None:
    full = list(reader_plan(on_gpu=True, quick=False))
    single = {(c.shape.context, c.format) for c in full if c.shape.batch == 1}
    assert single == {(context, name) for context in benchmark.CONTEXTS for name in reader.NAMES}
    assert set(OVER_PLAIN) <= set(benchmark.CONTEXTS)
    assert set(reader_plan(on_gpu=True, quick=True)) < set(full)
    assert len(set(full)) == len({str(c) for c in full}) == len(full) == 35
    assert [*plan(True, False)] == [*writer_plan(True, False), *full, *fused_plan(True, False)]


def test_the_plan_of_the_fused_form_holds_what_the_targets_need() -> None:
    full = list(fused_plan(on_gpu=True, quick=False))
    needed = {(context, name) for context in FUSED_CONTEXTS for name in fused.FORMATS}
    assert {(c.shape.context, c.format) for c in full} == needed
    assert len({str(c) for c in full}) == len(full) == 10
    assert set(fused_plan(on_gpu=True, quick=True)) < set(full)


@pytest.mark.parametrize("name", fused.FORMATS)
def test_one_launch_and_two_are_right_by_each_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(70, 2, 16, 8)
    for cut in (Plan(16, 1), Plan(16, 5)):
        monkeypatch.setattr(fused, "plan_for", lambda *given, cut=cut, **more: cut)
        variants = list(fused.ours(name, shape, CPU))
        assert [variant.name for variant in variants] == ["ours", "in_turn"]
        for variant in variants:  # each writes the newest token
            made = fused.operands(name, shape, CPU)(0)
            check(variant, made, fused.truth(name, shape, made), LoopPlayer(), name)


@pytest.mark.parametrize("name", fused.FORMATS)
def test_the_traffic_of_the_fused_form_is_its_bytes_without_padding(name: str) -> None:
    """Of the caches' codes all but the newest are read, and those are written."""
    shape = Shape(32, 2)
    made, form = fused.operands(name, shape, CPU)(0), reader.FORMATS[name]
    moved = [part.nbytes for cache in ("k_cache", "v_cache") for part in form.views(made[cache])]
    moved += [made[one].nbytes for one in ("qkv", "q_weight", "k_weight")]
    rows_of_cos_sin, out = 2 * 4 * shape.head_dim, 2 * shape.query_heads * shape.head_dim * 2
    assert fused.work(name, shape).bytes == sum(moved) + rows_of_cos_sin + out


@pytest.mark.parametrize("name", reader.NAMES)
def test_each_reader_is_right_by_each_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(70, 2, 16, 8)
    made = reader.operands(name, shape, CPU)(0)
    for cut in (Plan(16, 1), Plan(16, 5)):
        monkeypatch.setattr(reader, "plan_for", lambda *given, cut=cut, **more: cut)
        variants = list(reader.ours(name, shape, CPU))
        assert [variant.name for variant in variants] == ["ours", "ours_long_graph"]
        for variant in variants:
            check(variant, made, reader.truth(name, shape, made), LoopPlayer(), name)


@pytest.mark.parametrize("name", reader.FORMATS)
def test_the_traffic_of_a_reader_is_its_bytes_without_padding(name: str) -> None:
    shape = Shape(32, 2)
    work, made, form = reader.work(name, shape), reader.operands(name, shape, CPU)(0), reader.FORMATS[name]
    moved = [part.nbytes for cache in ("k_cache", "v_cache") for part in form.views(made[cache])]
    assert work.bytes == sum(moved) + 2 * made["q"].nbytes
    assert work.flops == reader.work(reader.PLAIN, shape).flops
    assert reader.table_op(name) == ("paged_attention_fp8" if "fp8" in name else "paged_attention_fp4")


def test_plans_of_the_reader_are_timed_and_the_fastest_become_rows(quick_ceilings: None) -> None:
    report, shape = Report(plan_table.RESULTS, CPU, quick=True), Shape(300, 1, 16, 8)
    for op, operator in plan_table.OPERATORS.items():
        assert measure(report, op, operator, [shape], sms=16) == [shape]
        row = best(report, op, operator, shape, sms=16)
        assert (row.op, row.heads, row.context) == (op, 8, 300)
    assert plan_table.main(["--device", "cpu"]) == 2


def test_each_change_of_the_reader_is_tried_on_both_formats() -> None:
    """And each fits the files as they are."""
    trials = list(reader_tuning.trials(CPU))
    assert len({str(trial.work) for trial in trials}) == len(trials) == 16
    assert {trial.work.shape["format"] for trial in trials} == set(reader_tuning.NAMES)
    for edits in reader_tuning.EDITS.values():
        for edit in edits:
            (path,) = (KERNELS / "cuda").rglob(edit.file)
            assert path.read_text(encoding="utf-8").count(edit.old) == edit.count


def small_plan(on_gpu: bool, quick: bool) -> list[Compared]:
    shape, name = Shape(20), "fp8_sections"
    return [Comparison(4, "nvfp4", ("warm",)), ReaderComparison(shape, name), FusedComparison(shape, name)]


def test_a_run_of_chapter_10_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "plan", small_plan)
    data = results_of_a_run(benchmark, tmp_path)
    found = [(case["op"], case["variant"]) for case in data["cases"]]
    writers = [(candidates.OP, name) for name in ("ours", "ours_unfused", "torch_eager")]
    readers = [(reader.OP, "ours"), (reader.OP, "ours_long_graph")]
    assert found == [*writers, *readers, (fused.OP, "ours"), (fused.OP, "in_turn")]


def test_a_wrong_code_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._ours
    monkeypatch.setattr(benchmark, "plan", small_plan)
    monkeypatch.setattr(candidates, "_ours", lambda name, of: [right(name, of)[0], of["k_cache"]])
    said = complaint_of_a_run(benchmark, tmp_path, capsys)
    assert f"wrong answer, nothing is reported: {candidates.OP}, tokens 4" in said
    assert "output 2 is" in said


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: variant_tokens_format."""
    cases = []
    for name in ("fp8", "nvfp4"):
        for variant, tokens in (("ours", 1), ("ours_unfused", 1), ("ours", 8192), ("copy", 8192)):
            work = candidates.work(tokens, name)
            usual = {"ours": 2.0, "ours_unfused": 7.0}[variant] if tokens == 1 else work.bytes / 4000 / 1e3 / 0.85
            cases.append(result(work, variant, us.get(f"{variant}_{tokens}_{name}", usual)))
    for context, usual in {8192: 12.0, 32768: 35.0}.items():
        for name, share in ((reader.PLAIN, 1.0), (READER, 0.55)):
            time = us.get(f"read_{context}_{name}", usual * share)
            cases.append(result(reader.work(name, Shape(context)), "ours", time))
    for context in FUSED_CONTEXTS:
        for name in fused.FORMATS:
            for variant, usual in (("ours", 3.5), ("in_turn", 7.0)):
                time = us.get(f"{variant}_{context}_{name}", usual)
                cases.append(result(fused.work(name, Shape(context)), variant, time))
    return {"ceilings": {"copy_gbps": 4000.0}, "cases": cases}


def test_targets_of_chapter_10_are_met_or_missed_by_the_figures_alone() -> None:
    def passed(**us: float) -> list[bool | None]:
        return [verdict.passed for verdict in judge(results(**us))]

    def missed(**us: float) -> list[int]:
        return [i for i, one in enumerate(passed(**us)) if not one]

    assert passed() == [True] * 10
    assert missed(ours_1_fp8=2.51) == [0]
    assert missed(ours_unfused_1_nvfp4=4.9) == [4]
    assert missed(read_8192_fp8_sections=7.51) == [6]
    assert missed(read_32768_bf16=33.0) == [7]
    assert missed(in_turn_128_fp8_sections=3.5) == [8]
    assert missed(ours_32768_nvfp4_sections=7.01) == [9]
    many = candidates.work(8192, "fp8").bytes / 4000 / 1e3
    assert missed(ours_8192_fp8=many / 0.74, copy_8192_fp8=many) == [2]
    empty = {"ceilings": {"copy_gbps": 4000.0}, "cases": []}
    assert {verdict.passed for verdict in judge(empty)} == {None}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"op": "rms_norm", "format": "fp8"}, r"with the formats fp8, fp8_sections, nvfp4; paged_attention_quantized "),
        ({"op": reader.OP, "format": "fp6"}, r"with the formats fp8, fp8_sections, nvfp4, nvfp4_sections\."),
        ({"op": candidates.OP, "format": "fp8", "step": "v9"}, r"^step is 'v9'; the ladder has v1 and v2\."),
    ],
)
def test_a_profile_of_what_chapter_10_has_not_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with (
        pytest.raises(ValueError, match=sentence),
        profiled.prepared(tokens=1, **settings),
    ):
        pass


@pytest.mark.slow
def test_a_quick_run_of_chapter_10_on_a_gpu(gpu_device: torch.device, tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path, "--quick")
    writers = [case for case in data["cases"] if case["op"] == candidates.OP]
    assert {case["variant"] for case in writers} == {"ours", "ours_unfused", "torch_eager", "copy"}
    assert {case["step"] for case in writers if case["variant"] == "ours"} == {None, "v1", "v2"}
    assert {case["op"] for case in data["cases"]} == {candidates.OP, reader.OP, "paged_attention", fused.OP}


def test_profiled_cases_are_calls() -> None:
    for case in profiled.CASES:
        formats, size = {
            candidates.OP: (candidates.FORMATS, "tokens"),
            reader.OP: (reader.FORMATS, "context"),
        }[str(case["op"])]
        assert case["format"] in formats
        assert size in case
    made = candidates.operands(3, "fp8", CPU)(1)
    assert partial(candidates.ours("fp8").run, made)()[0] is made["k_cache"]
