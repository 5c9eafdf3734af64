"""The benchmark kit and chapter 1's benchmark: arithmetic, order of calls, refusals, and no time for a wrong answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chapters.ch01_math_reference import benchmark
from chapters.ch01_math_reference.peer import TransformersPeer
from chapters.ch01_math_reference.twins import SHAPES
from qwen3_ref import KVCache, Qwen3
from qwen3_ref.hub import TINY_DIR
from qwen_cuda import benchmarking
from qwen_cuda.benchmarking import Case, Ceilings, Quantiles, Report, alternate, choose_device, gpu_slug, results_path

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_gbps=100.0, copy_gbps=90.0, matmul_tflops={"float32": 0.5})
ONE_US = Quantiles(1.0, 1.0, 1.0)


def test_quantiles_lie_between_neighbours() -> None:
    assert Quantiles.of([float(n) for n in range(11, 0, -1)]) == Quantiles(2.0, 6.0, 10.0)
    assert Quantiles.of([4.0, 2.0]).median == 3.0
    assert Quantiles.of([7.0]) == Quantiles(7.0, 7.0, 7.0)
    assert Quantiles(1.0, 2.0, 4.0).rate(8.0) == Quantiles(2.0, 4.0, 8.0)


@pytest.mark.parametrize("samples", [[], [float("nan")], [0.0, 0.0], [1.0, float("inf"), float("inf")]])
def test_no_quantiles_of_what_is_no_time(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=r"samples is empty|must be positive and ascending"):
        Quantiles.of(samples)


def test_functions_are_timed_in_turn_after_their_warm_up() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    alternate(calls, CPU, warmup=2, min_samples=3, max_samples=3, budget_s=0.0)
    assert order == ["a", "a", "b", "b", *"ab" * 3]


def test_a_slower_function_takes_longer() -> None:
    small, large = torch.ones(1000), torch.ones(2_000_000)
    times = alternate({"small": small.sum, "large": large.sum}, CPU, budget_s=0.05, calls_per_sample=3)
    assert 0 < times["small"].median < times["large"].median


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-generation"),
        ("NVIDIA Graphics Device", "nvidia-graphics-device"),
    ],
)
def test_folder_name_of_a_gpu(name: str, slug: str) -> None:
    assert gpu_slug(name) == slug


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{name}'; .+\\."):
        choose_device(name)


def test_the_floor_is_the_slower_of_memory_and_arithmetic() -> None:
    assert CEILINGS.floor_us(nbytes=100_000, flops=1) == pytest.approx(1.0)
    assert CEILINGS.floor_us(nbytes=1, flops=1_000_000) == pytest.approx(2.0)
    assert CEILINGS.floor_us(nbytes=100_000, flops=10**12, dtype="int8") == pytest.approx(1.0), "an unmeasured dtype"
    assert CEILINGS.best(Ceilings(90.0, 95.0, {"float32": 0.4})) == Ceilings(100.0, 95.0, {"float32": 0.5})


def test_a_case_holds_its_figures_in_the_schema() -> None:
    case = Case("decode", "ours", {"context": 8}, "float32", "cold", "v3", bytes=50_000, flops=10, us=ONE_US)
    assert case.to_dict(CEILINGS) == {
        "op": "decode", "variant": "ours", "step": "v3", "shape": {"context": 8}, "dtype": "float32", "cache": "cold",
        "bytes": 50_000, "flops": 10, "us": {"p10": 1.0, "median": 1.0, "p90": 1.0}, "gbps": 50.0, "floor_us": 0.5,
        "floor_fraction": 0.5,
    }  # fmt: skip
    for us, tok_s in ((None, None), (ONE_US, ONE_US)):
        with pytest.raises(ValueError, match="either us or tok_s"):
            Case("decode", "ours", {}, "float32", "cold", us=us, tok_s=tok_s)


def test_figures_of_a_cpu_or_a_quick_run_stay_out_of_the_tree(tmp_path: Path) -> None:
    def report(device: str, quick: bool) -> Any:
        where = {"gpu": "NVIDIA H200" if device == "cuda" else None}
        return SimpleNamespace(device=torch.device(device), quick=quick, chapter="ch01_x", provenance=where)

    assert results_path(report("cpu", quick=False), None) is None
    assert results_path(report("cuda", quick=True), None) is None
    assert results_path(report("cpu", quick=True), tmp_path / "a.json") == tmp_path / "a.json"
    path = results_path(report("cuda", quick=False), None)
    assert path is not None
    assert path.parts[-4:] == ("docs", "results", "h200", "ch01_x.json")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """A report whose ceilings took no time."""
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)
    return Report(benchmark.CHAPTER, CPU, quick=True)


def test_a_report_is_written_whole_or_not_at_all(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.json"
    report.add(Case("decode", "ours", {"context": 8}, "float32", "cold", us=ONE_US))
    report.save(path)
    data = json.loads(path.read_text())
    assert (data["schema"], data["chapter"], len(data["cases"])) == (1, benchmark.CHAPTER, 1)
    assert data["ceilings"]["read_gbps"] == 100.0
    for name in ("commit", "date", "gpu", "sms", "driver", "torch", "cuda", "clocks", "cpu", "threads"):
        assert name in data["provenance"], name
    report.provenance["clocks"] = {"cpu": float("nan")}
    with pytest.raises(ValueError, match="JSON"):
        report.save(path)
    assert json.loads(path.read_text()) == data
    assert [file.name for file in path.parent.iterdir()] == ["out.json"]


@pytest.mark.parametrize("shape", ["group1-tied", "group2-untied", "head128"])
def test_the_peer_is_transformers_on_our_weights(shape: str) -> None:
    model = Qwen3.random(SHAPES[shape], attention="sdpa")
    peer, prompt = TransformersPeer(model), torch.tensor([[5, 3, 8, 1, 9]])
    assert peer.generate(prompt, 12) == benchmark.STEPS["v3"](model, prompt, 12)
    cache = KVCache(model.config, 1, 8, model.dtype)
    with torch.inference_mode():
        want = model(prompt, cache, last_only=True)[:, -1]
        torch.testing.assert_close(peer.prefill(prompt), want)
        peer.fill(cache)
        torch.testing.assert_close(peer.decode(prompt[:, :1]), model(prompt[:, :1], cache)[:, -1])


def test_each_phase_is_measured_beside_transformers(report: Report) -> None:
    tiny = Qwen3.from_pretrained(TINY_DIR, torch.float32, attention="sdpa")
    benchmark.ladder(report, tiny, lengths=(2,))
    benchmark.phases(report, tiny, "tiny", prompts=(4,), contexts=(6,))
    found = {(case.op, case.variant, case.step) for case in report.cases}
    assert found == {
        *(("generate", "ours", step) for step in ("v1", "v2", "v3")),
        ("generate", "transformers", None),
        *(("prefill", "ours", step) for step in ("v2", "v3")),
        ("prefill", "transformers", None),
        ("decode", "ours", "v3"),
        ("decode", "transformers", None),
    }
    for case in report.to_dict()["cases"]:
        assert ("tok_s" in case) == (case["op"] == "generate")
        if case["op"] != "generate":
            assert case["bytes"] > 0 < case["flops"]
            assert case["floor_fraction"] > 0
    report.print()


def test_a_wrong_answer_gets_no_time(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = benchmark.STEPS["v2"]
    monkeypatch.setitem(benchmark.STEPS, "v2", lambda *args: right(*args)[::-1])
    assert benchmark.main(["--quick", "--device", "cpu", "--output", str(tmp_path / "out.json")]) == 1
    assert "v2 and v1 give different tokens" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_logits_that_rounding_does_not_explain_are_refused() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    benchmark._check("same", logits, logits + 1e-7)
    for wrong in (logits + 0.1, torch.full_like(logits, float("nan")), logits.flip(-1)):
        with pytest.raises(benchmark.WrongAnswer, match="logits differ"):
            benchmark._check("other", wrong, logits)


def test_only_a_draw_excuses_another_token() -> None:
    model, prompt = Qwen3.random(SHAPES["group2-untied"], attention="sdpa"), torch.tensor([[5, 3]])
    right = benchmark.STEPS["v3"](model, prompt, 4)
    wrong = [*right[:2], (right[2] + 1) % model.config.vocab_size, right[3]]
    assert not benchmark._tied(model, prompt, wrong, right)
    assert not benchmark._tied(model, prompt, right[:3], right)
    with torch.no_grad():  # two tokens with the same row of the head are equally likely
        model.head_weight[wrong[2]] = model.head_weight[right[2]]
    assert benchmark._tied(model, prompt, wrong, right)


def test_ceilings_of_this_machine_are_measured() -> None:
    ceilings = benchmarking.measure_ceilings(CPU, quick=True)
    assert 0.1 < ceilings.read_gbps < 1e5
    assert 0.1 < ceilings.copy_gbps < 1e5
    assert all(1e-4 < tflops < 1e3 for tflops in ceilings.matmul_tflops.values())
