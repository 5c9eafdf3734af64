"""A debugger stops in the block and the thread that it is asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulator_programs import SOURCES, build


def test_gdb_stops_in_a_chosen_thread_and_sees_its_variables(tmp_path: Path) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    program = build(tmp_path, "planted", ["planted.cu"])
    source = (SOURCES / "planted.cu").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(source) if "result_of(out, t) = t > 0" in text)
    commands = [
        "set pagination off",
        f"break planted.cu:{line} if blockIdx.x == 1 && threadIdx.x == 37",
        "run read_of_neighbour",
        "print t",
        "print blockIdx.x",
        "backtrace 3",
    ]
    arguments = [word for command in commands for word in ("-ex", command)]
    done = subprocess.run(
        ["gdb", "-batch", "-nx", *arguments, program], capture_output=True, text=True, timeout=120, errors="replace"
    )
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this system does not let gdb trace a program")
    assert "$1 = 37" in done.stdout, done.stdout + done.stderr
    assert "$2 = 1" in done.stdout
    assert "read_of_neighbour" in done.stdout
