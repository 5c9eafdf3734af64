"""What goes wrong in a generation: arguments, devices, checkpoints and memory, each as one sentence of one family."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from chapters.ch11_generator import (
    ArgumentError,
    DeviceError,
    Generator,
    GeneratorError,
    ModelError,
    OutOfMemoryError,
    SamplingParams,
)
from chapters.ch11_generator.default_sampling import default_sampling
from chapters.ch11_generator.errors import translated
from chapters.ch11_generator.placement import choose_device, choose_dtype, limit_threads
from qwen3_ref.hub import TINY_DIR

GREEDY = SamplingParams()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "a\udcff"}, "not valid text at character 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"stop": [""]}, "strings that are not empty"),
        ({"stop": "word"}, "a sequence of strings"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(endless: Generator, options: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        endless.generate(**{"prompt": "Once", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"device": "cuda:"}, "device is 'cuda:'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"backend": "fast"}, "backend is 'fast'; it must be auto or one of reference"),
    ],
)
def test_names_of_nothing_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Generator("tiny", **options)  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(DeviceError, match="device is 'cuda'"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="only 2 GPUs, cuda:0 to cuda:1"):
        choose_device("cuda:2")


def test_a_gpu_before_ampere_runs_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("auto", gpu) == torch.float16
    with pytest.raises(DeviceError, match="Tesla T4 has no bfloat16"):
        choose_dtype("bfloat16", gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_dtype("auto", gpu) == torch.bfloat16
    assert choose_dtype("auto", torch.device("cpu")) == torch.bfloat16


def test_only_small_models_get_one_thread_and_the_user_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limit_threads(1 << 30)
    assert counts == []
    limit_threads(1 << 20)
    assert counts == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    limit_threads(1 << 20)
    assert counts == [1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_runs_on_a_cpu(endless_dir: Path, dtype: str) -> None:
    generator = Generator(endless_dir, "cpu", dtype)
    assert generator.generate("Once upon a time", 5, GREEDY).figures.dtype == dtype
    assert generator.weight_bytes == sum(p.nbytes for p in generator._engine.model.parameters())  # type: ignore


@pytest.mark.parametrize(
    ("file", "contents", "words"),
    [
        ("config.json", None, "config.json does not exist"),
        ("config.json", b"{", "cannot be read as JSON"),
        ("config.json", b'{"model_type": "llama"}', "model_type is 'llama'"),
        ("tokenizer.json", None, "tokenizer.json does not exist"),
        ("tokenizer.json", b"{}", "is not a tokenizer file"),
        ("model.safetensors", None, "holds neither model.safetensors nor"),
        ("model.safetensors", b"\xff" * 64, "not a whole safetensors file"),
        ("generation_config.json", b'{"do_sample": true, "top_p": 7}', "top_p is 7.0; it must be"),
        ("generation_config.json", b"[]", "generation_config.json"),
    ],
)
def test_a_broken_checkpoint_is_one_sentence(
    endless_dir: Path, tmp_path: Path, file: str, contents: bytes | None, words: str
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(endless_dir, directory)
    if contents is None:
        (directory / file).unlink()
    else:
        (directory / file).write_bytes(contents)
    with pytest.raises(ModelError, match=words) as caught:
        Generator(directory, "cpu")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert not str(caught.value).endswith("..")


def test_weights_cut_short_are_refused(endless_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(endless_dir, directory)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelError, match="may be cut short"):
        Generator(directory, "cpu")


def test_weights_that_are_not_numbers_end_in_a_sentence(endless: Generator) -> None:
    endless.generate("Once", 1, GREEDY)
    with torch.no_grad():
        endless._engine.model.model.norm.weight.fill_(math.nan)  # type: ignore
    with pytest.raises(ModelError, match="the largest logit is nan"):
        endless.generate("Once", 1, GREEDY)


def test_a_tokenizer_of_another_model_is_refused(endless_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(endless_dir, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    extra = {**tokenizer["added_tokens"][-1], "id": tokenizer["added_tokens"][-1]["id"] + 1, "content": "<extra>"}
    tokenizer["added_tokens"].append(extra)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="they do not belong together"):
        Generator(directory, "cpu")


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [
        (MemoryError(), OutOfMemoryError, "memory ran out while testing; rest"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), OutOfMemoryError, "memory ran out while testing"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), OutOfMemoryError, "memory ran out"),
        (NotImplementedError("'x' not implemented for 'Half'"), DeviceError, "lacks an operation"),
        (ValueError("a is 1; it must be 2."), ModelError, "^a is 1; it must be 2.$"),
        (PermissionError(13, "Permission denied", "f"), ModelError, "testing failed: .*Permission denied"),
        (RuntimeError("line one\nline two"), GeneratorError, "^testing failed: line one.$"),
        (ArgumentError("as it is"), ArgumentError, "^as it is$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_pytorch_raises_becomes_this_family(raised: Exception, expected: type[GeneratorError], words: str) -> None:
    with pytest.raises(expected, match=words), translated("testing", "rest"):
        raise raised


def test_default_sampling_is_read_as_hugging_face_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert default_sampling(path) == GREEDY
    path.write_text('{"temperature": 0.6, "top_k": 20}')
    assert default_sampling(path) == GREEDY  # no do_sample
    path.write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}')
    assert default_sampling(path) == SamplingParams(0.6, 20, 0.95, repetition_penalty=1.1)
    path.write_text('{"do_sample": true, "temperature": null}')
    assert default_sampling(path) == SamplingParams(1.0, 50)  # what transformers' generate fills in
    path.write_text('{"do_sample": true, "top_k": 0}')
    assert default_sampling(path) == SamplingParams(1.0, 0)
    assert not default_sampling(TINY_DIR / "generation_config.json").greedy
