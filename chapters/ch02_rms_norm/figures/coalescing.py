"""Writes coalescing.json: what the warps of each step of the ladder ask of x, traced in the checked simulator.

    PYTHONPATH=.:kernels python -m chapters.ch02_rms_norm.figures.coalescing

The lesson's figure `coalescing` is drawn from it; docs/assets/js/figures/coalescing.js reads it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from qwen_cuda.building import Library, build
from qwen_cuda.simulator import Request, trace
from qwen_cuda.simulator.memory_model import SECTOR_BYTES

FILE = Path(__file__).with_name("coalescing.json")
STEPS = Path(__file__).parents[1] / "steps"
ROWS, HIDDEN = 32, 1024  # a warp of v1 has 32 rows

Run = dict[str, int]


def libraries() -> list[Library]:
    """The steps that differ in how they read x: v5 reads as v4 does."""
    return [Library("sim", (path,), "checked") for path in sorted(STEPS.glob("v[1-4]_*.cu"))]


def traced() -> dict[str, Any]:
    """The content of coalescing.json. All of it depends on shapes and code alone, not on addresses or numbers."""
    build(*libraries())
    return {
        "schema": 1,
        "rows": ROWS,
        "hidden": HIDDEN,
        "dtype": "bfloat16",
        "element_bytes": 2,
        "sector_bytes": SECTOR_BYTES,
        "steps": [_step(library) for library in libraries()],
    }


def _step(library: Library) -> dict[str, Any]:
    x, weight = torch.ones(ROWS, HIDDEN).bfloat16(), torch.ones(HIDDEN).bfloat16()
    with trace(library) as seen:
        torch.ops.qwen_sim.rms_norm(x, weight, 1e-6)
    reads = seen.where(kind="load", target="x")
    (launch,) = seen.launches
    return {
        "step": library.name,
        "blocks": launch.grid[0],
        "threads": launch.threads,
        "totals": {
            "requests": len(reads),
            "sectors": sum(request.transactions.sectors for request in reads),
            "bytes": sum(int(request.sizes.sum()) for request in reads),
        },
        "warp": runs([request for request in reads if (request.block, request.warp) == (0, 0)]),
    }


def runs(requests: Iterable[Request]) -> list[Run]:
    """A warp's requests, in order, as arithmetic progressions.

    A run stands for `repeats` requests in which lanes 0 to `lanes` - 1 read `bytes` each; lane l of request i begins at
    byte `first + i * per_repeat + l * per_lane`.

    Raises:
        ValueError: a request is no such progression.
    """
    found: list[Run] = []
    for request in requests:
        lanes, per_lane, width = len(request.lanes), _step_of(request.offsets.tolist()), set(request.sizes.tolist())
        if per_lane is None or len(width) != 1 or request.lanes.tolist() != list(range(lanes)):
            where = f"{request.site.label}: the lanes {request.lanes} of a warp read at {request.offsets}"
            raise ValueError(f"{where}, which is no progression; the figure cannot show it.")
        first = int(request.offsets[0])
        kind = {"lanes": lanes, "per_lane": per_lane, "bytes": width.pop()}
        if found and kind.items() <= found[-1].items():
            last = found[-1]
            further = first - last["first"] - (last["repeats"] - 1) * last["per_repeat"]
            if last["repeats"] == 1 or further == last["per_repeat"]:
                last["per_repeat"] = further
                last["repeats"] += 1
                continue
        found.append({"first": first, "repeats": 1, "per_repeat": 0} | kind)
    return found


def _step_of(numbers: Sequence[int]) -> int | None:
    """The difference between neighbours, None if it is not always the same."""
    steps = {after - before for before, after in itertools.pairwise(numbers)} or {0}
    return steps.pop() if len(steps) == 1 else None


def text_of(content: dict[str, Any]) -> str:
    """The file's text."""
    return json.dumps(content, indent=1) + "\n"


def main() -> int:
    FILE.write_text(text_of(traced()), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
