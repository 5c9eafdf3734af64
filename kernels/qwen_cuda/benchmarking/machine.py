"""Where a measurement comes from: the commit, the hardware and the software."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
_VENDOR = {"nvidia", "geforce", "tesla", "quadro", "graphics", "device"}
# "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-PCIE-16GB": packaging, memory and its size.
_PACKAGING = re.compile(r"sxm\d*|pcie|nvl|hbm\d\w*|\d+gb|mig|laptop|gpu")


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, or the CPU when there is none.

    Raises:
        ValueError: `name` is no device of this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}; benchmarks run on cpu and cuda only.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device is {name!r}; PyTorch sees {count or 'no'} CUDA device{'s' * (count != 1)} here.")
    return device


def gpu_slug(name: str) -> str:
    """A short folder name for a GPU: `NVIDIA H200` → `h200`, `NVIDIA GeForce RTX 4090` → `rtx-4090`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    kept = [word for word in words if word not in _VENDOR and not _PACKAGING.fullmatch(word)]
    return "-".join(kept or words or ["gpu"])


def provenance(device: torch.device) -> dict[str, Any]:
    """What a reader needs to judge a figure or to repeat it. What cannot be read is None."""
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return {
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": properties.name if properties else None,
        "sms": properties.multi_processor_count if properties else None,
        "l2_bytes": properties.L2_cache_size if properties else None,
        "driver": _nvidia_smi("driver_version", device) if on_gpu else None,
        "clocks": clocks(device),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
    }


def clocks(device: torch.device) -> dict[str, float | None]:
    """Clock rates in MHz at this moment: `sm` and `memory` of a GPU with its `sm_max`, or `cpu`."""
    if device.type == "cuda":
        found = (_nvidia_smi(f"clocks.{name}", device) for name in ("sm", "mem", "max.sm"))
        return dict(zip(("sm", "memory", "sm_max"), (_number(text) for text in found), strict=True))
    return {"cpu": _number(_first_match(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo")))}


def commit() -> str:
    """QWEN_COMMIT, for a tree copied without its history; else git's commit, with `+changes` where files differ."""
    if named := os.environ.get("QWEN_COMMIT"):
        return named
    head = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return head + ("+changes" if _output("git", "-C", str(ROOT), "status", "--porcelain") else "")


def cpu_name() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    linux = _first_match(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo"))
    return linux or _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def nvidia_smi(query: str, device: torch.device) -> list[list[str]] | None:
    """The rows that `nvidia-smi --query-…` prints for a GPU, such as `gpu=driver_version`; None when it fails."""
    # By UUID: the order of nvidia-smi need not be that of CUDA, and CUDA_VISIBLE_DEVICES does not change it.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    which = f"GPU-{uuid}" if uuid else str(device.index or 0)
    text = _output("nvidia-smi", f"--id={which}", f"--query-{query}", "--format=csv,noheader,nounits")
    return None if text is None else [[cell.strip() for cell in row.split(",")] for row in text.splitlines()]


def _nvidia_smi(field: str, device: torch.device) -> str | None:
    rows = nvidia_smi(f"gpu={field}", device)
    return rows[0][0] if rows else None


def _output(*command: str) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _first_match(pattern: str, path: Path) -> str | None:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1].strip() if match else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # nvidia-smi says "[N/A]" where a figure is not readable
