"""The house rules that can be checked: who imports whom, how long a file is, what may not be tracked."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"chapters", "docs", "kernels", "qwen3_ref", "tests", ".ci", ".github"}
WRITTEN = {"__pycache__", ".ipynb_checkpoints"}  # by the commands, inside those folders
LONGEST = {".py": 300, ".cu": 250, ".cuh": 250}
BUDGET_BYTES = 30 * 2**20
VAGUE = {"common", "helpers", "misc", "util", "utils"}


def tracked() -> list[Path]:
    """The files that are, or would be, in git; without git, all but what the commands write."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        files = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = []
    if not files:
        tops = [ROOT / name for name in (*FOLDERS, *(path.name for path in ROOT.iterdir() if path.is_file()))]
        files = [path for top in tops for path in (top, *top.rglob("*")) if not WRITTEN & set(path.parts)]
    return sorted(path for path in files if path.is_file())


FILES = tracked()
SOURCES = [path for path in FILES if path.suffix == ".py"]


def module_name(path: Path) -> str:
    """The name under which a file is imported; kernels/ is on the path and no package."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imported(path: Path) -> Iterator[str]:
    """The names that a file imports, anywhere in it; `from a import b` gives a.b; relative imports are resolved."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [] if not node.level else package[: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def ours(name: str) -> str | None:
    """The module of this repository that importing `name` loads, if any."""
    while name:
        if name in MODULES:
            return name
        name = name.rpartition(".")[0]
    return None


def room(name: str) -> tuple[int, int]:
    """Where a module stands in the order of imports: it may import from rooms that are not above its own."""
    top, *rest = name.split(".")
    if top == "chapters" and rest:
        return 2, int(rest[0][2:4])
    return {"qwen3_ref": 0, "qwen_cuda": 1, "chapters": 2}.get(top, 3), 0


GRAPH = {name: {module for item in imported(path) if (module := ours(item))} for name, path in MODULES.items()}


@pytest.mark.parametrize("name", GRAPH)
def test_imports_point_downwards(name: str) -> None:
    upwards = sorted(module for module in GRAPH[name] if room(module) > room(name))
    assert not upwards, f"{name} stands below what it imports: {upwards}"


def test_the_rule_of_directions_can_fail() -> None:
    order = ["qwen3_ref.model", "qwen_cuda.ops", "chapters.ch01_math.a", "chapters.ch02_rms.b", "tests.test_x"]
    assert [room(name) for name in order] == sorted({room(name) for name in order})


def test_no_modules_import_each_other() -> None:
    clean: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle of imports: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name not in clean:
            for module in GRAPH[name] - {name}:
                visit(module, (*trail, name))
            clean.add(name)

    for name in GRAPH:
        visit(name, ())


def test_the_package_called_kernels_is_hugging_faces() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    for path in SOURCES:
        assert not any(name.split(".")[0] == "kernels" for name in imported(path)), f"{path} imports kernels"


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [path for path in FILES if path.stem.lower() in VAGUE and "vendor" not in path.parts] == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in SOURCES if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def is_code(path: Path) -> bool:
    """Not so: a lab, which is a document, and a module of words, which defines no function or class."""
    if path.name == "notebook.py" or path.suffix not in LONGEST:
        return False
    code = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return path.suffix != ".py" or any(isinstance(node, code) for node in ast.walk(ast.parse(path.read_bytes())))


@pytest.mark.parametrize("path", [path for path in FILES if is_code(path)], ids=lambda path: path.name)
def test_a_file_is_one_thought(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST[path.suffix], f"{path.relative_to(ROOT)} has {lines} lines: which of its thoughts can go?"


def test_the_repository_stays_small() -> None:
    total = sum(path.stat().st_size for path in FILES)
    largest = sorted(FILES, key=lambda path: path.stat().st_size)[-5:]
    names = ", ".join(f"{path.relative_to(ROOT)} ({path.stat().st_size >> 20} MiB)" for path in largest)
    assert total < BUDGET_BYTES, f"{total / 2**20:.1f} MiB in all; the largest: {names}"


# Homes of people and of machines, but not of the "me" and "you" in an example. Brackets: no pattern finds itself.
PRIVATE = re.compile(
    r"[/](?:home|Users)/(?!me/|you/)\w+/|[/]root/|[/]work/(?:main|shared)|[C]:\\Users\\", re.IGNORECASE
)


def test_no_file_holds_a_path_of_a_developers_machine() -> None:
    for path in FILES:
        if "vendor" in path.parts or path.suffix in {".safetensors", ".woff2", ".png"}:
            continue
        found = PRIVATE.search(path.read_bytes().decode("utf-8", errors="replace"))
        assert found is None, f"{path.relative_to(ROOT)} holds {found[0] if found else ''}"


def test_there_are_no_other_top_level_folders() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES if path.parent != ROOT} <= FOLDERS


def test_the_list_of_files_is_not_empty() -> None:
    assert {ROOT / "Makefile", ROOT / "qwen3_ref" / "config.py", Path(__file__)} <= set(FILES)
