"""Runs commands in parallel through ninja, and shows how far it is."""

from __future__ import annotations

import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from qwen_cuda.building.library import BuildError

_STATUS = re.compile(r"\[(\d+)/(\d+)\] ")


@dataclass(frozen=True)
class Edge:
    """A command that writes `output` when all `inputs` are there; both are relative to the folder of the run.

    `label` says what it does, such as "compiling rms_norm.cu".
    """

    output: str
    command: Sequence[str]
    label: str
    inputs: tuple[str, ...] = ()


def ninja_file(edges: Sequence[Edge]) -> str:
    """The text of a build.ninja."""
    lines = ["rule run", "  command = $words", "  description = $label", ""]
    for edge in edges:
        lines.append(" ".join([f"build {_escaped(edge.output)}: run", *map(_escaped, edge.inputs)]))
        lines.append("  words = " + shlex.join(edge.command).replace("$", "$$"))
        lines.append("  label = " + edge.label.replace("$", "$$"))
    return "\n".join([*lines, ""])


def _escaped(name: str) -> str:
    return re.sub(r"[$: ]", r"$\g<0>", name)


def jobs() -> int:
    """Commands at a time: $MAX_JOBS, as for PyTorch's own builds, else the cores that this process may use."""
    named = os.environ.get("MAX_JOBS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(ninja: Sequence[str], edges: Sequence[Edge], folder: Path, title: str, stream: TextIO | None = None) -> None:
    """Runs `edges` in `folder`. On a terminal, `stream` (stderr by default) shows the progress; else only `title`.

    Raises:
        BuildError: a command failed; it carries what the first one that failed wrote.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    (folder / "build.ninja").write_text(ninja_file(edges), encoding="utf-8")
    environment = os.environ | {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C", "TERM": "dumb"}
    command = [*ninja, "-j", str(jobs())]
    print(f"{title} ...", end="" if terminal else "\n", file=stream, flush=True)
    started, done, said = time.monotonic(), "", []
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in _each_second(process.stdout):
                said += [line] if line else []
                if status := _STATUS.match(line):
                    done = f"{status[1]} of {status[2]} steps, "
                if terminal:
                    stream.write(f"\r{title} ... {done}{time.monotonic() - started:.0f} s\x1b[K")
                    stream.flush()
        except BaseException:
            process.terminate()  # ninja ends its compilers and removes what they began
            process.wait()
            raise
        finally:
            if terminal:
                stream.write("\r\x1b[K")
                stream.flush()
    if process.returncode != 0:
        raise _failure(said, edges)


def _each_second(lines: Iterable[str]) -> Iterator[str]:
    """The lines as they come, and "" after each second without one."""
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = waiting.get(timeout=1)
        except queue.Empty:
            yield ""
        else:
            if line is None:
                return
            yield line


def _failure(said: Sequence[str], edges: Sequence[Edge]) -> BuildError:
    """The error for what ninja wrote: the first failed command and its output, without the command line."""
    start = next((index for index, line in enumerate(said) if line.startswith("FAILED: ")), None)
    if start is None:
        return BuildError(f"ninja failed: {said[-1].strip() if said else 'it wrote nothing'}.")
    said_of = said[start].strip()
    label = next((edge.label for edge in edges if said_of.endswith(f" {edge.output}")), said_of)
    lines = []
    for line in said[start + 2 :]:
        if _STATUS.match(line) or line.startswith(("ninja: ", "FAILED: ")):
            break
        lines.append(line.rstrip())
    return BuildError(f"{label} failed: {_first_error(lines)}", "\n".join(lines))


def _first_error(lines: Sequence[str]) -> str:
    marks = ("undefined reference", "Undefined symbols", "multiple definition", "error:", "error :", "Killed")
    first = next((line.strip() for mark in marks for line in lines if mark in line), None)
    return first or (lines[-1] if lines else "it wrote no message")
