"""`.venv`: made once, remade when what it was made from changes, never half-made, never by two at once."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "environment.py"
PYPROJECT = '[project]\nname = "x"\ndependencies = ["torch"]\n\n[tool.ruff]\nline-length = 120\n'


def load() -> ModuleType:
    """.ci/environment.py as a module."""
    spec = importlib.util.spec_from_file_location("environment", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


environment = load()


class Pip:
    """Writes down what pip is asked for, and ends as told."""

    def __init__(self, code: int = 0, says: str = "", raises: BaseException | None = None) -> None:
        self.code, self.says, self.raises = code, says, raises
        self.installed: list[str] = []

    def __call__(self, python: Path, arguments: list[str], log: TextIO) -> int:
        assert python.exists()
        assert not (python.parents[1] / "ready.json").exists()  # not ready while pip is at work
        self.installed.append(arguments[-1])
        log.write(self.says)
        if self.raises:
            raise self.raises
        return self.code


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout; an environment is a folder with a link to this interpreter."""

    def create(env: Path, log_path: Path) -> None:
        shutil.rmtree(env, ignore_errors=True)
        (env / "bin").mkdir(parents=True)
        log_path.touch()
        (env / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environment, "create", create)
    monkeypatch.setattr(environment, "wants_cpu_wheel", lambda root, python: False)
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "constraints.txt").write_text("# pins\ntorch==2.13.0\n")
    return folder


def ensure(root: Path, level: str, pip: Pip | None = None) -> tuple[list[str], list[str]]:
    """What pip was asked to install, and what the reader was told."""
    pip = pip or Pip()
    told: list[str] = []
    environment.ensure(root, level, pip, told.append)
    return pip.installed, told


def test_a_ready_environment_is_left_alone(root: Path) -> None:
    installed, told = ensure(root, "base")
    assert installed == [str(root)]
    assert told[0].startswith("setting up .venv with Python 3.")
    assert told[1].startswith(".venv is ready")
    assert ensure(root, "base") == ([], [])


def test_the_extras_are_added_to_a_base_and_never_taken_away(root: Path) -> None:
    ensure(root, "base")
    (root / ".venv" / "mark").touch()
    installed, told = ensure(root, "full")
    assert installed == [f"{root}[test,docs,lint,lab]"]
    assert told[0].startswith("adding the tools")
    assert (root / ".venv" / "mark").exists()
    assert ensure(root, "base") == ([], [])
    assert ensure(root, "full") == ([], [])


def edit_record(root: Path, key: str, value: str) -> None:
    """Changes one entry of ready.json."""
    file = root / ".venv" / "ready.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))


STALE = {
    "constraints.txt changed": lambda root: (root / "constraints.txt").write_text("torch==2.14.0\n"),
    "dependencies in pyproject.toml changed": lambda root: (root / "pyproject.toml").write_text(
        PYPROJECT.replace('"torch"', '"torch", "rich"')
    ),
    "its Python was upgraded": lambda root: edit_record(root, "python", "3.11.0 (main)"),
    "the checkout was moved or copied": lambda root: edit_record(root, "root", "/elsewhere"),
    "last set-up did not finish": lambda root: (root / ".venv" / "ready.json").write_text('{"level": "fu'),
    "last set-up did not finish ": lambda root: (root / ".venv" / "ready.json").unlink(),
    "last set-up did not finish  ": lambda root: (root / ".venv" / "bin" / "python").unlink(),
}


@pytest.mark.parametrize("reason", STALE)
def test_a_stale_environment_is_remade_from_nothing(root: Path, reason: str) -> None:
    ensure(root, "full")
    (root / ".venv" / "mark").touch()
    STALE[reason](root)
    installed, told = ensure(root, "base")
    assert installed == [str(root)]
    assert reason.strip() in told[0]
    assert not (root / ".venv" / "mark").exists()
    assert ensure(root, "base") == ([], [])


def test_a_checkout_that_was_moved_is_noticed(root: Path) -> None:
    ensure(root, "base")
    moved = root.rename(root.with_name("moved"))
    assert environment.why_stale(moved, "base") == "the checkout was moved or copied"


def test_the_settings_of_a_linter_cost_no_reinstall(root: Path) -> None:
    ensure(root, "base")
    (root / "pyproject.toml").write_text(PYPROJECT.replace("120", "100"))
    assert ensure(root, "base") == ([], [])


@pytest.mark.parametrize("level_before", [None, "base"])
@pytest.mark.parametrize("pip", [Pip(raises=KeyboardInterrupt()), Pip(code=1)], ids=["interrupted", "failed"])
def test_an_environment_whose_set_up_broke_off_is_not_ready(root: Path, pip: Pip, level_before: str | None) -> None:
    if level_before:
        ensure(root, level_before)
    with pytest.raises((KeyboardInterrupt, environment.SetupError)):
        ensure(root, "full", pip)
    assert environment.why_stale(root, "base") == "its last set-up did not finish"
    assert ensure(root, "full")[0] == [f"{root}[test,docs,lint,lab]"]


def test_an_environment_that_somebody_else_made_is_not_touched(root: Path) -> None:
    (root / ".venv").mkdir()
    (root / ".venv" / "theirs").touch()
    with pytest.raises(environment.SetupError, match="was not made by make"):
        ensure(root, "base")
    assert (root / ".venv" / "theirs").exists()


def test_two_at_once_make_one_environment(root: Path) -> None:
    waiting = threading.Event()
    told: list[str] = []
    second = threading.Thread(target=lambda: environment.ensure(root, "base", slow, hear))

    class Slow(Pip):
        def __call__(self, python: Path, arguments: list[str], log: TextIO) -> int:
            second.start()
            assert waiting.wait(30)
            return super().__call__(python, arguments, log)

    def hear(text: str) -> None:
        told.append(text)
        waiting.set()

    slow = Slow()
    ensure(root, "base", slow)
    second.join(30)
    assert slow.installed == [str(root)]
    assert told == ["another make is setting up .venv; waiting for it ..."]


def test_the_lock_of_a_killed_process_is_free(root: Path) -> None:
    code = (
        "import sys, time, pathlib; sys.path.insert(0, sys.argv[1]); import environment\n"
        "with environment.only_one(pathlib.Path(sys.argv[2]), print): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(SCRIPT.parent), str(root / "pyproject.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
    assert ensure(root, "base")[1][0].startswith("setting up")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("NewConnectionError: Failed to establish a new connection: [Errno -2]", "pip reached no package index"),
        ("Could not find a version ...\nTemporary failure in name resolution", "pip reached no package index"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: No matching distribution found for setuptools (from versions: none)", "pip reached no package index"),
        ("x\nERROR: No matching distribution found for torch==2.13.0\n", "pip says: No matching distribution found"),
        ("", "its output is in"),
    ],
)
def test_a_failed_pip_gives_one_sentence(root: Path, said: str, sentence: str) -> None:
    with pytest.raises(environment.SetupError, match=sentence) as caught:
        ensure(root, "base", Pip(code=1, says=said))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("platform", "smi", "config", "wanted"),
    [
        ("linux", None, "", True),
        ("linux", "/usr/bin/nvidia-smi", "", False),
        ("darwin", None, "", False),
        ("linux", None, "global.index-url='https://mirror.example/simple'", False),
    ],
)
def test_the_small_torch_is_taken_on_linux_without_a_gpu_unless_pip_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, smi: str | None, config: str, wanted: bool
) -> None:
    if Path("/dev/nvidiactl").exists() and wanted:
        pytest.skip("this machine has an NVIDIA GPU")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "{config}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(environment.sys, "platform", platform)
    monkeypatch.setattr(environment.shutil, "which", lambda name: smi)
    assert environment.wants_cpu_wheel(tmp_path, python) is wanted


def test_the_small_torch_has_the_version_of_the_pins() -> None:
    assert environment.torch_pin((ROOT / "constraints.txt").read_text()) == "torch==2.13.0"


def test_a_given_interpreter_is_told_which_modules_it_lacks() -> None:
    command = [sys.executable, str(SCRIPT), "check", "json", "no_such_module", "nor_this"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"make: {sys.executable} lacks no_such_module, nor_this: ")
    assert done.stderr.count("\n") == 1


def test_an_environment_that_cannot_be_written_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(root: Path, level: str) -> None:
        raise PermissionError(13, "Permission denied", str(root / ".venv" / "ready.json"))

    monkeypatch.setattr(environment, "ensure", refuse)
    assert environment.main(["base"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("make: ")
    assert ".venv could not be made: [Errno 13] Permission denied: " in said
    assert said.count("\n") == 1


@pytest.mark.skipif(bool(environment.missing(["ensurepip"])), reason="this Python cannot make virtual environments")
def test_the_real_set_up_says_in_one_sentence_that_there_is_no_network(tmp_path: Path) -> None:
    shutil.copytree(SCRIPT.parent, tmp_path / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    closed = "http://127.0.0.1:9/simple"
    env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": closed, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    command = [sys.executable, str(tmp_path / ".ci" / "environment.py"), "base"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert "make: pip reached no package index: connect this machine to the network once" in done.stderr
    assert "Traceback" not in done.stderr
    assert environment.why_stale(tmp_path, "base") == "its last set-up did not finish"
