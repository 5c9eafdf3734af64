"""`make drop-in`: a right model passes, a wrong operator is found, and the figures are of what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from chapters.ch03_swiglu.drop_in.command import main
from chapters.ch03_swiglu.drop_in.configurations import CONFIGURATIONS, TIMED, patched_copy
from chapters.ch03_swiglu.drop_in.exact import in_float64
from chapters.ch03_swiglu.drop_in.greedy import Continuation, continue_greedily, partings
from chapters.ch03_swiglu.drop_in.logits import Errors, difference, errors
from chapters.ch03_swiglu.drop_in.models import RANDOM, RANDOM_LENGTHS, load
from qwen3_ref.functional import rms_norm
from qwen_cuda.benchmarking import Ceilings
from qwen_cuda.integrations.huggingface import modules
from qwen_cuda.testing.ulp import assert_same_bits
from tests.integrations_kit import CONFIGS, logits, make, tokens

pytestmark = pytest.mark.usefixtures("one_thread")
CEILINGS = Ceilings(read_gbps=10.0, copy_gbps=8.0, matmul_tflops={"float32": 0.1}, graph_node_us=None)
ALL = CONFIGURATIONS[-1]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A directory with a small model of each family, without a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    for family in CONFIGS:
        make(family, torch.bfloat16).save_pretrained(root / family)
    return {family: str(root / family) for family in CONFIGS}


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)


def results_of(tmp_path: Path, *arguments: str) -> tuple[int, Any]:
    """The exit code of the command on the CPU, and what it wrote."""
    path = tmp_path / "results.json"
    code = main(["--device", "cpu", "--tokens", "3", "--output", str(path), *arguments])
    return code, json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize("family", CONFIGS)
def test_a_right_model_passes(
    family: str, checkpoints: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, results = results_of(tmp_path, "--model", checkpoints[family])
    said = capsys.readouterr().out
    assert code == 0
    assert "right" in said
    assert "wrong" not in said
    assert (results["schema"], results["chapter"], results["speed"]) == (1, f"drop_in_{family}", None)
    assert {"commit", "torch", "transformers"} <= results["provenance"].keys()
    validation = results["validation"]
    assert validation["complaints"] == []
    names = [(arm["configuration"], arm["rounding"]) for arm in validation["arms"]]
    assert names == [(one.name, rounding) for one in CONFIGURATIONS for rounding in ("hf", "single")]
    assert all(0 < arm["ratio"] <= validation["allowed_ratio"] for arm in validation["arms"])
    assert all(arm["identical"] + len(arm["partings"]) == 4 for arm in validation["arms"])


def test_the_tiny_checkpoint_passes_with_texts_for_prompts() -> None:
    subject = load("tiny", torch.device("cpu"))
    assert subject.dtype == torch.bfloat16
    assert len({prompt.shape for prompt in subject.prompts}) > 1
    first = continue_greedily(subject.model, subject.prompts, 6)
    again = continue_greedily(patched_copy(subject.model, ALL, "hf"), subject.prompts, 6)
    assert partings(again, first, rms_error=0.0) == []
    assert all(len(one.tokens) == 6 for one in first), "a stop token must not end a text that is compared"


def test_random_weights_repeat_and_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RANDOM, "random-0.6b", CONFIGS["qwen3"])
    cpu = torch.device("cpu")
    state = torch.get_rng_state()
    first, again, other = (load("random-0.6b", cpu, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [dict(one.model.named_parameters()) for one in (first, again, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not any(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert all(weight.float().std() > 0.1 for name, weight in weights[0].items() if "norm" in name)
    assert first.dtype == torch.bfloat16
    assert first.model.model.rotary_emb.inv_freq.dtype == torch.float32, "rounded, they turn far positions by radians"
    assert [prompt.shape[1] for prompt in first.prompts] == list(RANDOM_LENGTHS)


@pytest.mark.parametrize(
    ("name", "layers", "parameters"), [("random-0.6b", 28, 596_049_920), ("random-0.5b", 24, 494_032_768)]
)
def test_the_random_shapes_are_those_of_the_models(name: str, layers: int, parameters: int) -> None:
    """By their published numbers of parameters, 0.6 and 0.49 billion."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(RANDOM[name]())
    assert model.config.num_hidden_layers == layers
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def _no_silu(gate_up: torch.Tensor, *, hf_rounding: bool) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return gate * up


def _no_root(x: torch.Tensor, weight: torch.Tensor, eps: float, *, hf_rounding: bool) -> torch.Tensor:
    return x / (x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype) * weight


def _lost_residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, **_: Any) -> Any:
    return rms_norm(x, weight, eps, "fused"), residual


def _nan(x: torch.Tensor, weight: torch.Tensor, eps: float, *, hf_rounding: bool) -> torch.Tensor:
    return torch.full_like(x, torch.nan)


@pytest.mark.parametrize(
    ("operator", "broken", "arms"),
    [
        ("silu_mul", _no_silu, {"mlp", "rms_norm+mlp", "all"}),
        ("rms_norm", _no_root, {"rms_norm", "rms_norm+mlp", "rms_norm+add", "all"}),
        ("rms_norm", _nan, {"rms_norm", "rms_norm+mlp", "rms_norm+add", "all"}),
        ("add_rms_norm", _lost_residual, {"rms_norm+add", "all"}),
    ],
)
def test_a_wrong_operator_is_found_and_nothing_is_timed(
    operator: str,
    broken: Callable[..., Any],
    arms: set[str],
    checkpoints: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(modules, operator, broken)
    code, results = results_of(tmp_path, "--model", checkpoints["qwen3"], "--bench")
    said = capsys.readouterr().out
    assert code == 1
    assert "does not compute what the unpatched one does; nothing is timed." in said
    wrong = {sentence.partition(",")[0] for sentence in results["validation"]["complaints"]}
    assert wrong == arms
    assert "times are allowed" in said
    assert results["speed"] is None


@pytest.mark.usefixtures("quick_ceilings")
def test_the_benchmark_pairs_every_configuration_with_the_unpatched_model(
    checkpoints: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, results = results_of(
        tmp_path, "--model", checkpoints["qwen3"], "--bench", "--rounds", "2", "--prompts", "4", "9"
    )
    assert code == 0
    shapes = [(case["op"], case["shape"]["prompt"], case["variant"]) for case in results["cases"]]
    names = ["unpatched", *(one.name for one in TIMED)]
    assert sorted(shapes) == sorted((op, n, name) for op in ("decode", "prefill") for n in (4, 9) for name in names)
    assert all(case["us"]["median"] > 0 and case["floor_us"] > 0 for case in results["cases"])
    pairs = results["speed"]["comparisons"]
    assert len(pairs) == 2 * 2 * len(TIMED)
    assert all(pair["rounds"] == 2 and pair["speedup"]["low"] < pair["speedup"]["high"] for pair in pairs)
    counts = results["speed"]["operators_per_step"]
    assert counts["unpatched"] > counts["mlp"] > counts["rms_norm"] > counts["rms_norm+mlp"] > counts["all"]
    said = capsys.readouterr().out
    assert "decode: times as fast as unpatched" in said
    assert "without cuDNN's" in said


def test_float64_reaches_the_norms() -> None:
    model = make()
    exact = in_float64(model)
    assert_same_bits(logits(model, tokens(model)), logits(make(), tokens(model)))
    x = torch.randn(3, 48, dtype=torch.float64)
    norm = exact.model.norm
    expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    assert float((norm(x) - expected).detach().abs().max()) < 1e-14
    error = errors([logits(model, tokens(model))[0]], [logits(exact, tokens(model))[0]])
    assert 0 < error.rms < error.largest < 1e-3


def _text(chosen: list[int], margins: list[float]) -> Continuation:
    second = torch.zeros(len(chosen), dtype=torch.float64)
    best = torch.stack((second + torch.tensor(margins, dtype=torch.float64), second), -1)
    return Continuation(torch.tensor(chosen), best, torch.full((len(chosen),), 0.125, dtype=torch.float64))


@pytest.mark.parametrize(
    ("margin", "rms", "tie"), [(0.5, 0.0, True), (0.501, 0.0, False), (0.6, 0.1, True), (0.61, 0.1, False)]
)
def test_a_parting_is_a_tie_where_rounding_can_decide(margin: float, rms: float, tie: bool) -> None:
    theirs, mine = _text([1, 2, 3, 4], [9, 9, margin, 0]), _text([1, 2, 7, 5], [9, 9, 9, 9])
    (found,) = partings([theirs, mine], [theirs, theirs], rms)
    assert (found.prompt, found.place, found.tie) == (1, 2, tie)
    assert found.margin_ulps == pytest.approx(margin / 0.125)


def test_a_nan_is_never_near() -> None:
    good = [torch.zeros(2, 3), torch.zeros(2, 3)]
    bad = [torch.full((2, 3), torch.nan), torch.zeros(2, 3)]
    assert math.isnan(errors(bad, [one.double() for one in good]).rms)
    assert math.isnan(errors(bad, [one.double() for one in good]).largest)
    assert math.isnan(difference(bad, good).largest)
    assert errors(good, [one.double() for one in good]) == Errors(0.0, 0.0)


def _llama(root: Path) -> str:
    LlamaConfig().save_pretrained(root)
    return str(root)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (lambda root: ["--model", str(root)], "cannot be loaded"),
        (lambda root: ["--model", _llama(root)], "is a model of type 'llama'; it must be a Qwen2, Qwen2.5 or Qwen3"),
        (lambda root: ["--model", ""], "MODEL is empty; it must be tiny, a directory, a hub id, or random-0.6b"),
        (lambda root: ["--device", "mps"], "device is 'mps'"),
    ],
    ids=["no model", "another family", "no name", "another device"],
)
def test_what_cannot_be_used_is_said_in_one_sentence(
    words: Callable[[Path], list[str]], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", *words(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert said.startswith("make drop-in: ")
    assert "\n" not in said


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--tokens", "x"], ["--prompts", "-1"], ["--dtype", "int8"]])
def test_an_option_out_of_range_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2
    assert words[0] in capsys.readouterr().err
