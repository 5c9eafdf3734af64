"""The Makefile: which Python runs a command, and what is set up before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.makefile_project import MAKE, STUB, Project

pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make here: install it to test the Makefile")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_variables_of_the_shell_are_not_taken_for_options(project: Project) -> None:
    done = project.make(
        "generate", f"PYTHON={project.stub}", env={"PROMPT": "%n@%m", "MODEL": "x", "ARGS": "--y", "N": "1"}
    )
    assert done.returncode == 0
    assert project.calls() == [["-m", "chapters.ch11_generator"]]


def test_python_may_come_from_the_environment(project: Project) -> None:
    assert project.make("generate", env={"PYTHON": str(project.stub)}).returncode == 0
    assert project.calls() == [["-m", "chapters.ch11_generator"]]


def test_the_given_python_is_asked_for_modules_first_and_keeps_the_callers_path(project: Project) -> None:
    assert project.make("test", f"PYTHON={project.stub}", env={"PYTHONPATH": "/theirs"}).returncode == 0
    (check, _), (call, env) = project.records()
    assert check == [".ci/environment.py", "check", "torch", "transformers", "hypothesis", "pytest"]
    assert call == ["-m", "pytest"]
    assert env["PYTHONPATH"] == f"{project.root}:{project.root}/kernels:/theirs"


def test_a_python_that_is_none_gives_one_sentence(project: Project) -> None:
    done = project.make("generate", "PYTHON=/nowhere/python")
    assert done.returncode == 2
    assert "PYTHON must be an interpreter of Python 3.11 or newer, and this is none: /nowhere/python" in done.stderr


def test_a_machine_without_python_gives_one_sentence(project: Project, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    done = project.make("generate", "SHELL=/bin/sh", env={"PATH": str(tools)})
    assert done.returncode == 2
    assert "Python 3.11 or newer is needed" in done.stderr


@pytest.fixture
def managed(project: Project) -> Callable[[int], None]:
    """Gives the project a set-up that makes the stub .venv/bin/python, records itself, and ends with a given code."""

    def install(code: int) -> None:
        lines = [
            "import json, os, shutil, sys",
            "open(os.environ['CALLS'], 'a').write(json.dumps([['set-up', *sys.argv[1:]], {}]) + '\\n')",
            "os.makedirs('.venv/bin', exist_ok=True)",
            "shutil.copy('a folder/python', '.venv/bin/python')",
            f"sys.exit({code})",
        ]
        project.script(project.root / ".ci" / "environment.py", "\n".join(lines))

    return install


LEVELS = {
    "setup": "full",
    "generate": "base",
    "chat": "base",
    "test": "full",
    "lab": "full",
    "docs": "full",
    "lint": "full",
}


@pytest.mark.parametrize(("command", "level"), LEVELS.items())
def test_each_command_sets_itself_up_first(
    project: Project, managed: Callable[[int], None], command: str, level: str
) -> None:
    managed(0)
    done = project.make(command, env={"PYTHONPATH": "/theirs"})
    assert done.returncode == 0, done.stderr
    (first, _), *rest = project.records()
    assert first == ["set-up", level]
    assert bool(rest) == (command != "setup")
    assert all(env["PYTHONPATH"] == f"{project.root}:{project.root}/kernels" for _, env in rest)


@pytest.mark.parametrize("command", ["generate", "test", "docs", "lint"])
def test_nothing_runs_when_the_set_up_fails(project: Project, managed: Callable[[int], None], command: str) -> None:
    managed(1)
    assert project.make(command).returncode == 2
    assert [call[0] for call in project.calls()] == ["set-up"]


def test_doctor_runs_on_a_bare_python_when_the_set_up_fails(project: Project) -> None:
    failing = STUB + "sys.exit(sys.argv[1] == '.ci/environment.py')\n"
    project.script(project.root / "path" / "python3", failing)
    done = project.make("doctor", "ARGS=--json", env={"PATH": f"{project.root}/path:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    assert project.calls() == [[".ci/environment.py", "full"], ["-m", "qwen_cuda.doctor", "--json"]]
