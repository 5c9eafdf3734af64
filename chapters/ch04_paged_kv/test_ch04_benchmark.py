"""Chapter 4's benchmark: who takes part where, bytes, targets, and no time for a wrong answer. Small runs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch04_paged_kv import benchmark, candidates, profiled
from chapters.ch04_paged_kv.benchmark import Comparison, plan
from chapters.ch04_paged_kv.targets import judge
from qwen3_ref import functional
from qwen_cuda.benchmarking import (
    Operands,
    Report,
    Variant,
    WrongAnswer,
    operator_benchmark,
    rotate,
)
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
DTYPES = [torch.bfloat16, torch.float16]


class FakeVllm:
    """vLLM's two operators, with their arguments: the first works in place."""

    @staticmethod
    def fused_qk_norm_rope(
        qkv: Tensor, num_heads_q: int, num_heads_k: int, num_heads_v: int, head_dim: int, eps: float,
        q_weight: Tensor, k_weight: Tensor, cos_sin_cache: Tensor, is_neox: bool, position_ids: Tensor,
    ) -> None:  # fmt: skip
        assert is_neox
        heads = qkv.view(len(qkv), -1, head_dim)
        assert heads.shape[1] == num_heads_q + num_heads_k + num_heads_v
        cos, sin = cos_sin_cache[position_ids][:, None].chunk(2, dim=-1)
        for weight, first, count in ((q_weight, 0, num_heads_q), (k_weight, num_heads_q, num_heads_k)):
            normed = functional.rms_norm(heads[:, first : first + count].float(), weight.float(), eps)
            heads[:, first : first + count] = functional.apply_rope(normed, cos, sin)

    @staticmethod
    def reshape_and_cache_flash(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
        k_scale: Tensor, v_scale: Tensor,
    ) -> None:  # fmt: skip
        assert kv_cache_dtype == "auto"
        for cache, heads in ((key_cache, key), (value_cache, value)):
            cache.view(-1, *cache.shape[2:])[slot_mapping] = heads


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    monkeypatch.setattr(candidates, "cache_operators", lambda: FakeVllm)
    return Vllm(FakeVllm, "fake")


def test_the_traffic_is_what_must_move() -> None:
    """qkv and the indices in; q and the two caches out, together as large as qkv; a row of the table a token."""
    for tokens in (16, 48):
        made = candidates.operands(tokens, torch.bfloat16, CPU)(0)
        moved = [made[name].nbytes for name in ("qkv", "q_weight", "k_weight", "positions", "slot_mapping")]
        written = tokens * 16 * 128 * 2 + made["k_cache"].nbytes + made["v_cache"].nbytes
        assert written == made["qkv"].nbytes == made["out"].nbytes
        assert candidates.work(tokens, torch.bfloat16).bytes == sum(moved) + written + tokens * 128 * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_everybody_in_chapter_4_is_right(dtype: torch.dtype, fake_vllm: Vllm) -> None:
    variants = [candidates.ours(), candidates.copy_of_the_bytes(), *candidates.peers(fake_vllm)]
    assert [variant.name for variant in variants] == ["ours", "copy", "vllm", "torch_eager"]
    for tokens in (1, 5, 40):
        made = candidates.operands(tokens, dtype, CPU)(tokens)
        want = candidates.truth(made)
        for variant in variants:
            mine = variant.truth(made) if variant.truth else want
            check(variant, made, mine, LoopPlayer(), f"{tokens} tokens")


def test_a_second_rounding_is_a_peers_privilege() -> None:
    made = candidates.operands(64, torch.bfloat16, CPU)(0)
    (eager,) = candidates.peers(None)
    as_ours = Variant("ours", eager.run, ulps=candidates.ULPS, error=candidates.error)
    with pytest.raises(WrongAnswer, match=r"0\.55 are allowed"):
        check(as_ours, made, candidates.truth(made), LoopPlayer(), "here")


@pytest.mark.parametrize("output", [0, 1, 2])
def test_one_wrong_element_or_a_nan_is_noticed(output: int) -> None:
    made = candidates.operands(20, torch.bfloat16, CPU)(0)
    for wrong in (torch.nan, 0.0):

        def spoilt(of: Operands, wrong: float = wrong) -> Sequence[Tensor]:
            answer = candidates.ours().run(of)
            answer[output].view(-1, 128)[3].fill_(wrong)
            return answer

        with pytest.raises(WrongAnswer, match=f"output {output + 1} is"):
            check(
                Variant("x", spoilt, ulps=candidates.PEER_ULPS, error=candidates.error),
                made,
                candidates.truth(made),
                LoopPlayer(),
                "here",
            )


def test_sets_of_cache_writes_differ_and_repeat() -> None:
    make = candidates.operands(40, torch.bfloat16, CPU)
    first, second = rotate(make, cache_bytes=100).sets[:2]
    for name in ("qkv", "q_weight", "k_weight", "positions", "slot_mapping"):
        assert not torch.equal(first[name], second[name])
        assert torch.equal(first[name], make(0)[name])
    for one in (first, second):
        assert len(one["slot_mapping"].unique()) == 40
        assert one["slot_mapping"].tolist() != list(range(40)), "the blocks lie in another order"
        assert int(one["positions"].max()) < len(one["cos_sin"])


def test_each_step_of_the_ladder_of_chapter_4_has_its_launcher() -> None:
    texts = {library.name[:2]: library.sources[0].read_text() for library in candidates.step_libraries()}
    assert list(texts) == ["v1", "v2", "v3", "v4", "v5"]
    assert all("void qwen_qk_norm_rope_cache_write(" in text for text in texts.values())


def test_the_plan_of_chapter_4_holds_the_shapes_that_the_targets_need() -> None:
    full = list(plan(on_gpu=True, quick=False))
    assert {1, 8, 128, 1024, 8192, 32768} <= {c.tokens for c in full if c.dtype == torch.bfloat16 and c.everybody}
    assert {c.tokens for c in full if c.dtype == torch.float16} == {1, 8192}
    assert all("cold" in c.caches for c in full)
    assert len(set(full)) == len(full)
    assert len(list(plan(on_gpu=True, quick=True))) < len(full) / 2
    assert all(c.caches == ("warm",) and c.tokens <= 128 for c in plan(on_gpu=False, quick=False))


def test_who_takes_part_in_chapter_4(monkeypatch: pytest.MonkeyPatch, fake_vllm: Vllm) -> None:
    step, compiled = Variant("ours", lambda of: [], "v1"), Variant("torch_compile", lambda of: [])
    monkeypatch.setattr(candidates, "ladder", lambda: iter([step]))
    monkeypatch.setattr(candidates, "compiled", lambda: compiled)

    def names(what: Comparison, on_gpu: bool = True) -> list[str]:
        return [variant.label for variant in benchmark._taking_part(what, fake_vllm, on_gpu)]

    assert names(Comparison(1)) == ["ours v1", "copy", "ours", "vllm", "torch_eager"]
    assert names(Comparison(1, compiled=True))[-1] == "torch_compile"
    assert names(Comparison(1, everybody=False)) == ["ours", "vllm"]
    assert names(Comparison(1), on_gpu=False) == ["ours", "vllm", "torch_eager"]


def small_plan(on_gpu: bool, quick: bool) -> list[Comparison]:
    return [Comparison(4, caches=("warm",))]


def test_a_run_of_chapter_4_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "plan", small_plan)
    data = results_of_a_run(benchmark, tmp_path)
    assert {case["variant"] for case in data["cases"]} == {"ours", "torch_eager"}
    assert "targets" not in capsys.readouterr().out, "the targets are a GPU's"
    assert benchmark.main(["--device", "cpu", "--quick"]) == 0
    assert "wrote" not in capsys.readouterr().out, "a CPU's figures stay out of docs/results"


def test_a_wrong_cache_write_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._ours
    monkeypatch.setattr(benchmark, "plan", small_plan)
    monkeypatch.setattr(candidates, "_ours", lambda of: [*right(of)[:2], of["k_cache"]])
    said = complaint_of_a_run(benchmark, tmp_path, capsys)
    assert "wrong answer, nothing is reported: qk_norm_rope_cache_write, tokens 4" in said
    assert "output 3 is" in said


def test_a_full_memory_leaves_one_number_of_tokens_out(quick_ceilings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_benchmark, "side_by_side", memory_is_full)
    report = Report(benchmark.CHAPTER, CPU, quick=True)
    benchmark.compare(report, Comparison(2), None)
    assert report.notes == [f"{candidates.OP}, 2 tokens, bfloat16: left out, the device's memory is full."]


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: variant_tokens."""
    cases = []
    for variant in ("ours", "vllm"):
        for tokens in (1, 8192):
            work = candidates.work(tokens, torch.bfloat16)
            usual = {"ours_1": 2.0, "vllm_1": 3.9}.get(f"{variant}_{tokens}", work.bytes / 4000 / 1e3 / 0.85)
            cases.append(result(work, variant, us.get(f"{variant}_{tokens}", usual)))
    return {"ceilings": {"copy_gbps": 4000.0}, "cases": cases}


def test_targets_of_chapter_4_are_met_or_missed_by_the_figures_alone() -> None:
    assert [(verdict.measured, verdict.passed) for verdict in judge(results())] == [
        ("2.00 µs", True), ("1.95 times as fast", True), ("85.0%", True),
    ]  # fmt: skip

    def missed(**us: float) -> list[bool | None]:
        return [verdict.passed for verdict in judge(results(**us))]

    many = candidates.work(8192, torch.bfloat16).bytes / 4000 / 1e3
    assert missed(ours_1=2.31, vllm_1=9.0) == [False, True, True]
    assert missed(vllm_1=3.19) == [True, False, True]
    assert missed(ours_8192=many / 0.799) == [True, True, False]
    assert missed(ours_8192=many / 0.801) == [True, True, True]


def test_what_chapter_4_did_not_measure_is_neither_met_nor_missed(quick_ceilings: None) -> None:
    found = results()
    found["cases"] = [case for case in found["cases"] if case["variant"] != "vllm"]
    assert [verdict.passed for verdict in judge(found)] == [True, None, True]
    assert printed_targets(benchmark).count("not measured") == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"op": "rms_norm", "tokens": 1}, "op is 'rms_norm' and dtype 'bfloat16'; there is"),
        ({"op": candidates.OP, "tokens": 1, "dtype": "float32"}, "dtype 'float32'; there is"),
        ({"op": candidates.OP, "tokens": 1, "step": "v1"}, "step is 'v1'; there are v2 to v5, each one kernel."),
        ({"op": candidates.OP, "tokens": 1, "step": "v9"}, "step is 'v9'; there are v2 to v5"),
    ],
)
def test_a_profile_of_what_is_not_there_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence), profiled.prepared(**settings):
        pass


def test_profiled_cases_name_steps_of_the_ladder() -> None:
    steps = {library.name[:2] for library in candidates.step_libraries()}
    assert {case.get("step") for case in profiled.CASES} - {None} < steps


@pytest.mark.slow
def test_a_quick_run_of_chapter_4_on_a_gpu_measures_the_ladder(gpu_device: torch.device, tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path, "--quick")
    steps = {case["step"] for case in data["cases"] if case["variant"] == "ours"}
    assert steps == {None, "v1", "v2", "v3", "v4", "v5"}


@pytest.mark.slow
def test_the_compiled_cache_write_is_right_and_timed_on_a_gpu(gpu_device: torch.device, quick_ceilings: None) -> None:
    report = Report(benchmark.CHAPTER, gpu_device, quick=True)
    with torch.inference_mode():
        benchmark.compare(report, Comparison(8, compiled=True), None)
    assert [case.variant for case in report.cases][-1] == "torch_compile", report.notes
