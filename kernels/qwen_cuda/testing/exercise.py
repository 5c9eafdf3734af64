"""`make exercise N`: the tests of one chapter on the learner's own kernels.

QWEN_EXERCISE then names the chapter's folder. The backends are the simulator and the GPU, and both run the files of
chapters/<chapter>/exercise in place of those in kernels/cuda.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from qwen_cuda.building import ROOT, BuildError, Edit, Library

Holes = Mapping[str, tuple[Edit, ...]]  # name of a hole, in the order of the exercise → what fills it


def exercise_chapter() -> str | None:
    """The chapter whose exercise is being checked; None in all other runs."""
    return os.environ.get("QWEN_EXERCISE") or None


def exercise_libraries(folder: Path, kind: Literal["sim", "cuda"]) -> tuple[Library, ...]:
    """Every .cu file of an exercise's folder. The simulator checks each access, unless QWEN_SIM says otherwise.

    Raises:
        BuildError: there is none.
    """
    files = sorted(folder.glob("*.cu"))
    if not files:
        raise BuildError(f"{folder} holds no .cu file: restore it with `git checkout` and write your solution there.")
    variant = os.environ.get("QWEN_SIM", "checked") if kind == "sim" else "plain"
    return tuple(Library(kind, (file,), variant) for file in files)


def learners_libraries(kind: Literal["sim", "cuda"]) -> tuple[Library, ...]:
    """The learner's kernels in a run of `make exercise`; none otherwise."""
    chapter = exercise_chapter()
    return exercise_libraries(ROOT / "chapters" / chapter / "exercise", kind) if chapter else ()


def with_holes_filled(folder: Path, holes: Holes, count: int, variant: str = "plain") -> Library:
    """The one file of an exercise's folder in the simulator, its first `count` holes filled."""
    (starter,) = exercise_libraries(folder, "sim")
    edits = tuple(edit for hole in list(holes.values())[:count] for edit in hole)
    return replace(starter, variant=variant, edits=edits)


def run_exercise(chapter: str) -> subprocess.CompletedProcess[str]:
    """What `make exercise` starts for a chapter's folder, with each test named in its output."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, "QWEN_EXERCISE": chapter, "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"chapters/{chapter}", "-rA", "-vv"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def files_asked(output: str) -> set[str]:
    """The names of the test files that a run of pytest speaks of."""
    return {line.split("::")[0].rpartition("/")[2] for line in output.splitlines() if "::" in line}
