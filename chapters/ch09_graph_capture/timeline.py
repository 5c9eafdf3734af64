"""Which kernel ran when, and which launch started it: a decode step of v1 to v4, by torch.profiler.

    python -m chapters.ch09_graph_capture.timeline [--device cuda] [--output FILE]

The profiler slows the host down, by about as much for each launch. So the order and the kernels' own times can be
trusted, and the gaps of v1 and v2 are too long; how long a step takes is the benchmark's to say.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from chapters.ch09_graph_capture.benchmark import LADDER, launched_as, model_for
from chapters.ch09_graph_capture.starting_batch import StartingBatch
from chapters.ch09_graph_capture.steps.v4_dependent_launch import one_after_the_other
from qwen_cuda.benchmarking import arguments, gpu_slug, provenance, save_json
from qwen_cuda.building import ROOT, BuildError, build
from qwen_cuda.loading import load_operators

RESULTS, CONTEXT, WARM_STEPS = "ch09_timeline", 1024, 4
SHOWN = ("v1", "v2", "v3", "v4")  # a step of v5 is one of v4
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cuda_runtime", "cuda_driver")


def spans(trace: Iterable[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """What of a profiler's trace, in Chrome's format, a timeline shows; µs from the first of it.

    Returns:
        `kernels`: `[name, start, end]` of what ran on the device; `launches`: `[start, end]` of the calls that started
        it. Both in the order of their starts.
    Raises:
        ValueError: nothing ran on the device.
    """
    whole = [event for event in trace if event.get("ph") == "X"]
    on_device = [event for event in whole if event.get("cat") in ON_DEVICE]
    calls = [e for e in whole if e.get("cat") in ON_HOST and any(w in e["name"] for w in ("Launch", "Memcpy"))]
    if not on_device:
        raise ValueError("the trace holds no kernel; was anything launched while the profiler ran?")
    zero = min(event["ts"] for event in (*on_device, *calls))

    def span(event: Mapping[str, Any]) -> list[float]:
        begin = event["ts"] - zero
        return [round(begin, 3), round(begin + event["dur"], 3)]

    return {
        "kernels": sorted(([event["name"], *span(event)] for event in on_device), key=lambda one: one[1]),
        "launches": sorted(span(event) for event in calls),
    }


def profiled_step(decoding: Any) -> dict[str, list[list[Any]]]:
    """Spans of one step, after some that nobody looks at."""
    decoding.begin()
    for _ in range(WARM_STEPS):
        decoding.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        decoding.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return spans(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def measure(device: torch.device) -> dict[str, Any]:
    """The results: a timeline for each of `SHOWN`, one row of `CONTEXT` tokens."""
    start = StartingBatch.of_noise(model_for(device), 1, CONTEXT, WARM_STEPS + 8)
    timelines = {}
    for step in SHOWN:
        with launched_as(step, device):
            timelines[step] = profiled_step(LADDER[step](start))
    return {
        "schema": 1, "chapter": RESULTS, "provenance": provenance(device), "context": CONTEXT, "timelines": timelines,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    options = arguments((__doc__ or "").partition("\n")[0], argv)
    if options.device.type != "cuda":
        print("a timeline is recorded on a GPU: on a CPU nothing is launched.", file=sys.stderr)
        return 2
    try:
        load_operators()
        build(*one_after_the_other())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    results = measure(options.device)
    path = options.output or ROOT / "docs" / "results" / gpu_slug(results["provenance"]["gpu"]) / f"{RESULTS}.json"
    save_json(results, path)
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
