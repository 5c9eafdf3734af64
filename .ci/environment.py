"""Makes `.venv` for the Makefile, once, and again when what it was made from has changed.

    python3 .ci/environment.py base              the dependencies of `make generate`
    python3 .ci/environment.py full              those and every extra: tests, site, linters, JupyterLab
    python  .ci/environment.py check MODULE...   says whether this interpreter, used as it is, has the modules

`.venv/ready.json` records what the environment was made from. It is removed before anything changes and written last,
so an interrupted run never leaves an environment that counts as ready.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

EXTRAS = {"base": "", "full": "[test,docs,lint,lab]"}
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

Pip = Callable[[Path, list[str], TextIO], int]


class SetupError(Exception):
    """One sentence for the reader: what is wrong and how to mend it."""


def record(root: Path, python_version: str) -> dict[str, str]:
    """What an environment is made from; a ready one with another record is stale.

    Of pyproject.toml only the tables that pip reads count: a change to a linter's settings costs no reinstall.
    """
    kept, keep = [], False
    for line in (root / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            keep = line.startswith(("[build-system", "[project", "[tool.setuptools"))
        if keep and line.strip():
            kept.append(line.rstrip())
    return {
        "root": str(root),
        "python": python_version,
        "pyproject": "\n".join(kept),
        "constraints": (root / "constraints.txt").read_text(encoding="utf-8"),
    }


def why_stale(root: Path, level: str) -> str | None:
    """None when `.venv` is ready for `level`; "level" when it only lacks the extras; otherwise why it must be remade.

    Raises SetupError for a `.venv` that somebody else made.
    """
    env = root / ".venv"
    if not env.exists():
        return "there is none yet"
    if not (env / "setup.log").exists():
        raise SetupError(
            f"{env} was not made by make, so make leaves it alone: move it away, "
            "or keep working with it by adding PYTHON=.venv/bin/python to the command."
        )
    try:
        found = json.loads((env / "ready.json").read_text(encoding="utf-8"))
        python = subprocess.run([env / "bin" / "python", "-c", "import sys; print(sys.version)"], capture_output=True)
    except (OSError, ValueError):
        return "its last set-up did not finish"
    if python.returncode != 0:
        return "its Python no longer runs"
    wanted = record(root, python.stdout.decode().strip())
    for key, reason in (
        ("root", "the checkout was moved or copied"),
        ("python", "its Python was upgraded"),
        ("pyproject", "the dependencies in pyproject.toml changed"),
        ("constraints", "constraints.txt changed"),
    ):
        if found.get(key) != wanted[key]:
            return reason
    return None if level == "base" or found.get("level") == "full" else "level"


@contextlib.contextmanager
def only_one(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds a lock on `path`; waits, and says so, while another process holds it. The system frees it at our death."""
    import fcntl  # not on Windows itself, where this is never reached

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another make is setting up .venv; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks (some network mounts): carry on without one
        yield


def run_pip(python: Path, arguments: list[str], log: TextIO) -> int:
    """Runs pip of the environment, its output into `log`, and shows the time on a terminal meanwhile."""
    # PYTHONPATH would show pip the checkout's own metadata; PIP_USER would send the packages elsewhere.
    keep = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER")}
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    started, terminal = time.monotonic(), sys.stderr.isatty()
    with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=keep) as process:
        while True:
            try:
                code = process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if terminal:
                    sys.stderr.write(f"\r  {time.monotonic() - started:.0f} s ")
                    sys.stderr.flush()
            else:
                break
    if terminal:
        sys.stderr.write("\r" + " " * 12 + "\r")
    return code


def wants_cpu_wheel(root: Path, python: Path) -> bool:
    """On Linux the index of PyPI has only the CUDA build of torch, some 3 GB; without an NVIDIA GPU 200 MB will do.

    A reader who has configured pip's sources has chosen where torch comes from; that stays.
    """
    if not sys.platform.startswith("linux") or shutil.which("nvidia-smi") or Path("/dev/nvidiactl").exists():
        return False
    listing = subprocess.run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, cwd=root)
    return not any(word in listing.stdout for word in ("index-url", "find-links", "no-index"))


def torch_pin(constraints: str) -> str:
    """The line of constraints.txt that pins torch."""
    return next(line.strip() for line in constraints.splitlines() if line.startswith("torch=="))


def explain(log: str, log_path: Path) -> str:
    """One sentence for a failed pip run, from what it wrote."""
    if any(word in log for word in ("No space left", "Errno 28")):
        return "The disk is full: free about 3 GB (8 GB with an NVIDIA GPU) and run the same command again."
    errors = [line.strip() for line in log.splitlines() if "ERROR:" in line]
    unreachable = ("Failed to establish", "name resolution", "NewConnectionError", "Network is unreachable",
                   "ConnectTimeout", "Read timed out", "ProxyError")  # fmt: skip
    no_setuptools = any("setuptools" in line and "from versions: none" in line for line in errors)
    if no_setuptools or any(word in log for word in unreachable):
        return (
            "pip reached no package index: connect this machine to the network once and run the same command again, "
            "or add PYTHON=python3 to use an interpreter that has the packages already."
        )
    said = f" pip says: {errors[-1].partition('ERROR:')[2].strip()}" if errors else ""
    return f"pip could not install the packages; its output is in {log_path}.{said}"


def create(env: Path, log_path: Path) -> None:
    """An empty environment with pip in it, in place of what stood there."""
    if missing(["venv", "ensurepip"]):
        raise SetupError(
            "This Python cannot make virtual environments: on Debian, Ubuntu or WSL2 run "
            "`sudo apt install python3-venv` and then the same command again."
        )
    import venv

    try:
        if env.exists():
            shutil.rmtree(env)
        env.mkdir()
        log_path.touch()  # first of all, since it marks the folder as ours
        venv.EnvBuilder(symlinks=True, with_pip=True).create(env)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"{env} could not be made: {error}.") from error


def build(root: Path, level: str, reason: str, pip: Pip, say: Callable[[str], None]) -> None:
    """Makes the environment, or adds the extras to a ready one, and writes the record last."""
    env = root / ".venv"
    python, log_path = env / "bin" / "python", env / "setup.log"
    (env / "ready.json").unlink(missing_ok=True)
    version = ".".join(map(str, sys.version_info[:2]))
    if reason == "level":
        say("adding the tools for tests, site and labs to .venv (once, about 2 minutes) ...")
    else:
        again = "" if reason == "there is none yet" else f" again, since {reason},"
        say(f"setting up .venv{again} with Python {version} (once, about 2 minutes) ...")
        create(env, log_path)
    started = time.monotonic()
    with log_path.open("w", encoding="utf-8") as log:
        constraints = (root / "constraints.txt").read_text(encoding="utf-8")
        if reason != "level" and wants_cpu_wheel(root, python):
            # When this fails, the next step takes torch from where pip finds it.
            source = ["--index-url", TORCH_CPU_INDEX, "--retries", "0", "--timeout", "10"]
            pip(python, ["install", "--no-deps", *source, torch_pin(constraints)], log)
        project = f"{root}{EXTRAS[level]}"
        code = pip(python, ["install", "--constraint", str(root / "constraints.txt"), "--editable", project], log)
    if code != 0:
        raise SetupError(explain(log_path.read_text(encoding="utf-8", errors="replace"), log_path))
    made = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=True)
    ready = {"level": level, **record(root, made.stdout.strip())}
    partial = env / "ready.partial"
    partial.write_text(json.dumps(ready, indent=1), encoding="utf-8")
    partial.replace(env / "ready.json")
    say(f".venv is ready ({time.monotonic() - started:.0f} s).")


def ensure(root: Path, level: str, pip: Pip = run_pip, say: Callable[[str], None] | None = None) -> None:
    """Returns with `.venv` ready for `level`, or raises SetupError."""
    say = say or (lambda text: print(text, file=sys.stderr, flush=True))
    if why_stale(root, level) is None:
        return
    with only_one(root / "pyproject.toml", say):
        reason = why_stale(root, level)  # the one we waited for may have done the work
        if reason is not None:
            build(root, level, reason, pip, say)


def missing(modules: list[str]) -> list[str]:
    """Those of `modules` that this interpreter cannot import."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def main(arguments: list[str]) -> int:
    """Runs the command line above; 0 is ready, 1 is not, after one sentence on stderr."""
    root = Path(__file__).resolve().parent.parent
    try:
        if arguments[0] == "check":
            lacking = missing(arguments[1:])
            if lacking:
                raise SetupError(
                    f"{sys.executable} lacks {', '.join(lacking)}: install what is missing there, "
                    "or leave PYTHON= out and let make set up .venv."
                )
        else:
            ensure(root, arguments[0])
    except SetupError as error:
        print(f"make: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a read-only checkout, a full disk
        print(f"make: {root / '.venv'} could not be made: {error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmake: the set-up was interrupted; the next command begins it again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
