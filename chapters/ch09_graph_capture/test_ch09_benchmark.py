"""Chapter 9's benchmark and timeline: what is compared, targets, what a trace is read as. Small runs on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch09_graph_capture import benchmark, timeline
from chapters.ch09_graph_capture.benchmark import LADDER, Comparison, check, plan
from chapters.ch09_graph_capture.steps import v3_graph
from chapters.ch09_graph_capture.targets import OP, STEPS_A_SECOND, judge
from chapters.ch09_graph_capture.timeline import spans
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.benchmarking import Work, WrongAnswer
from qwen_cuda.benchmarking.report import Report
from qwen_cuda.testing.benchmarks import complaint_of_a_run, printed_targets, result, results_of_a_run

pytestmark = pytest.mark.usefixtures("operators", "quick_ceilings")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of two readings, three steps each."""
    whole = benchmark.compare
    monkeypatch.setattr(benchmark, "compare", lambda report, what, model: whole(report, what, model, 3, 2))


def test_the_plan_of_chapter_9_holds_what_it_promises() -> None:
    full = list(plan(on_gpu=True, quick=False))
    assert full == [Comparison(context, rows) for context in (128, 1024, 8192) for rows in (1, 2, 4, 8)]
    assert list(plan(on_gpu=True, quick=True)) == full[:1]
    assert all(one.context < 100 for one in plan(on_gpu=False, quick=False))


def test_a_run_writes_every_step_of_the_ladder_of_graphs(tmp_path: Path) -> None:
    data = results_of_a_run(benchmark, tmp_path)
    found = [(c["op"], c["step"], c["shape"]["rows"], c["cache"]) for c in data["cases"]]
    assert found == [(OP, step, rows, "warm") for rows in (1, 2) for step in LADDER]
    assert all(c["us"]["median"] > 0 and c["bytes"] > 10**6 for c in data["cases"])


def test_other_tokens_end_the_run_without_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Astray(v3_graph.Decoding):
        def tokens(self) -> list[list[int]]:
            return [[token ^ 1 for token in row] for row in super().tokens()]

    monkeypatch.setitem(LADDER, "v3", Astray)
    assert "wrong answer, nothing is reported: decode_step, context 32, rows 1: v3 drew other tokens than v2" in (
        complaint_of_a_run(benchmark, tmp_path, capsys)
    )


def test_tokens_that_there_are_not_are_found_out() -> None:
    check({"v1": [[1, 2]], "v2": [[1, 3]], "v3": [[1, 3]]}, 4, "here")
    for step, token in (("v1", -1), ("v1", 4), ("v2", -1)):
        with pytest.raises(WrongAnswer, match=f"here: {step} drew a token that there is not"):
            check({"v2": [[1, 3]], step: [[1, token]]}, 4, "here")


def test_bytes_of_a_step_are_those_of_the_cost_model() -> None:
    class Model:
        config = QWEN3_0_6B

    one = benchmark.step_bytes(Model(), Comparison(1024, 1), 0)  # type: ignore[arg-type]
    four = benchmark.step_bytes(Model(), Comparison(1024, 4), 0)  # type: ignore[arg-type]
    assert one == cost.decode_cost(QWEN3_0_6B, 1024).bytes
    assert four - one == 3 * 1025 * cost.kv_bytes_per_token(QWEN3_0_6B)


def results(**us: float) -> dict[str, Any]:
    """Results in which all targets are just met, but for `us`: context and step, as in c128_v4."""
    cases = []
    for context, rate in STEPS_A_SECOND.items():
        best = 1e6 / rate
        for step, time in {"v1": 9000.0, "v2": 2.3 * best, "v3": 1.14 * best, "v4": 1.01 * best, "v5": best}.items():
            shape: dict[str, int | str] = {"context": context, "rows": 1}
            work = Work(OP, shape, "bfloat16", 10**9)
            cases.append(result(work, "ours", us.get(f"c{context}_{step}", time), step=step))
    return {"ceilings": {"read_gbps": 4500.0}, "cases": cases}


def test_targets_of_the_step_are_met_or_missed_by_the_figures_alone() -> None:
    assert all(verdict.passed for verdict in judge(results()))
    missed = [v.target for v in judge(results(c128_v5=420.0, c8192_v2=1700.0)) if not v.passed]
    assert missed == ["≥ 2,400 a second", "a graph at least halves it"]
    assert [v.target for v in judge(results(c1024_v3=520.0)) if not v.passed] == ["dependent launch takes off a tenth"]
    assert printed_targets(benchmark).count("not measured") == 9


def test_a_graph_is_not_kept_from_anything_on_a_cpu() -> None:
    with benchmark.launched_as("v3", torch.device("cpu")) as nothing:
        assert nothing is None
    report = Report(benchmark.CHAPTER, torch.device("cpu"), quick=True)
    assert report.cases == []


def event(name: str, category: str, begin: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": length}


TRACE = [
    event("cudaGraphLaunch", "cuda_runtime", 1000.0, 6.0),
    event("second", "kernel", 1020.5, 4.25),
    event("first", "kernel", 1010.0, 11.0),
    event("cudaDeviceSynchronize", "cuda_runtime", 1006.0, 40.0),
    event("aten::mm", "cpu_op", 900.0, 100.0),
    event("Memcpy HtoD", "gpu_memcpy", 1008.0, 1.0),
    {"ph": "M", "name": "process_name", "cat": "kernel", "ts": 0},
]


def test_a_trace_is_read_as_launches_and_kernels_in_order() -> None:
    assert spans(TRACE) == {
        "kernels": [["Memcpy HtoD", 8.0, 9.0], ["first", 10.0, 21.0], ["second", 20.5, 24.75]],
        "launches": [[0.0, 6.0]],
    }
    with pytest.raises(ValueError, match="the trace holds no kernel"):
        spans(TRACE[:1])


def test_a_timeline_is_not_recorded_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline.main(["--device", "cpu"]) == 2
    assert "is recorded on a GPU" in capsys.readouterr().err
