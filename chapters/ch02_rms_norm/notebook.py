# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 2: five kernels on the workbench
#
# The [lesson](README.md) climbs a ladder of five kernels. Here we run them all, watch what they touch, break them, and
# count. Nothing needs a GPU: the kernels run in the simulator. Where there is a GPU, the last section times them. The
# whole lab takes under a minute on two CPU cores, and the compiler has most of it.

# %%
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the simulator needs the cores

import matplotlib.pyplot as plt
import torch
from IPython.display import HTML, Markdown, display
from matplotlib.colors import ListedColormap
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chapters.ch02_rms_norm.faults import FAULTS, report
from qwen3_ref import functional as F
from qwen_cuda import operators, simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import using

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch02_rms_norm/steps").glob("v*.cu"))}
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, Q, V), strict=True))
EPS = 1e-6
random = torch.Generator().manual_seed(0)

# %% tags=["hide"]
# Figures as vector graphics. The site brings its own style; elsewhere, grey text reads on white and on black.
if "MATPLOTLIBRC" not in os.environ:
    plt.rc("text", color="#808080")
    plt.rc("axes", labelcolor="#808080", edgecolor="#808080", facecolor="none")
    plt.rc("xtick", color="#808080")
    plt.rc("ytick", color="#808080")
    plt.rc("figure", facecolor="none")
    plt.rc("savefig", facecolor="none")
    plt.rc("figure.constrained_layout", use=True)
set_matplotlib_formats("svg")

# %% [markdown]
# Every kernel of this page is one `.cu` file, built by the C++ compiler. *Plain* builds are fast; *checked* ones watch
# each load and store. An `Edit` plants a bug, or another idea, without touching the file.

# %%
# Libraries: the five steps, four of them checked as well, the three bugs of the lesson, and v2 with another tree.
PLAIN = {step: Library("sim", (path,)) for step, path in STEPS.items()}
CHECKED = {step: Library("sim", (STEPS[step],), "checked") for step in ("v1", "v2", "v3", "v4")}
race = FAULTS["barrier"].library
RACE = Library("sim", race.sources, "plain", race.edits)
OTHER_TREE = Library("sim", (STEPS["v2"],), "checked", (Edit(
    STEPS["v2"].name,
    """\
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // the level above is written before this one reads it
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
""",
    """\
  for (unsigned apart = 1; apart < kThreads; apart *= 2) {
    __syncthreads();
    const unsigned i = 2 * apart * threadIdx.x;
    if (i < kThreads) partial[i] += partial[i + apart];
  }
""",
),))  # fmt: skip
built = build(*PLAIN.values(), *CHECKED.values(), RACE, OTHER_TREE, *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## What PyTorch moves
#
# We let PyTorch report every operation of the formula, and add up the bytes of its inputs and outputs. Views touch no
# data and are left out.

# %%
# Bytes for each element of a row: PyTorch's operations with the addition move 42, of which a fused kernel needs 8.
VIEWS = {"view", "unsqueeze", "expand", "detach", "t", "slice", "select", "as_strided", "alias"}


class Traffic(TorchDispatchMode):
    """Bytes in and out of each operation that reaches PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            read = sum(arg.nbytes for arg in args if isinstance(arg, Tensor))
            self.moved.append((name.strip("_"), read, out.nbytes))
        return out


rows, hidden = 64, 1024
x, residual = torch.randn(2, rows, hidden, generator=random).bfloat16()
weight = (1 + 0.2 * torch.randn(hidden, generator=random)).bfloat16()
with Traffic() as traffic:
    F.rms_norm(x + residual, weight, EPS)
fig, ax = plt.subplots(figsize=(7.2, 2.2))
end = 0.0
for name, *sides in traffic.moved:
    begin = end
    for size, alpha in zip(sides, (0.9, 0.45), strict=True):
        ax.barh(1, size / x.numel(), left=end, color=ACC, alpha=alpha, height=0.5, lw=0)
        end += size / x.numel()
    if end - begin > 1:
        ax.text((begin + end) / 2, 1.3, name, ha="center", va="bottom", fontsize=8, rotation=35)
for begin, alpha in ((0, 0.9), (2, 0.9), (4, 0.45), (6, 0.45)):
    ax.barh(0, 1.9, left=begin, color=V, alpha=alpha, height=0.5, lw=0)
ax.text(end + 0.5, 1, f"{end:.1f} bytes", va="center")
ax.text(8.5, 0, "8 bytes: both inputs, both outputs", va="center", color=V)
ax.set_yticks([0, 1], labels=["one kernel", "PyTorch"])
ax.set(xlim=(0, 50), ylim=(-0.5, 2.2), xlabel="bytes for each element: read dark, written light")
plt.show()
assert 42 <= end < 42.2

# %% [markdown]
# ## The ladder gives right answers
#
# All five versions on the same rows, against float64. In bf16 the answer is dull: half a unit in the last place, the
# one rounding. In fp32 the additions show.


# %%
# Left: the fp32 error of v1 grows with the length of the row, the others' does not. Right: in bf16 all are alike.
def run(step: str, x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm by one version, in the simulator."""
    with using(PLAIN[step]):
        out: Tensor = torch.ops.qwen_sim.rms_norm(x, weight, EPS)
    return out


def errors(step: str, x: Tensor, weight: Tensor) -> Tensor:
    """|error| in units in the last place."""
    truth = F.rms_norm(x.double(), weight.double(), EPS)
    digits = {torch.bfloat16: 8, torch.float32: 24}[x.dtype]
    return (run(step, x, weight).double() - truth).abs() / 2.0 ** (torch.frexp(truth).exponent - digits)


sizes = [2**i for i in range(5, 14)]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3), width_ratios=(3, 2))
worst = {}
for step, colour in COLOUR.items():
    wide = {size: torch.randn(16, size, generator=torch.Generator().manual_seed(size)) for size in sizes}
    medians = [float(errors(step, wide[size], torch.ones(size)).median()) for size in sizes]
    left.semilogx(sizes, medians, "o-", ms=3, color=colour, base=2)
    if step in ("v1", "v5"):
        left.text(sizes[-1] * 1.3, medians[-1], step if step == "v1" else "v2 to v5", color=colour, va="center")
    worst[step] = float(errors(step, x, weight).max())
left.set(
    xlabel="elements of the row", ylabel="median error, ulp of fp32", xlim=(sizes[0], sizes[-1] * 8), ylim=(0, None)
)
right.bar(list(worst), list(worst.values()), color=list(COLOUR.values()), alpha=0.85)
right.set(ylabel="largest error, ulp of bf16", ylim=(0, 0.62))
plt.show()
assert all(error < 0.51 for error in worst.values())

# %% [markdown]
# v1 adds a row as one chain. The sum grows, the terms do not, and each addition rounds relative to the sum. The others
# add many short chains side by side and join them in a tree, so no term goes through more than a few dozen roundings.
# What is faster is also more exact.
#
# ## What one load of a warp asks for
#
# `simulator.trace` records every access of a checked kernel. We take the first load of $x$ by the first warp, in three
# versions. Hover over a lane or a sector to see its bytes.

# %%
# The first load of x in v1, v2 and v4: 32 lanes ask for 32 sectors, for 2 and for 16, and use 6 %, all and all of them.
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        torch.ops.qwen_sim.rms_norm(x[:32], weight, EPS)
for step in ("v1", "v2", "v4"):
    display(HTML(simulator.access_pattern(TRACES[step].where(target="x", kind="load", warp=0)[0]).svg()))

# %% [markdown]
# ## Traffic, predicted and traced
#
# By hand, for one row of 1,024 elements of bf16: v1 to v3 issue a request for each 32 elements, for $x$ twice,
# $\gamma$ and $y$; v4 for each 256, and for $x$ once. v1 touches 32 sectors with each of them (one, with $\gamma$,
# which all lanes read alike), v2 and v3 two, v4 sixteen.

# %%
# Requests and sectors for each row, by hand (outlined) and traced (filled): v4 needs 12 requests, the others 128.
BY_HAND = {
    "v1": (4 * 32, (3 * 32 * 32 + 32)),
    "v2": (4 * 32, 4 * 32 * 2),
    "v3": (4 * 32, 4 * 32 * 2),
    "v4": (3 * 4, 3 * 4 * 16),
}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.8))
for step, trace in TRACES.items():
    requests = trace.where(space="global")
    counted = (len(requests) / 32, sum(request.transactions.sectors for request in requests) / 32)
    for ax, hand, found in zip(axes, BY_HAND[step], counted, strict=True):
        ax.bar(step, found, color=COLOUR[step], alpha=0.8)
        ax.bar(step, hand, fill=False, edgecolor=W, lw=1.2, width=0.9)
        ax.text(step, found * 1.08, f"{found:,.0f}", ha="center", va="bottom")
        assert hand == found
for ax, title in zip(axes, ("requests", "sectors of 32 bytes"), strict=True):
    ax.set(yscale="log", ylim=(5, 9000), title=f"{title} for each row", yticks=[])
    ax.minorticks_off()
plt.show()

# %% [markdown]
# Most of v1's sectors are asked for again and again: a row has 64 of them. If the cache keeps them between two turns
# of the loop, memory sees each once. The requests to that cache remain.
#
# ## One warp, step by step
#
# The same trace, read in time: what the first warp of v3 does for a row of 256 elements.

# %%
# A warp of v3: one load, five shuffles, one word to shared memory, a barrier, eight words back, and the row is written.
with simulator.trace(CHECKED["v3"]) as short:
    torch.ops.qwen_sim.rms_norm(x[:1, :256].contiguous(), weight[:256], EPS)
display(HTML(short.timeline(block=0, warp=0).svg()))

# %% [markdown]
# ## Banks
#
# Shared memory has 32 banks; word $w$ lies in bank $w \bmod 32$, and a bank serves one word at a time. v2's tree adds
# the upper half to the lower half, so neighbouring lanes read neighbouring words. One could as well add neighbours
# first, then every second sum, every fourth, … The result is the same. The addresses are not.

# %%
# Above: the worst load of the other tree, 32 lanes on 4 banks. Below: how often each load of warp 0 must ask the banks.
with simulator.trace(OTHER_TREE) as other:
    torch.ops.qwen_sim.rms_norm(x[:1], weight, EPS)
loads = {
    "other tree": other.where(target="partial", kind="load", block=0, warp=0),
    "v2's tree": TRACES["v2"].where(target="partial", kind="load", block=0, warp=0),
}
display(HTML(simulator.bank_map(max(loads["other tree"], key=lambda load: load.bank_conflicts)).svg()))
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.3), sharey=True)
for ax, (name, of_tree), colour in zip(axes, loads.items(), (ACC, V), strict=True):
    ax.bar(range(1, len(of_tree) + 1), [1 + load.bank_conflicts for load in of_tree], color=colour, alpha=0.85)
    ax.set(title=name, xlabel="load of shared memory", yticks=[1, 2, 4, 8])
axes[0].set(ylabel="times the banks are asked")
plt.show()
assert all(load.bank_conflicts == 0 for load in loads["v2's tree"])

# %% [markdown]
# ## A race, in thirty schedules
#
# We delete the last barrier of v2. A GPU promises no order among warps, so the simulator can run the threads in any,
# each seed another. How many elements come out wrong depends on the order alone, and that is what makes a race so hard
# to find: run in order, nearly everything is right.

# %%
# One row of 256 elements, computed under thirty schedules without v2's last barrier. Red: a wrong element.
row = torch.randn(1, 256, generator=random)
truth = F.rms_norm(row, torch.ones(256), EPS)
good = []
with using(RACE):
    for seed in range(30):
        with simulator.options(seed=seed):
            good.append(torch.isclose(torch.ops.qwen_sim.rms_norm(row, torch.ones(256), EPS), truth)[0])
fig, ax = plt.subplots(figsize=(7.2, 3))
ax.imshow(torch.stack(good), cmap=ListedColormap([ACC, "none"]), aspect="auto", interpolation="nearest", vmin=0, vmax=1)
ax.set(xlabel="element, and the thread that computes it", ylabel="schedule")
ax.set_yticks([0, 10, 20, 29], labels=["in order", "10", "20", "29"])
plt.show()
assert good[0].sum() > 250
assert not torch.stack(good).all()

# %% [markdown]
# ## What the checker says
#
# The checked simulator needs one run, in order. These are the three bugs of the lesson and their reports.

# %%
# The reports of the checked simulator for a missing barrier, a read past the end of a row, and a wrong mask.
for name, fault in FAULTS.items():
    lines = [f"**{name}**, in `{fault.step}.cu`", "", "```diff", *(f"-{line}" for line in fault.old.splitlines())]
    lines += [*(f"+{line}" for line in fault.new.splitlines()), "```", "", "```message", report(fault), "```"]
    display(Markdown("\n".join(lines)))

# %% [markdown]
# ## Times
#
# The simulator has no clock that means anything. With a GPU, this cell times every version there: calls in a CUDA
# graph, on operands that no cache holds. Without one it shows what the benchmark has measured on an H200, if that lies
# in the repository.


# %%
# Time of each version against the number of rows, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → rows → µs."""
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    found: dict[str, dict[int, float]] = {step: {} for step in STEPS}
    for count in (1, 16, 128, 1024, 8192):
        sets = [torch.randn(count, hidden, device="cuda").bfloat16() for _ in range(max(2, min(64, 2**17 // count)))]
        calls = [partial(operators.rms_norm, one, weight.cuda(), EPS) for one in sets]
        inside = {step: partial(using, library) for step, library in libraries.items()}
        for step, us in graph_timing(dict.fromkeys(STEPS, calls), torch.device("cuda"), inside=inside).items():
            found[step][count] = us.median
    return found


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    found: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch02_rms_norm.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        kind = (case["op"], case["variant"], case["dtype"], case["cache"], case["shape"]["hidden"])
        if kind == ("rms_norm", "ours", "bfloat16", "cold", hidden) and case["step"]:
            found.setdefault(case["step"], {})[case["shape"]["rows"]] = case["us"]["median"]
    return found


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for step, by_rows in sorted(times.items()):
        ax.loglog(list(by_rows), list(by_rows.values()), "o-", ms=4, color=COLOUR[step])
        ax.text(max(by_rows) * 1.2, by_rows[max(by_rows)], step, color=COLOUR[step], va="center")
    counts = sorted(times["v1"])
    ax.set_xticks(counts, labels=[f"{count:,}" for count in counts])
    ax.set(xlabel="rows of 1,024 elements, bf16", ylabel="µs", xlim=(0.8, 3 * counts[-1]))
    ax.minorticks_off()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 2` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Plant a bug of your own: an `Edit` names a file, a text that occurs in it once, and what shall stand there
#    instead. Can you find one that the checker does not see and a comparison does? And the reverse?
# 2. Delete the barrier *inside* v2's loop instead of the last one. Why does the report now also speak of memory that
#    nobody has written?
# 3. Call `block_sum` twice in v3, with the same `partial`. What is reported, and which barrier is missing?
# 4. Give v2 blocks of 96 threads. Where does the tree go wrong, and on which sizes?
# 5. Trace `v4` on `x[:, 1:]`, rows of 1,023 elements at odd addresses. How many requests and sectors does the
#    element-wise form ask for?
# 6. Pad the other tree: put element $i$ of `partial` at $i + \lfloor i / 32 \rfloor$. Which conflicts go away, and
#    why?
