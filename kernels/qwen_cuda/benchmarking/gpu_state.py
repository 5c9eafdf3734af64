"""Whether a GPU is ours alone, and whether it runs at full speed: what else could explain a figure."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

import torch

from qwen_cuda.benchmarking.machine import nvidia_smi

# Bits of nvidia-smi's clocks_event_reasons.active (NVML's nvmlClocksEventReasons) that slow a run down.
_REASONS = {
    0x04: "the power limit",
    0x08: "a hardware slowdown",
    0x20: "temperature",
    0x40: "temperature, in hardware",
    0x80: "the power brake",
}
_BUSY_PERCENT = 5


@dataclass(frozen=True)
class GpuState:
    """What nvidia-smi says of a GPU at one moment; what it does not say is None or missing.

    Attributes:
        others: name and memory in MiB of each other process that computes on the GPU.
        utilisation: per cent of the last moments in which a kernel ran.
        slowed_by: why the clocks are lower than they could be; empty when nothing lowers them.
    """

    others: tuple[tuple[str, int | None], ...] = ()
    utilisation: int | None = None
    slowed_by: tuple[str, ...] = ()


def gpu_state(device: torch.device) -> GpuState:
    """Asks nvidia-smi, for a few tenths of a second. A CPU has an empty state."""
    if device.type != "cuda":
        return GpuState()
    use = nvidia_smi("gpu=utilization.gpu", device)
    reasons = nvidia_smi("gpu=clocks_event_reasons.active", device) or nvidia_smi(
        "gpu=clocks_throttle_reasons.active",
        device,  # its name before driver 535
    )
    return GpuState(
        others=_others(nvidia_smi("compute-apps=pid,process_name,used_memory", device) or [], os.getpid()),
        utilisation=_integer(use[0][0]) if use else None,
        slowed_by=_slowed_by(reasons[0][0]) if reasons else (),
    )


@contextmanager
def kept_busy(device: torch.device) -> Iterator[None]:
    """Meanwhile a thread lets the GPU copy memory, as a kernel does that is bound by it. A CPU stays idle."""
    if device.type != "cuda":
        yield
        return
    enough, busy = threading.Event(), threading.Event()

    def copy() -> None:
        with torch.cuda.device(device):
            a = torch.empty(2**28, dtype=torch.uint8, device=device)
            b = torch.empty_like(a)
            while not enough.is_set():
                for _ in range(50):
                    a.copy_(b)
                torch.cuda.synchronize()
                busy.set()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    busy.wait(timeout=5)
    try:
        yield
    finally:
        enough.set()
        thread.join()


def before(state: GpuState) -> list[str]:
    """What a reader of the figures must know of the GPU before the run, as sentences. It was idle then, or not ours."""
    sentences = []
    if state.others:
        named = ", ".join(name + (f" ({mib:,} MiB)" if mib is not None else "") for name, mib in state.others)
        verb = "processes use" if len(state.others) > 1 else "process uses"
        sentences.append(f"{len(state.others)} other {verb} the GPU: {named}. Times may be too long.")
    if (state.utilisation or 0) > _BUSY_PERCENT:
        sentences.append(
            f"The GPU was busy for {state.utilisation} % of the time before the run. Times may be too long."
        )
    return sentences


def during(state: GpuState) -> list[str]:
    """What holds the clocks of a busy GPU down, as sentences."""
    if not state.slowed_by:
        return []
    return [f"The GPU lowers its clocks, because of {' and '.join(state.slowed_by)}."]


def _others(rows: list[list[str]], own_pid: int) -> tuple[tuple[str, int | None], ...]:
    """Names only: a path may tell more of a machine than a results file should."""
    found = []
    for pid, *words, memory in (row for row in rows if len(row) >= 3):
        if _integer(pid) not in (None, own_pid):
            found.append((PurePath(",".join(words).replace("\\", "/")).name, _integer(memory)))
    return tuple(found)


def _slowed_by(mask: str) -> tuple[str, ...]:
    try:
        bits = int(mask, 16)
    except ValueError:
        return ()
    return tuple(reason for bit, reason in _REASONS.items() if bits & bit)


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
