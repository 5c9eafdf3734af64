"""`make exercise N`: the tests of one chapter on the learner's own kernels.

QWEN_EXERCISE then names the chapter's folder. The backends are the simulator and the GPU, and both run the files of
chapters/<chapter>/exercise in place of those in kernels/cuda.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from qwen_cuda.building import ROOT, BuildError, Library


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
