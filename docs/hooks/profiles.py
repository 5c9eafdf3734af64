"""docs/results/<gpu>/chNN_profile.json → what the profiler read of a chapter's kernels, as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.hooks import ROOT, measured
from docs.hooks.operator_tables import counted

_NOTHING = (
    "*No profile is in the repository yet: `python -m qwen_cuda.benchmarking.profile {module}` on a GPU writes one.*\n"
)
_COLUMNS = {
    "µs": ("time_us", "{:,.1f}"),
    "DRAM, % of peak": ("dram_percent", "{:.0f}"),
    "L2 hits, %": ("l2_hit_percent", "{:.0f}"),
    "occupancy, %": ("occupancy_percent", "{:.0f}"),
    "its limit, %": ("occupancy_limit_percent", "{:.0f}"),
    "sectors a load": ("load_sectors_per_request", "{:.1f}"),
    "registers": ("registers", "{:.0f}"),
}
_KIND = ("op", "step", "dtype")  # what a case holds besides its shape
_REASONS = {
    "barrier": "the barrier",
    "drain": "stores on their way",
    "imc_miss": "constants",
    "lg_throttle": "the queue of memory instructions",
    "long_scoreboard": "memory",
    "math_pipe_throttle": "the arithmetic units",
    "mio_throttle": "the queue of shared memory",
    "no_instruction": "instructions",
    "not_selected": "other warps' turns",
    "selected": "its own turn",
    "short_scoreboard": "shared memory or a shuffle",
    "wait": "the instruction before",
}


def passage(chapter: str, module: str, root: Path = ROOT, table: int = 1) -> str:
    """The table of `chapter`, such as ch02, and what follows from it; how to make one where there is none.

    `module` is what the profile is made from, `table` the number of the table on its page. Of several GPUs' profiles
    the main one's is shown.
    """
    profile = measured.stored(root, f"{chapter}_profile")
    return render(profile, table) if profile else _NOTHING.format(module=module)


def render(profile: dict[str, Any], table: int = 1) -> str:
    """Markdown of a results file."""
    where, kernels = profile["provenance"], profile["kernels"]
    columns = {title: key for title, key in _COLUMNS.items() if any(key[0] in k["figures"] for k in kernels)}
    lines = [
        "| kernel | " + " | ".join(columns) + " | a warp waits for |",
        "|---|" + "---:|" * len(columns) + "---|",
        *(
            f"| {_title(kernel['case'])} | {' | '.join(_cells(kernel, list(columns.values())))} | {_waits(kernel)} |"
            for kernel in kernels
        ),
        "",
        f"*Table {table}.* What ncu read of these kernels on one {where['gpu']}, {where['date'][:10]}, clocks as they",
        "were, caches emptied before each kernel. What is written stays in L2 after the kernel has ended, so *DRAM*",
        "counts little more than what was read. In brackets: how many warps waited for this reason, on average, for",
        "each instruction that was issued.",
        "",
    ]
    return "\n".join([*lines, *_reading(kernels)])


def _title(case: dict[str, Any]) -> str:
    shape = _shape(case)
    words = [f"{n:,}" if isinstance(n, int) else n for n in shape.values()]
    sizes = [counted(n, name) for name, n in shape.items()] if len(shape) == 1 else words
    return f"`{case['op']}` {case.get('step', 'kernels/cuda')}, {' × '.join(sizes)}"


def _shape(case: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a case, or the name of a format, whatever the chapter calls them; rows or tokens come first."""
    return {name: value for name, value in case.items() if name not in _KIND}


def _cells(kernel: dict[str, Any], columns: list[tuple[str, str]]) -> list[str]:
    figures = kernel["figures"]
    return [form.format(figures[name]) if name in figures else "–" for name, form in columns]


def _waits(kernel: dict[str, Any]) -> str:
    """The two reasons for which most warps wait; that they run is none."""
    waits = [(reason, warps) for reason, warps in kernel["stalls"].items() if reason != "selected"]
    waits = sorted(waits, key=lambda wait: -wait[1])[:2]
    return ", ".join(f"{_REASONS.get(reason, f'`{reason}`')} ({warps:.1f})" for reason, warps in waits) or "–"


def _reading(kernels: list[dict[str, Any]]) -> list[str]:
    """What the first step of a ladder and our kernel differ in, at the largest shape on which both were profiled."""
    steps: dict[tuple[str, tuple[Any, ...]], dict[str | None, dict[str, float]]] = {}
    for kernel in kernels:
        case = kernel["case"]
        steps.setdefault((case["op"], tuple(_shape(case).values())), {})[case.get("step")] = kernel["figures"]
    both = {key: of for key, of in steps.items() if None in of and len(of) > 1}
    if not both:
        return []
    of = both[max(both, key=lambda key: key[1])]
    step = min(name for name in of if name is not None)
    first, ours = of[step], of[None]
    sectors, dram = "load_sectors_per_request", "dram_percent"
    if not all(name in figures for figures in (first, ours) for name in (sectors, dram)):
        return []
    return [
        f"A load of {step} touches {first[sectors]:.0f} sectors of 32 bytes, one of ours {ours[sectors]:.0f},",
        "on average.",
        f"Memory is busy for {first[dram]:.0f} % of its peak with {step}, for {ours[dram]:.0f} % with ours.",
        "",
    ]
