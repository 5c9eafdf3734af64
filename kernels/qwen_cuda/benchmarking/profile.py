"""Runs kernels under Nsight Compute and keeps the figures that explain their time, for the site.

    python -m qwen_cuda.benchmarking.profile chapters.ch02_rms_norm.profiled
    python -m qwen_cuda.benchmarking.profile chapters.ch02_rms_norm.profiled --case "op=rms_norm rows=1 hidden=4096"

The module has `CHAPTER`, `CASES`, a list of settings, and `prepared(**settings)`, which gives a call that launches one
kernel. The results of all cases go to docs/results/<gpu>/chNN_profile.json. docs/profiling.md says how to read them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qwen_cuda.benchmarking.machine import ROOT, choose_device, gpu_slug, provenance
from qwen_cuda.benchmarking.ncu_csv import kernels
from qwen_cuda.building.toolchain import cuda_home

Settings = dict[str, str | int]
SCHEMA = 1
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats")
# What no section above holds in every version of ncu.
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
)


class ProfileError(RuntimeError):
    """A profile that could not be taken; the text is a sentence."""


class CountersLocked(ProfileError):
    """The driver does not let this user read counters."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", help="what is profiled, such as chapters.ch02_rms_norm.profiled")
    parser.add_argument("--case", action="append", type=settings, help='"name=value …" in place of the module\'s cases')
    parser.add_argument("--output", type=Path, help="where the JSON goes; all of a module's cases go to docs/results")
    options = parser.parse_args(argv)
    try:
        module = importlib.import_module(options.module)
        results = profile(options.module, module.CHAPTER, options.case or module.CASES)
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 1
    print_figures(results)
    if path := options.output or (None if options.case else results_path(results)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(f"wrote {path}")
    return 0


def results_path(results: dict[str, Any]) -> Path:
    """docs/results/<gpu>/chNN_profile.json."""
    number, gpu = results["chapter"].partition("_")[0], gpu_slug(results["provenance"]["gpu"])
    return ROOT / "docs" / "results" / gpu / f"{number}_profile.json"


def print_figures(results: dict[str, Any]) -> None:
    """All that was read of each kernel."""
    for kernel in results["kernels"]:
        print(", ".join(f"{name} {value}" for name, value in kernel["case"].items()))
        for name, value in kernel["figures"].items():
            print(f"    {name:26} {value:,.6g}")
        print("    stalls                     " + ", ".join(f"{name} {x:.2f}" for name, x in kernel["stalls"].items()))


def settings(text: str) -> Settings:
    """`rows=8192 step=v1` → `{"rows": 8192, "step": "v1"}`."""
    pairs = [word.partition("=") for word in text.split()]
    if wrong := [name for name, sign, value in pairs if not (name and sign and value)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no setting; write name=value, with spaces between settings.")
    return {name: int(value) if value.isdecimal() else value for name, _, value in pairs}


def profile(module: str, chapter: str, cases: Sequence[Settings]) -> dict[str, Any]:
    """The results file of one run of ncu over all `cases`.

    Raises:
        ProfileError: there is no ncu or no GPU, counters may not be read, or a case launches not exactly one kernel.
    """
    ncu = find_ncu()
    if not torch.cuda.is_available():
        raise ProfileError("PyTorch sees no CUDA GPU here, and a profile needs one: see `make doctor`.")
    try:
        text = run_ncu(ncu, module, cases, METRICS)
    except CountersLocked:
        raise
    except ProfileError:
        text = run_ncu(ncu, module, cases, ())  # a metric that this ncu does not know stops it
    found = kernels(text)
    if len(found) != len(cases):
        raise ProfileError(f"ncu saw {len(found)} kernels in {len(cases)} cases; each case must launch exactly one.")
    where = provenance(choose_device("cuda"))
    where["ncu"] = version(ncu)
    return {
        "schema": SCHEMA,
        "chapter": chapter,
        "provenance": where,
        "kernels": [{"case": case, **kernel} for case, kernel in zip(cases, found, strict=True)],
    }


def find_ncu() -> str:
    """The program ncu: on the PATH, else of the CUDA toolkit.

    Raises:
        ProfileError: there is none.
    """
    home = cuda_home()
    found = shutil.which("ncu") or (shutil.which(str(home / "bin" / "ncu")) if home else None)
    if found is None:
        raise ProfileError(
            "ncu was not found: install Nsight Compute (it comes with the CUDA toolkit) and put its folder on the PATH."
        )
    return found


def version(ncu: str) -> str:
    """The last line of `ncu --version`: "Version 2025.3.1.0 (build …)"."""
    said = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip()
    return said.splitlines()[-1] if said else "unknown"


def command(ncu: str, log: Path, module: str, cases: Sequence[Settings], metrics: Sequence[str]) -> list[str]:
    """One run of ncu; `log` gets its table."""
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
        "--target-processes", "application-only",  # not the compilers that it may start
        "--clock-control", "none",  # the clocks of a benchmark, and no privilege is needed
        "--profile-from-start", "off",  # only what lies between cudaProfilerStart and cudaProfilerStop
        *(word for section in SECTIONS for word in ("--section", section)),
        *(("--metrics", ",".join(metrics)) if metrics else ()),
        sys.executable, "-m", "qwen_cuda.benchmarking.profile_call", module, json.dumps(cases),
    ]  # fmt: skip


def run_ncu(ncu: str, module: str, cases: Sequence[Settings], metrics: Sequence[str]) -> str:
    """What ncu writes about the kernels of `cases`.

    Raises:
        ProfileError: it or the program under it fails.
    """
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        words = command(ncu, log, module, cases, metrics)
        run = subprocess.run(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in text + run.stdout:
        raise CountersLocked(
            "The driver lets only administrators read a GPU's counters: run this as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0."
        )
    if run.returncode:
        said = (run.stdout.strip() or text.strip() or f"exit status {run.returncode}").splitlines()[-1]
        raise ProfileError(f"ncu failed: {said}")
    return text


if __name__ == "__main__":
    raise SystemExit(main())
