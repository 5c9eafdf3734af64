"""What this chapter's tests share: a model that never stops, a hub on this machine, and the command as a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from chapters.ch11_generator.fake_hub import FakeHub
from chapters.ch11_generator.generator import Generator
from qwen3_ref.config import Qwen3Config
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.model import Qwen3
from qwen3_ref.weights import save_pretrained

pytest.register_assert_rewrite("chapters.ch11_generator.sampling_checks")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and none of the variables that a user may have set."""
    for name in ("QWEN_PROMPT", "QWEN_DEBUG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny() -> Generator:
    return Generator("tiny", device="cpu")


@pytest.fixture(scope="session")
def endless_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights and 128 positions, with the tiny model's tokenizer and no stop token."""
    directory = tmp_path_factory.mktemp("endless")
    vocab = Qwen3Config.from_pretrained(TINY_DIR).vocab_size
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
    )
    save_pretrained(directory, Qwen3.random(config, seed=1, dtype=torch.bfloat16))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TINY_DIR / name, directory / name)
    return directory


@pytest.fixture
def long_dir(endless_dir: Path, tmp_path: Path) -> Path:
    """As `endless_dir`, with room for so many tokens that a generation takes minutes."""
    directory = tmp_path / "long"
    shutil.copytree(endless_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1_000_000}))
    return directory


@pytest.fixture
def endless(endless_dir: Path) -> Generator:
    return Generator(endless_dir, device="cpu")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    yield server
    server.close()


Command = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Starts the command as users do. No hub answers, and the cache is empty, unless `environment` says otherwise."""
    started: list[subprocess.Popen[bytes]] = []
    # A suite started in the background ignores Ctrl-C, and its children would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*arguments: str | bytes, environment: dict[str, str] | None = None, **options: object) -> object:
        variables = {
            # Without PYTHONUNBUFFERED: a stream that buffers fails later, and more than once.
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "QWEN_", "PYTHONUNBUFFERED"))},
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels"))),
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "CUDA_VISIBLE_DEVICES": "",
            **(environment or {}),
        }
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, "-m", "chapters.ch11_generator", *arguments],
            env=variables,
            cwd=ROOT,
            **pipes,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start  # type: ignore[misc]
    signal.signal(signal.SIGINT, before)
    for process in started:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
