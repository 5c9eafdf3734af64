"""Asks, judges and prints. See `python -m qwen_cuda.doctor --help`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from pathlib import Path

from qwen_cuda.doctor import checks, probes
from qwen_cuda.doctor.finding import Finding, exit_code, without_gpu
from qwen_cuda.doctor.report import as_json, print_report

BASE_MODULES = (
    "huggingface_hub", "jinja2", "numpy", "rich", "safetensors", "tokenizers", "torch", "transformers", "typer",
)  # fmt: skip
TEST_MODULES = ("hypothesis", "pytest")
EXIT_CODES = """\
exit code: the sum of
  1  `make generate` would fail
  2  `make test` would fail
  4  there is an NVIDIA GPU, and builds for it would fail
so 0 is: all that this machine can do works. A missing GPU is no problem. (Under `make doctor`, make itself returns 2
for any of them.)
"""


def checkout() -> Path:
    """The root of the repository: the folder that holds qwen3_ref."""
    spec = importlib.util.find_spec("qwen3_ref")
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]).parent if places else Path(__file__).resolve().parents[3]


def system() -> str:
    """Such as "Linux x86_64 (WSL2)"."""
    wsl = " (WSL2)" if "microsoft" in platform.release().lower() else ""
    return f"{platform.system()} {platform.machine()}{wsl}"


def examine() -> tuple[list[Finding], bool]:
    """All findings, and whether the machine has an NVIDIA GPU."""
    root, cache = checkout(), probes.hub_cache()
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    torch, driver = probes.torch_state(), probes.nvidia_driver()
    has_gpu = bool(driver or (torch and torch.devices))
    hub = None if offline else probes.hub_answers(endpoint)
    nvcc = probes.nvcc(trial=has_gpu)
    version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    findings = [
        checks.check_python(version, system()),
        checks.check_packages(probes.missing_modules(BASE_MODULES), probes.missing_modules(TEST_MODULES)),
        checks.check_torch(torch),
        checks.check_gpu(driver, torch),
        checks.check_nvcc(nvcc, torch, has_gpu),
        checks.check_architectures(probes.nvcc_architectures(nvcc.path) if nvcc else (), torch),
        checks.check_compiler(probes.host_compiler()),
        checks.check_ninja(probes.ninja()),
        checks.check_disk(probes.free_bytes(root), root),
        checks.check_tiny(root / "qwen3_ref" / "tiny"),
        checks.check_hub(hub, endpoint, 3.0),
        checks.check_model(probes.cached_model(cache, checks.MODEL), bool(hub), probes.free_bytes(cache), cache),
        checks.check_chromium(probes.chromium(), not probes.missing_modules(["playwright"])),
    ]
    return (findings if has_gpu else without_gpu(findings)), has_gpu


def main(arguments: list[str] | None = None) -> int:
    """Prints the report and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m qwen_cuda.doctor",
        description="Says what works on this machine, and how to mend what does not.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    findings, has_gpu = examine()
    try:
        if options.json:
            print(as_json(findings, has_gpu))
        else:
            print_report(findings, has_gpu)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code(findings)


if __name__ == "__main__":
    sys.exit(main())
