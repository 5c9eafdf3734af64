"""A small checkout with the real Makefile, and a Python that only writes down how it is called."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKE = shutil.which("make")
STUB = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1:] == ["-c", "import xdist"]:
    sys.exit("HAS_XDIST" not in os.environ)
if not (sys.argv[1] == "-c" and "version_info" in sys.argv[2]):
    kept = {{key: os.environ.get(key) for key in ("PYTHONPATH", "QWEN_EXERCISE", "PROMPT")}}
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([sys.argv[1:], kept]) + "\\n")
"""


class Project:
    """A small checkout with the real Makefile, and a stub that is both the given PYTHON and .venv/bin/python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls_file = root / "calls"
        self.stub = self.script(root / "a folder" / "python", STUB)
        shutil.copy(ROOT / "Makefile", root)
        for file in (
            "ch01_math_reference/benchmark.py",
            "ch01_math_reference/notebook.py",
            "ch02_rms_norm/exercise/x.py",
        ):
            path = root / "chapters" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (root / "chapters" / "ch11_generator").mkdir()
        (root / "kernels").mkdir()

    def script(self, path: Path, text: str) -> Path:
        """Writes an executable file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def make(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs make with `words`, in an environment without the variables of a make around this test."""
        self.calls_file.unlink(missing_ok=True)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON"))}
        clean |= {"CALLS": str(self.calls_file), **(env or {})}
        assert MAKE is not None
        return subprocess.run([MAKE, *words], cwd=self.root, env=clean, capture_output=True, text=True, timeout=60)

    def calls(self) -> list[list[str]]:
        """The arguments of each call of the stub, without the checks of modules."""
        return [call for call, _ in self.records() if call[:2] != [".ci/environment.py", "check"]]

    def records(self) -> list[tuple[list[str], dict[str, str | None]]]:
        """All calls of the stub, with some of the environment."""
        return (
            [json.loads(line) for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []
        )

    def run(self, *words: str) -> list[list[str]]:
        """The calls of a make that must succeed."""
        done = self.make(*words, f"PYTHON={self.stub}")
        assert done.returncode == 0, done.stderr
        return self.calls()
