"""Chapter 5's benchmark: who takes part, bytes, targets, and no time for a wrong answer. Small runs on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch05_grouped_attention import benchmark, candidates, profiled
from chapters.ch05_grouped_attention.benchmark import Comparison, plan
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch05_grouped_attention.targets import MANY, STEPS, judge
from qwen_cuda.benchmarking import Operands, Report, Variant, WrongAnswer, rotate
from qwen_cuda.benchmarking.graphs import LoopPlayer
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


def test_the_traffic_is_what_the_operands_of_attention_hold() -> None:
    shape = Shape(context=32, batch=3)
    made = candidates.operands(shape, CPU, peers=False)(0)
    moved = sum(made[name].nbytes for name in ("q", "k_cache", "v_cache", "out"))
    assert candidates.work("op", shape).bytes == moved
    assert candidates.work("op", Shape(128)).bytes == 2 * (2 * 128 * 8 * 128 + 2 * 16 * 128)
    assert candidates.work("op", Shape(128)).flops == 4 * 128 * 16 * 128


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_everybody_gives_the_same_attention(dtype: torch.dtype) -> None:
    for shape in (Shape(40, 2, 4, 2, dtype=dtype), Shape(33, 1, 7, 1, 64, 8, dtype=dtype)):
        made = candidates.operands(shape, CPU, peers=True)(0)
        variants = [candidates.grouped(shape), *candidates.peers(shape, None, on_gpu=False)]
        assert [variant.name for variant in variants] == ["ours", "sdpa"]
        for variant in variants:
            check(variant, made, candidates.truth(shape, made), LoopPlayer(), str(shape))


def test_sets_have_one_table_and_other_numbers() -> None:
    first, second = rotate(candidates.operands(Shape(40, 2), CPU, peers=True), cache_bytes=100).sets[:2]
    assert torch.equal(first["block_table"], second["block_table"])
    assert sorted(first["block_table"].flatten().tolist()) == list(range(6))
    assert first["block_table"].flatten().tolist() != list(range(6))
    assert not torch.equal(first["k_cache"], second["k_cache"])
    assert first["k_dense"].shape == (2, 8, 40, 128)


def test_the_plan_of_chapter_5_holds_its_shapes() -> None:
    full, quick = (list(plan(on_gpu=True, quick=quick)) for quick in (False, True))
    assert {c.shape.context for c in full if c.shape.batch == 1} >= {128, 512, 1024, 4096, 8192, 32768}
    assert {c.shape.query_heads // c.shape.kv_heads for c in full} >= {2, 4, 5, 7, 8}
    assert {c.shape.block_size for c in full} == {8, 16, 64, 256}
    assert {c.shape.dtype for c in full} == {torch.bfloat16, torch.float16}
    assert len({str(candidates.work("op", c.shape)) for c in full}) == len(full)
    assert len(quick) < len(full) / 3
    assert Comparison(Shape(1024, MANY), ladder=True, peers=True) in full


def test_a_run_of_chapter_5_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(Shape(20, 1, 4, 2), ladder=True, peers=True)])
    data = results_of_a_run(benchmark, tmp_path)
    assert [case["variant"] for case in data["cases"]] == ["ours", "sdpa"]
    assert data["cases"][0]["shape"] == {"context": 20, "batch": 1, "heads": "4/2 × 128"}
    assert "targets" not in capsys.readouterr().out, "the targets are a GPU's"


def test_a_wrong_attention_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._grouped

    def forgets_a_head(shape: Shape, of: Operands) -> list[torch.Tensor]:
        (out,) = right(shape, of)
        out[:, 1] = out[:, 0]
        return [out]

    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(Shape(20, 1, 4, 2))])
    monkeypatch.setattr(candidates, "_grouped", forgets_a_head)
    assert "wrong answer, nothing is reported: paged_attention_grouped, context 20" in complaint_of_a_run(
        benchmark, tmp_path, capsys
    )


def test_a_full_memory_leaves_one_context_out(quick_ceilings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "side_by_side", memory_is_full)
    report = Report(benchmark.CHAPTER, CPU, quick=True)
    benchmark.compare(report, Comparison(Shape(20)), None)
    assert report.notes == ["1 × 20, heads 16/8 × 128, bfloat16: left out, the device's memory is full."]


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: variant_batch_context."""
    cases = []
    for step, context, batch in [(None, 128, 1), (None, 1024, MANY), *((step, 1024, MANY) for step in STEPS)]:
        work = candidates.work(benchmark.OP, Shape(context, batch))
        time = max(3.0, work.bytes / 4500 / 1e3 / 0.9) * {"v1": 8, "v2": 6, "v3": 4, "v4": 2}.get(step or "", 1)
        cases.append(result(work, "ours", us.get(f"{step or 'ours'}_{batch}_{context}", time), step=step))
    return {"ceilings": {"read_gbps": 4500.0}, "cases": cases}


def test_targets_of_chapter_5_are_met_or_missed_by_the_figures_alone() -> None:
    assert all(verdict.passed for verdict in judge(results())), judge(results())

    def missed(**us: float) -> list[str]:
        return [verdict.name for verdict in judge(results(**us)) if verdict.passed is False]

    assert missed(ours_1_128=3.81) == ["128 tokens"]
    assert missed(ours_1_128=3.8) == []
    floor = candidates.work("op", Shape(1024, MANY)).bytes / 4500 / 1e3
    assert missed(ours_64_1024=floor / 0.79) == ["64 sequences of 1,024 tokens"]
    assert missed(v3_64_1024=1e9) == ["the ladder, 64 × 1,024"]


def test_what_chapter_5_did_not_measure_is_neither_met_nor_missed(quick_ceilings: None) -> None:
    assert printed_targets(benchmark).count("not measured") == 4


def test_the_profiler_is_given_steps_that_exist() -> None:
    steps = {library.name.partition("_")[0] for library in candidates.step_libraries()}
    assert {case["step"] for case in profiled.CASES if "step" in case} == steps == set(STEPS)
    with pytest.raises(ValueError, match=r"step 'v9'; there is paged_attention_grouped with the steps v1 to v4"):
        profiled.prepared("paged_attention_grouped", 128, 1, "v9").__enter__()


def test_a_peer_may_round_weights_and_ours_may_not() -> None:
    shape = Shape(200, 1, 4, 2)
    made = candidates.operands(shape, CPU, peers=True)(0)

    def rounded(of: Operands) -> list[torch.Tensor]:
        k, v = (of[name].repeat_interleave(2, 1).float() for name in ("k_dense", "v_dense"))
        p = torch.softmax((k @ of["q"][0, :, :, None].float())[..., 0] * shape.scale, -1).bfloat16()
        return [(p.float()[:, :, None] @ v)[:, :, 0].bfloat16()]

    want = candidates.truth(shape, made)
    check(Variant("peer", rounded, ulps=candidates.ULPS + candidates.PEER_ULPS), made, want, LoopPlayer(), "here")
    with pytest.raises(WrongAnswer):
        check(Variant("ours", rounded, ulps=0.5), made, want, LoopPlayer(), "here")
