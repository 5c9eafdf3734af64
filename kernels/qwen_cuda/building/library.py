"""What can be built: a library is its sources, what it is for, and the faults planted in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KERNELS = Path(__file__).resolve().parents[2]
ROOT = KERNELS.parent

Kind = Literal["bindings", "cuda", "sim"]
VARIANTS: dict[str, tuple[str, ...]] = {
    "bindings": ("plain",),
    "cuda": ("plain",),
    "sim": ("plain", "checked", "asan", "tsan"),
}


class BuildError(RuntimeError):
    """A library that cannot be built or loaded.

    `sentence` says what is wrong and how to mend it. `output` is what the compiler wrote, empty where none ran;
    the text of the exception is both.
    """

    def __init__(self, sentence: str, output: str = "") -> None:
        super().__init__(f"{sentence}\n\n{output}" if output else sentence)
        self.sentence = sentence
        self.output = output


@dataclass(frozen=True)
class Edit:
    """A planted fault: a text replaced in one file before it is built. The file itself stays as it is.

    `file` is the name of a source or of a header that it includes, such as "warp_reduce.cuh"; enough folders before
    it to tell it from others of that name may be given too. `old` must occur exactly `count` times.
    """

    file: str
    old: str
    new: str
    count: int = 1


@dataclass(frozen=True)
class Library:
    """A shared library. Of kind "cuda" or "sim" it holds kernels and no PyTorch; "bindings" registers the operators.

    `sources` are absolute or relative to the current folder. `variant` is one of VARIANTS[kind]. A `quick` library of
    kind "sim" is built in half of the time: nothing is optimised, and its reports name no lines.
    """

    kind: Kind
    sources: tuple[Path, ...]
    variant: str = "plain"
    edits: tuple[Edit, ...] = ()
    quick: bool = False

    def __post_init__(self) -> None:
        if self.kind not in VARIANTS:
            raise BuildError(f"kind is {self.kind!r}; it must be one of {', '.join(VARIANTS)}.")
        if self.variant not in VARIANTS[self.kind]:
            known = ", ".join(VARIANTS[self.kind])
            raise BuildError(f"variant is {self.variant!r}; a library of kind {self.kind} has {known}.")
        if not self.sources:
            raise BuildError(f"sources is empty; a library of kind {self.kind} needs at least one file.")

    @property
    def name(self) -> str:
        """The stem of the library's file, without the lib before it: that of the first source, or "bindings"."""
        return "bindings" if self.kind == "bindings" else self.sources[0].stem
