"""Runs the tests of the CUDA kernels under compute-sanitizer's four tools, and writes what each found.

    python -m qwen_cuda.testing.sanitize [--tools memcheck,racecheck] [--select EXPRESSION] [--output FILE] [PATH ...]

PATH is a folder of tests, by default `chapters`. Every tensor gets an allocation of its own (PyTorch's cache of memory
is off), so that memcheck sees each overrun. Tests that need that cache, captures into CUDA graphs, are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from qwen_cuda.benchmarking.machine import ROOT, commit

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SELECT = "(cuda or gpu) and not graph and not compile and not export and not opcheck and not benchmark"
FOUND = 86  # the exit code by which compute-sanitizer says that it found something


def command(sanitizer: str, tool: str, select: str, paths: list[str]) -> list[str]:
    """The command line that runs the selected tests under one tool."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", select, *paths]
    limits = ["--error-exitcode", str(FOUND), "--launch-timeout", "120", "--print-limit", "20"]
    return [sanitizer, "--tool", tool, *limits, *pytest]


def summary(output: str) -> dict[str, Any]:
    """What a run said: the sanitizer's own count of errors, and how many tests passed."""
    errors = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", output)
    passed = re.findall(r"(\d+) passed", output)
    return {
        "errors": int(errors[-1]) if errors else None,
        "tests_passed": int(passed[-1]) if passed else 0,
        "summary": next((line.strip("= ") for line in reversed(output.splitlines()) if "SUMMARY" in line), None),
    }


def clean(result: dict[str, Any]) -> bool:
    """No error, and tests did run: silence alone proves nothing."""
    return result["errors"] == 0 and result["tests_passed"] > 0 and result["exit_code"] == 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qwen_cuda.testing.sanitize", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("paths", nargs="*", default=["chapters"], help="folders or files of tests (default: chapters)")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"some of {', '.join(TOOLS)} (default: all)")
    parser.add_argument("--select", default=SELECT, help="which tests, as for pytest -k")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args(argv)
    tools = options.tools.split(",")
    if unknown := set(tools) - set(TOOLS):
        parser.error(f"--tools names {', '.join(sorted(unknown))}; the tools are {', '.join(TOOLS)}.")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("compute-sanitizer is not here: it comes with the CUDA toolkit, in its bin folder.", file=sys.stderr)
        return 2
    results: dict[str, dict[str, Any]] = {}
    for tool in tools:
        environment = dict(os.environ, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        run = subprocess.run(
            command(sanitizer, tool, options.select, options.paths),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        results[tool] = summary(run.stdout) | {"exit_code": run.returncode}
        print(f"{tool}: {'clean' if clean(results[tool]) else 'NOT CLEAN'}, {results[tool]}", flush=True)
        if not clean(results[tool]):
            print(run.stdout[-6000:])
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            data = {"commit": commit(), "paths": options.paths, "select": options.select, "tools": results}
            options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(clean(result) for result in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
