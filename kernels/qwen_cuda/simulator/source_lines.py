"""From code addresses to lines of the source, a whole trace at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SIMULATOR = re.compile(r"/cudasim/|cuda_sim\.h|cuda_platform\.cuh|/c\+\+/")


def short_name(function: str) -> str:
    """Such as "warp_sum" of "float (anonymous namespace)::warp_sum<4>(float)"."""
    words = re.split(r"[(<]", function.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return re.split(r"[ :]", words)[-1]


@dataclass(frozen=True)
class Frame:
    """A line of the source; 0: the compiler has merged code of several. What it has inlined has frames of its own."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        name = Path(self.file).name
        return f"{name}:{self.line}" if self.line else f"{name} (in {short_name(self.function)})"


def frames_at(library: Path, addresses: Iterable[int]) -> dict[int, list[Frame]]:
    """The frames at each address (an offset in the library), innermost first; none where nothing is known.

    Runs binutils' addr2line, once. Without that program no address has a frame.
    """
    wanted = sorted(set(addresses))
    program = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    found: dict[int, list[Frame]] = {address: [] for address in wanted}
    if not wanted or program is None or not library.exists():
        return found
    command = [program, "-e", str(library), "-a", "-i", "-f", "-C"]
    text = "".join(f"{address:#x}\n" for address in wanted)
    lines = subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout.splitlines()
    address, index = 0, 0
    while index < len(lines):
        if re.fullmatch(r"0x[0-9a-f]+", lines[index]):
            address, index = int(lines[index], 16), index + 1
            continue
        function, place = lines[index], lines[index + 1] if index + 1 < len(lines) else "??:0"
        match = re.match(r"(.+):(\d+|\?)", place)
        if match and address in found and match[1] != "??":
            found[address].append(Frame(function, match[1], int(match[2].replace("?", "0"))))
        index += 2
    return found


@dataclass(frozen=True)
class Site:
    """A place of the source from which threads access memory or meet each other.

    `chain` holds the frames that are not the simulator's, innermost first. `line` is that of the kernel: the innermost
    in a .cu file, or else the innermost of all; `number` tells apart several accesses on one line.
    """

    number: int
    chain: tuple[Frame, ...]
    unknown: str = "?"

    @property
    def line(self) -> Frame | None:
        kernels = [frame for frame in self.chain if frame.file.endswith(".cu")]
        return next(iter(kernels or self.chain), None)

    @property
    def label(self) -> str:
        """Such as "rms_norm.cu:41"."""
        return str(self.line) if self.line else self.unknown

    @property
    def source(self) -> str:
        """The text of the line, empty where the file is gone."""
        if self.line is None:
            return ""
        try:
            lines = Path(self.line.file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return lines[self.line.line - 1].strip() if 0 < self.line.line <= len(lines) else ""


def without_simulator(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The frames of the kernel's own files."""
    return tuple(frame for frame in frames if not SIMULATOR.search(frame.file))
