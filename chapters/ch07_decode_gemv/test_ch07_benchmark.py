"""Chapter 7's benchmark and tuning: who takes part, bytes, targets, edits that fit. Small runs on a CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch07_decode_gemv import benchmark, candidates, chain, profiled, tuning
from chapters.ch07_decode_gemv.benchmark import Comparison, plan
from chapters.ch07_decode_gemv.candidates import LAYERS, Layer
from chapters.ch07_decode_gemv.chain import Stack
from chapters.ch07_decode_gemv.targets import CHAIN_LAYER_US, PEERS, STACK, US, judge
from qwen_cuda.benchmarking import Case, Ceilings, Operands, Quantiles
from qwen_cuda.benchmarking.graphs import LoopPlayer
from qwen_cuda.benchmarking.side_by_side import check
from qwen_cuda.building import ROOT
from qwen_cuda.loading import load_operators

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_gbps=4500.0, copy_gbps=4000.0, matmul_tflops={}, graph_node_us=0.7)
SMALL = (
    Layer("qkv", 64, 32, norm=True, rows=2),
    Layer("o", 32, 64, residual=True),
    Layer("gate_up", 96, 32, norm=True, silu_mul=True, dtype=torch.float16),
    Layer("down", 32, 48, residual=True, rows=3),
    Layer("head", 300, 32),
)
SMALL_STACK = Stack(layers=3, hidden=32, heads=48, qkv=96, intermediate=64)


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    load_operators()


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that took no time."""
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.op)
def test_everybody_computes_a_layer(layer: Layer) -> None:
    made = candidates.operands(layer, CPU)(0)
    variants = [*candidates.ours(layer, on_gpu=False), *candidates.peers(layer)]
    around = ["cublas_and_ours"] * (layer.norm or layer.residual)
    assert [one.name for one in variants] == ["ours", "ours_waits_first", "cublas", *around]
    for variant in variants:
        want = variant.truth(made) if variant.truth else candidates.truth(layer, made)
        check(variant, made, want, LoopPlayer(), str(layer))
    torch.testing.assert_close(candidates._one_by_one(layer, made), candidates._fused_kernels(layer, made), **LOOSE)


LOOSE: dict[str, Any] = {"rtol": 2**-5, "atol": 2**-5}


def test_everybody_computes_the_chain() -> None:
    made = chain.operands(SMALL_STACK, CPU)(0)
    variants = list(chain.variants(SMALL_STACK, on_gpu=False))
    assert [one.name for one in variants] == ["ours", "ours_waits_first", "cublas_and_ours"]
    want = chain.truth(SMALL_STACK, made)
    for variant in variants:
        check(variant, made, want, LoopPlayer(), str(SMALL_STACK))
    layer = partial(chain._plain_layer, SMALL_STACK.heads)
    (plain,) = chain._plain(SMALL_STACK, layer, made)
    assert float(chain.error(plain, want[0]).max()) <= chain.PEER_ULPS


def test_a_lost_residual_is_seen_in_the_chain() -> None:
    made = chain.operands(SMALL_STACK, CPU)(0)
    (out,) = chain._ours(SMALL_STACK, True, made | {"down.2": torch.zeros_like(made["down.2"])})
    assert float(chain.error(out, chain.truth(SMALL_STACK, made)[0]).max()) > 10 * chain.ULPS


def test_the_traffic_of_a_layer_is_what_its_operands_and_results_hold() -> None:
    for layer in SMALL:
        made = candidates.operands(layer, CPU)(0)
        (out,) = next(candidates.ours(layer, on_gpu=False)).run(made)
        read = sum(tensor.nbytes for name, tensor in made.items() if not name.endswith("narrow"))
        assert candidates.work(layer).bytes == read + out.numel() * out.itemsize
    made = chain.operands(SMALL_STACK, CPU)(0)
    weights = sum(tensor.nbytes for name, tensor in made.items() if not name.startswith("x"))
    assert chain.work(SMALL_STACK).bytes == weights


def test_the_stack_is_that_of_the_layers() -> None:
    shapes = {layer.op: (layer.n, layer.k) for layer in LAYERS}
    assert {name: shapes[name] for name in STACK.shapes()} == STACK.shapes()


def test_the_plan_of_chapter_7_holds_what_its_targets_need() -> None:
    full, quick = ([one.what for one in plan(on_gpu=True, quick=quick)] for quick in (False, True))
    assert {*LAYERS, STACK} == set(quick) < set(full)
    assert len({str(one) for one in full}) == len(full)
    assert {one.rows for one in full} == {1, 2, 4, 8}
    assert all(one.compiled for one in plan(on_gpu=True, quick=False) if one.what in quick)


def test_a_run_of_chapter_7_writes_what_it_measured(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(SMALL[0]), Comparison(SMALL_STACK)])
    output = tmp_path / "out.json"
    assert benchmark.main(["--device", "cpu", "--output", str(output)]) == 0
    data = json.loads(output.read_text())
    assert (data["schema"], data["chapter"]) == (1, benchmark.CHAPTER)
    assert {case["op"] for case in data["cases"]} == {"qkv", "chain"}


def test_a_wrong_layer_ends_the_run_without_a_time(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates._ours

    def forgets_the_gain(layer: Layer, prefetch: bool, of: Operands) -> list[Tensor]:
        return right(layer, prefetch, of | {"norm_weight": torch.ones_like(of["norm_weight"])})

    monkeypatch.setattr(benchmark, "plan", lambda *args: [Comparison(SMALL[0])])
    monkeypatch.setattr(candidates, "_ours", forgets_the_gain)
    assert benchmark.main(["--device", "cpu", "--output", str(tmp_path / "out.json")]) == 1
    assert "wrong answer, nothing is reported: qkv, rows 2, n 64, k 32" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def results(**us: float) -> dict[str, Any]:
    """Results in which every case that a target needs was measured. `us` changes single ones: variant_op."""
    cases = []
    works = [(candidates.work(layer), US[layer.op] * 0.99) for layer in LAYERS]
    for work, best in [*works, (chain.work(STACK), CHAIN_LAYER_US * STACK.layers * 0.99)]:
        for variant in ("ours", "ours_without_pdl", *PEERS):
            time = us.get(f"{variant}_{work.op}", best * (1.0 if variant == "ours" else 1.6))
            quantiles = Quantiles(time, time, time)
            case = Case(work.op, variant, work.shape, work.dtype, "cold", bytes=work.bytes, us=quantiles)
            cases.append(case.to_dict(CEILINGS))
    return {"ceilings": {"read_gbps": 4500.0}, "cases": cases}


def test_targets_of_chapter_7_are_met_or_missed_by_the_figures_alone() -> None:
    def missed(**us: float) -> set[str]:
        return {verdict.name for verdict in judge(results(**us)) if verdict.passed is False}

    stretch = {"o (stretch)", "down (stretch)", "a layer of the chain (stretch)"}
    assert missed() == stretch
    assert missed(ours_head=70.6) == stretch | {"head"}
    assert missed(ours_chain=8.1 * 28, ours_o=1.43, ours_down=1.8) == set()
    assert missed(torch_compile_chain=8.0 * 28) == stretch | {"the chain"}
    assert missed(cublas_head=60.0) == stretch | {"qkv, o, gate_up, down, head"}
    assert missed(ours_without_pdl_qkv=4.0) == stretch | {"without PDL, qkv, o, gate_up, down, head"}
    assert all(verdict.passed is None for verdict in judge({"ceilings": {}, "cases": []}))


def test_every_idea_of_the_tuning_fits_the_kernel() -> None:
    folder = ROOT / "kernels" / "cuda"
    for name, edits in tuning.EDITS.items():
        for edit in edits:
            path = folder / edit.file if edit.file.endswith(".cu") else folder / "include" / edit.file
            assert path.read_text(encoding="utf-8").count(edit.old) == edit.count, f"{name}: {edit.old}"


def test_each_idea_is_tried_on_the_chain_and_on_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "STACK", SMALL_STACK)
    monkeypatch.setattr(tuning, "LAYERS", SMALL[:2])
    monkeypatch.setattr(tuning, "OTHER_LAYERS", SMALL[1:2])
    found = [(trial.work.op, trial.work.shape["rows"]) for trial in tuning.trials(CPU)]
    batches = [(op, rows) for rows in (4, 8) for op in ("qkv", "o")]
    assert found == [("chain", 1), ("qkv", 2), ("o", 1), *batches, ("o", 1)]


def test_the_profiler_knows_the_layers() -> None:
    assert [case["op"] for case in profiled.CASES] == [layer.op for layer in LAYERS]
    with pytest.raises(ValueError, match=r"op is 'none'; there is qkv, o, gate_up, down, head\."):
        profiled.prepared("none").__enter__()


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest) -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU that PyTorch can use")
    return torch.device("cuda")


@pytest.mark.slow
def test_a_quick_run_of_chapter_7_on_a_gpu_measures_layers_and_chain(gpu: torch.device, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    assert benchmark.main(["--quick", "--output", str(output)]) == 0
    data = json.loads(output.read_text())
    assert {case["op"] for case in data["cases"]} == {*(layer.op for layer in LAYERS), chain.OP}


@pytest.mark.slow
def test_compiled_layers_are_right_on_a_gpu(gpu: torch.device) -> None:
    for layer in (*SMALL, replace(LAYERS[1], rows=1)):
        made = candidates.operands(layer, gpu)(0)
        (out,) = candidates.compiled(layer).run(made)
        assert float(candidates.error(out, candidates.truth(layer, made)[0]).max()) <= 6.0
