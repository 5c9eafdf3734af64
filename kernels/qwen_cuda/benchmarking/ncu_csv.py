"""Reads what `ncu --csv --page raw --print-units base` writes.

After some lines of its own there is a row of names, a row of units, and a row for each kernel.
"""

from __future__ import annotations

import csv
import re
from typing import Any

# Our name → the metric of ncu and what it is multiplied by; the names end with their units. A metric that is missing
# in a version of ncu is missing in the result.
FIGURES = {
    "time_us": ("gpu__time_duration.sum", 1e-3),
    "dram_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "dram_read_bytes": ("dram__bytes_read.sum", 1.0),
    "dram_write_bytes": ("dram__bytes_write.sum", 1.0),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct", 1.0),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1.0),
    "occupancy_limit_percent": ("sm__maximum_warps_per_active_cycle_pct", 1.0),
    "load_sectors_per_request": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", 1.0),
    "store_sectors_per_request": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio", 1.0),
    "registers": ("launch__registers_per_thread", 1.0),
    "threads": ("launch__block_size", 1.0),
    "blocks": ("launch__grid_size", 1.0),
}
# Warps that waited for this reason, for each instruction that a scheduler issued.
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?P<reason>\w+)_per_issue_active\.ratio")
_LEAST_STALL = 0.05


def kernels(text: str) -> list[dict[str, Any]]:
    """For each kernel, as launched: `kernel`, its name; `figures` by our names; `stalls`, largest first."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = [row for row in csv.DictReader(lines[start:]) if (row.get("ID") or "").isdecimal()]  # the units have no ID
    return [_kernel(row) for row in rows]


def _kernel(row: dict[str, str]) -> dict[str, Any]:
    numbers = {name: number for name, cell in row.items() if name and (number := _number(cell)) is not None}
    figures = {ours: numbers[name] * scale for ours, (name, scale) in FIGURES.items() if name in numbers}
    reasons = {match["reason"]: numbers[name] for name in numbers if (match := _STALL.fullmatch(name))}
    stalls = {reason: warps for reason, warps in reasons.items() if warps >= _LEAST_STALL}
    return {
        "kernel": row.get("Kernel Name", ""),
        "figures": figures,
        "stalls": dict(sorted(stalls.items(), key=lambda stall: -stall[1])),
    }


def _number(cell: str | None) -> float | None:
    try:
        value = float((cell or "").replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None  # so that a NaN, which JSON does not have, is left out
