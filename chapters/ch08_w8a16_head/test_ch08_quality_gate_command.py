"""`make quality-gate`: its exit codes, its file, and that nothing but a judgement ever ends with 0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from chapters.ch08_w8a16_head.quality_gate import command
from chapters.ch08_w8a16_head.quality_gate.prompts import HELD_OUT_STORIES, PASSAGES
from qwen3_ref.hub import TINY_DIR

pytestmark = pytest.mark.usefixtures("one_thread")
FIGURES = {"tokens", "flips", "agreement", "agreement_interval", "logit_error", "kl_nats", "perplexity"}


def gate(output: Path, *arguments: str) -> tuple[int, Any]:
    """The exit code of the command on the CPU with 32 tokens a text, and what it wrote."""
    code = command.main(["--device", "cpu", "--tokens", "32", "--output", str(output), *arguments])
    return code, json.loads(output.read_text(encoding="utf-8")) if output.exists() else None


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the results go: a file of an earlier run, which passed."""
    path = tmp_path / "results.json"
    path.write_text('{"judged": true, "passed": true}')
    return path


def test_a_model_that_passes_ends_with_0_and_repeats(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results = gate(output)
    said = capsys.readouterr().out
    assert code == 0
    assert "passed int8, head, group 128" in said
    assert "not passed" not in said
    assert (results["schema"], results["chapter"]) == (1, "quality_gate_tiny_head")
    assert (results["judged"], results["passed"], results["complaints"]) == (True, True, [])
    assert {"commit", "torch", "date"} <= results["provenance"].keys()
    assert results["texts"] | {"digest": ""} == {
        "file": HELD_OUT_STORIES.name, "digest": "", "count": 24, "context": 16, "tokens": 32,
    }  # fmt: skip
    assert results["rounding"].keys() >= FIGURES
    assert results["quantized"].keys() >= FIGURES
    assert [part.keys() for part in results["quantized"]["by_text"]] == [FIGURES] * 24
    assert len(results["quantized"]["flipped"]) == results["quantized"]["flips"]
    assert results["variants"] == []
    again = gate(output)[1]
    assert results | {"provenance": None} == again | {"provenance": None}


def test_a_model_that_fails_ends_with_1_and_says_why(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results = gate(output, "--layers", "all", "--bits", "4")
    said = capsys.readouterr().out
    assert code == 1
    assert "not passed int4, all layers, group 128: " in said
    assert (results["judged"], results["passed"]) == (True, False)
    assert len(results["complaints"]) == 2
    assert results["chapter"] == "quality_gate_tiny_all_int4"
    flipped = results["quantized"]["flipped"]
    assert len(flipped) == results["quantized"]["flips"] > 0
    assert flipped[0].keys() == {"text", "place", "expected", "chosen", "margin"}
    assert isinstance(flipped[0]["expected"], str)


def test_variants_stand_beside_the_judged_one(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, results = gate(output, "--variants", "--group", "channel")
    said = capsys.readouterr().out
    assert code == 0
    assert results["quantized"]["group"] is None
    assert [one["group"] for one in results["variants"]] == [None, 128, 64, 32]
    assert results["variants"][0]["logit_error"] == results["quantized"]["logit_error"]
    for one in results["variants"]:
        assert one["bytes"] < one["bf16_bytes"]
        assert one["name"] in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "no/such/model"], "no/such/model does not exist"),
        (["--model", ""], "the model is an empty string"),
        (["--prompts", "missing.txt"], "missing.txt cannot be read: No such file"),
        (["--prompts", str(PASSAGES)], "worse than blind guessing"),
        (["--tokens", "5000"], "to judge make 5016, so lengthen it"),
        (["--device", "cuda:99"], "device is 'cuda:99'"),
        (["--device", "tpu"], "device is 'tpu'"),
    ],
)
def test_what_cannot_be_judged_ends_with_2_and_leaves_no_pass_behind(
    arguments: list[str], sentence: str, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, results = gate(output, *arguments)
    said = capsys.readouterr().err
    assert code == 2
    assert sentence in said
    assert said.startswith("make quality-gate: could not be judged: ")
    assert (results["judged"], results["passed"]) == (False, False)
    assert sentence in results["reason"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "31"],
        ["--tokens", "many"],
        ["--layers", "some"],
        ["--bits", "16"],
        ["--group", "48"],
        ["--group"],
        ["--agreement", "0.5"],  # the bar is no option
    ],
    ids=" ".join,
)
def test_an_option_that_is_none_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_broken_checkpoint_cannot_be_judged(tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY_DIR, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    prompts = ["--prompts", str(HELD_OUT_STORIES)]
    code, results = gate(output, "--model", str(model), *prompts)
    assert (code, results["passed"]) == (2, False)
    assert "is not a whole safetensors file" in capsys.readouterr().err
    (model / "tokenizer.json").unlink()
    assert gate(output, "--model", str(model), *prompts)[0] == 2
    (model / "config.json").unlink()
    assert gate(output, "--model", str(model), *prompts)[0] == 2


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (torch.OutOfMemoryError("full"), 2, "memory ran out"),
        (MemoryError(), 2, "memory ran out"),
        (RuntimeError("a kernel failed"), 2, "this should not have happened: RuntimeError: a kernel failed"),
        (OSError(28, "No space left on device", "x.json"), 2, "x.json cannot be used: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
def test_whatever_happens_it_is_not_a_pass(
    error: BaseException, code: int, sentence: str, output: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.delenv("QWEN_DEBUG", raising=False)
    monkeypatch.setattr(command, "judge", fail)
    found, results = gate(output)
    assert found == code
    assert sentence in capsys.readouterr().err
    assert results is None or results["passed"] is False


def test_a_file_that_cannot_be_written_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate_into(tmp_path) == 2
    assert "cannot be" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert gate_into(tmp_path / "file" / "results.json") == 2


def gate_into(output: Path) -> int:
    return command.main(["--device", "cpu", "--output", str(output)])


def test_the_reference_is_never_rounded_to_tf32(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(*arguments: object) -> None:
        seen.append(torch.get_float32_matmul_precision())
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "judge", look)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        gate(output)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]
