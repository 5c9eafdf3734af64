"""How many processes run the tests, and that they and their users get what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from qwen_cuda.building import ninja_run
from qwen_cuda.testing import workers

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this one a machine of so many cores and bytes of memory, with or without a GPU."""

    def set_up(cores: int, memory: int = 64 * GIB, gpu: bool = False) -> None:
        monkeypatch.setattr(ninja_run, "jobs", lambda: cores)
        monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory // 4096}.__getitem__)
        monkeypatch.setattr(Path, "exists", lambda path: gpu)

    return set_up


def config(capture: str = "fd", trace: bool = False, **more: Any) -> pytest.Config:
    return cast(pytest.Config, SimpleNamespace(option=SimpleNamespace(capture=capture, trace=trace), **more))


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [(1, 8, 0), (2, 8, 2), (4, 16, 4), (16, 64, 8), (16, 8, 4), (8, 3, 0)],
    ids=str,
)
def test_each_core_has_a_process_as_far_as_the_memory_goes(
    machine: Any, cores: int, memory: int, expected: int
) -> None:
    machine(cores, memory * GIB)
    assert workers.count(config()) == expected


def test_tests_run_one_by_one_where_they_talk_or_share_a_gpu(machine: Any) -> None:
    machine(4)
    assert workers.count(config(capture="no")) == 0
    assert workers.count(config(trace=True)) == 0
    machine(4, gpu=True)
    assert workers.count(config()) == 0


def test_processes_share_the_threads_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    workers.share_cores(config())
    assert asked == []
    for count in (4, 8):
        workers.share_cores(config(workerinput={"workercount": count}))
    assert asked == [1, 1]
    workers.share_cores(config(workerinput={"workercount": 2}))
    assert asked[-1] == 3


@pytest.mark.skipif(workers.count(config()) == 0, reason="this machine has a single core, little memory or a GPU")
@pytest.mark.parametrize(("options", "processes"), [([], {"gw0", "gw1"}), (["-s"], {"master"}), (["-n0"], {"master"})])
def test_a_run_of_several_files_uses_the_processes(tmp_path: Path, options: list[str], processes: set[str]) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    (tmp_path / "conftest.py").write_bytes(CONFTEST.read_bytes())
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(
            "import os, pathlib\n"
            f"def test_{name}():\n"
            "    worker = os.environ.get('PYTEST_XDIST_WORKER', 'master')\n"
            "    pathlib.Path(worker).touch()\n"
        )
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadfile", *options]
    environment = {**os.environ, "MAX_JOBS": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert {path.name for path in tmp_path.iterdir() if path.name in ("gw0", "gw1", "master")} == processes
