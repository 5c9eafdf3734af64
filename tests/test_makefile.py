"""The Makefile: which command runs which program, with which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.makefile_project import MAKE, Project

COMMANDS = [
    *(
        "setup",
        "generate",
        "chat",
        "drop-in",
        "quality-gate",
        "cache-gate",
        "bench-e2e",
        "test",
        "test-chapter",
        "bench-chapter",
        "notebook-chapter",
        "exercise",
        "lab",
    ),
    *("docs", "docs-serve", "doctor", "lint", "clean"),
]

pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make here: install it to test the Makefile")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_make_alone_lists_every_command_in_one_line_each(project: Project) -> None:
    done = project.make()
    assert done.returncode == 0
    for command in COMMANDS:
        lines = re.findall(rf"^  make {command}(?: N)? +\w.*$", done.stdout, re.MULTILINE)
        assert len(lines) == 1, command
        assert len(lines[0]) < 110


@pytest.mark.parametrize("words", [["1"], ["01"], ["ch01"], ["ch01_math_reference"], ["chapters/ch01_math_reference/"],
                                   ["N=1"], ["N=01"], ["N=ch01_math_reference"]], ids=" ".join)  # fmt: skip
def test_a_chapter_is_named_by_number_or_by_name(project: Project, words: list[str]) -> None:
    (project.root / "1").touch()  # a file of that name must not matter
    assert project.run("test-chapter", *words) == [["-m", "pytest", "chapters/ch01_math_reference"]]


def test_chapter_1_is_not_chapter_11(project: Project) -> None:
    assert project.run("test-chapter", "11") == [["-m", "pytest", "chapters/ch11_generator"]]


@pytest.mark.parametrize(
    "words", [[], ["7"], ["0"], ["math"], ["N="], ["N=%"], ["N=*"], ["N=ch"], ["N='"], ["1", "2"]], ids=" ".join
)
@pytest.mark.parametrize("command", ["test-chapter", "bench-chapter", "notebook-chapter", "exercise"])
def test_an_unknown_chapter_is_a_usage_error_that_lists_the_chapters(
    project: Project, command: str, words: list[str]
) -> None:
    done = project.make(command, *words, f"PYTHON={project.stub}")
    assert done.returncode == 2
    assert f"usage: make {command} N" in done.stderr
    assert "chapters: ch01_math_reference ch02_rms_norm ch11_generator" in done.stderr
    assert project.records() == []  # nothing ran, and no environment was set up for it


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("bench-chapter", ["-m", "chapters.ch01_math_reference.benchmark"]),
        ("notebook-chapter", ["docs/hooks/notebooks.py", "run", "ch01_math_reference"]),
    ],
)
def test_commands_on_a_chapter(project: Project, command: str, call: list[str]) -> None:
    assert project.run(command, "1") == [call]


@pytest.mark.parametrize(("command", "file"), [("bench-chapter", "benchmark.py"), ("notebook-chapter", "notebook.py")])
def test_a_chapter_without_the_file_says_so(project: Project, command: str, file: str) -> None:
    done = project.make(command, "11", f"PYTHON={project.stub}")
    assert done.returncode == 2
    assert f"make {command}: chapters/ch11_generator has no {file}." in done.stderr
    assert project.records() == []


def test_exercise_runs_the_tests_of_the_chapter_on_the_learners_file(project: Project) -> None:
    assert project.run("exercise", "2") == [["-m", "pytest", "-x", "chapters/ch02_rms_norm"]]
    assert project.records()[-1][1]["QWEN_EXERCISE"] == "ch02_rms_norm"


def test_chapter_1_has_no_exercise(project: Project) -> None:
    done = project.make("exercise", "1", f"PYTHON={project.stub}")
    assert done.returncode == 2
    assert "chapter 1 has no exercise; they begin with chapter 2." in done.stderr
    assert project.records() == []


def test_two_commands_in_one_line_are_both_run(project: Project) -> None:
    assert project.run("test-chapter", "chat", "N=1") == [
        ["-m", "pytest", "chapters/ch01_math_reference"],
        ["-m", "chapters.ch11_generator", "--interactive"],
    ]


def test_generate_without_options_passes_none(project: Project) -> None:
    assert project.run("generate") == [["-m", "chapters.ch11_generator"]]


def test_options_reach_the_program(project: Project) -> None:
    words = ["PROMPT=Once upon", "MODEL=a b/c", "ARGS=--seed 3 --stop 'The end'"]
    assert project.run("generate", *words) == [
        ["-m", "chapters.ch11_generator", "--prompt=Once upon", "--model=a b/c", "--seed", "3", "--stop", "The end"]
    ]
    assert project.run("chat", "PROMPT=Hello!", "ARGS=--seed 3") == [
        ["-m", "chapters.ch11_generator", "--interactive", "--prompt=Hello!", "--seed", "3"]
    ]


def test_drop_in_takes_a_model_and_options(project: Project) -> None:
    call = ["-m", "chapters.ch03_swiglu.drop_in"]
    assert project.run("drop-in") == [call]
    assert project.run("drop-in", "MODEL=a b/c", "ARGS=--bench --rounds 3") == [
        [*call, "--model=a b/c", "--bench", "--rounds", "3"]
    ]


def test_quality_gate_takes_a_model_and_options(project: Project) -> None:
    call = ["-m", "chapters.ch08_w8a16_head.quality_gate"]
    assert project.run("quality-gate") == [call]
    assert project.run("quality-gate", "MODEL=a b/c", "ARGS=--layers all --prompts 'my texts.json'") == [
        [*call, "--model=a b/c", "--layers", "all", "--prompts", "my texts.json"]
    ]


def test_cache_gate_takes_a_model_and_options(project: Project) -> None:
    call = ["-m", "chapters.ch10_quantized_kv.cache_gate"]
    assert project.run("cache-gate") == [call]
    assert project.run("cache-gate", "MODEL=a b/c", "ARGS=--kv-cache nvfp4 --prompts 'my texts.json'") == [
        [*call, "--model=a b/c", "--kv-cache", "nvfp4", "--prompts", "my texts.json"]
    ]


def test_the_end_to_end_benchmark_takes_a_model_and_options(project: Project) -> None:
    call = ["-m", "chapters.ch11_generator.benchmark"]
    assert project.run("bench-e2e") == [call]
    assert project.run("bench-e2e", "MODEL=random-0.6b", "ARGS=--contexts 128 1024 --only torch_compile") == [
        [*call, "--model=random-0.6b", "--contexts", "128", "1024", "--only", "torch_compile"]
    ]


# Without blanks in front: make drops those that follow the =.
PROMPTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40).map(str.lstrip)


@given(prompt=PROMPTS)
@example(prompt='It\'s $5, "quoted", `ticked` and \\ slashed; $(HOME) $HOME ${HOME} $$ # no comment & more | > x')
@example(prompt="$(shell touch made)")
@example(prompt="two\nlines")
@example(prompt="-n")
@example(prompt="")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_prompt_arrives_as_it_was_typed(project: Project, prompt: str) -> None:
    assert project.run("generate", f"PROMPT={prompt}") == [["-m", "chapters.ch11_generator", f"--prompt={prompt}"]]
    assert not (project.root / "made").exists()


def test_files_of_tests_run_side_by_side_where_xdist_is_and_args_come_last(project: Project) -> None:
    assert project.run("test", "ARGS=-n 0 -k 'a or b'") == [["-m", "pytest", "-n", "0", "-k", "a or b"]]
    done = project.make("test", "ARGS=-n 0 -k 'a or b'", f"PYTHON={project.stub}", env={"HAS_XDIST": "1"})
    assert done.returncode == 0
    assert project.calls() == [["-m", "pytest", *"--numprocesses auto --dist loadfile -n 0 -k".split(), "a or b"]]


def test_docs_builds_strictly_and_never_quietly(project: Project) -> None:
    assert project.run("docs") == [["docs/hooks/notebooks.py", "sync"], ["-m", "mkdocs", "build", "--strict"]]


def test_lint_formats_native_code_where_there_is_any(project: Project) -> None:
    without = project.run("lint")
    assert without == [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "."], ["-m", "mypy"]]
    kernel = project.root / "kernels" / "cuda" / "rms_norm.cu"
    kernel.parent.mkdir()
    kernel.touch()
    *_, last = project.run("lint")
    assert last[2:] == ["--dry-run", "--Werror", "kernels/cuda/rms_norm.cu"]


def test_clean_removes_what_was_built_and_keeps_the_sources_and_the_environment(project: Project) -> None:
    kept = [
        project.root / ".venv" / "lib" / "__pycache__" / "x.pyc",
        project.root / "chapters" / "ch11_generator" / "a.py",
    ]
    gone = [project.root / "build" / "site" / "index.html", project.root / "chapters" / "__pycache__" / "x.pyc"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert project.make("clean").returncode == 0
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)
