"""Chapter 10's benchmark: who takes part, bytes, targets, and no time for a wrong code. Small runs on a CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch10_quantized_kv import benchmark, candidates, profiled
from chapters.ch10_quantized_kv.benchmark import Comparison, plan
from chapters.ch10_quantized_kv.targets import judge
from qwen_cuda.benchmarking import rotate
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check
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
    full = list(plan(on_gpu=True, quick=False))
    assert {(tokens, name) for tokens in (1, 8192) for name in candidates.FORMATS} <= {
        (c.tokens, c.format) for c in full
    }
    assert len(set(full)) == len(full) == 18
    assert len(list(plan(on_gpu=True, quick=True))) == 6
    assert all(c.caches == ("warm",) for c in plan(on_gpu=False, quick=False))
    taking_part = [variant.label for variant in benchmark._taking_part(full[0], on_gpu=True)]
    assert taking_part == ["ours v1", "ours v2", "copy", "ours", "ours_unfused", "torch_eager"]


def small_plan(on_gpu: bool, quick: bool) -> list[Comparison]:
    return [Comparison(4, "nvfp4", ("warm",))]


def test_a_run_of_chapter_10_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "plan", small_plan)
    data = results_of_a_run(benchmark, tmp_path)
    assert {case["variant"] for case in data["cases"]} == {"ours", "ours_unfused", "torch_eager"}


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
            usual = {"ours": 2.0, "ours_unfused": 6.0}[variant] if tokens == 1 else work.bytes / 4000 / 1e3 / 0.85
            cases.append(result(work, variant, us.get(f"{variant}_{tokens}_{name}", usual)))
    return {"ceilings": {"copy_gbps": 4000.0}, "cases": cases}


def test_targets_of_chapter_10_are_met_or_missed_by_the_figures_alone() -> None:
    def passed(**us: float) -> list[bool | None]:
        return [verdict.passed for verdict in judge(results(**us))]

    assert passed() == [True] * 6
    assert passed(ours_1_fp8=2.51) == [False, *[True] * 5]
    assert passed(ours_unfused_1_nvfp4=3.9) == [*[True] * 4, False, True]
    many = candidates.work(8192, "fp8").bytes / 4000 / 1e3
    assert passed(ours_8192_fp8=many / 0.74, copy_8192_fp8=many) == [True, True, False, *[True] * 3]
    empty = {"ceilings": {"copy_gbps": 4000.0}, "cases": []}
    assert {verdict.passed for verdict in judge(empty)} == {None}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"op": "rms_norm", "format": "fp8"}, r"with the formats fp8, fp8_sections, nvfp4\."),
        ({"op": candidates.OP, "format": "fp6"}, r"with the formats fp8, fp8_sections, nvfp4\."),
        ({"op": candidates.OP, "format": "fp8", "step": "v9"}, r"^step is 'v9'; the ladder has v1 and v2\."),
    ],
)
def test_a_profile_of_what_chapter_10_has_not_is_refused(settings: dict[str, str], sentence: str) -> None:
    with (
        pytest.raises(ValueError, match=sentence),
        profiled.prepared(tokens=1, **settings),
    ):
        pass


@pytest.mark.slow
def test_a_quick_run_of_chapter_10_on_a_gpu(gpu_device: torch.device, tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path, "--quick")
    assert {case["variant"] for case in data["cases"]} == {"ours", "ours_unfused", "torch_eager", "copy"}
    assert {case["step"] for case in data["cases"] if case["variant"] == "ours"} == {None, "v1", "v2"}


def test_profiled_cases_are_calls() -> None:
    for case in profiled.CASES:
        assert case["op"] == candidates.OP
        assert case["format"] in candidates.FORMATS
    made = candidates.operands(3, "fp8", CPU)(1)
    assert partial(candidates.ours("fp8").run, made)()[0] is made["k_cache"]
