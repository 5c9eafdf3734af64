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
# # Lab 3: one product, two views, three kernels
#
# The [lesson](README.md) fuses SiLU with the product behind it, and packs projections. Here we look at the function, at
# what two orders of rounding make of the same numbers, at views and their memory, and at what the
# kernels ask of it. Nothing needs a GPU; where there is one, the last section times the kernels there. The whole lab
# takes well under a minute on two CPU cores.

# %%
import json
import os
import sys
from functools import partial
from pathlib import Path

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

from chapters.ch03_swiglu.faults import FAULTS, bounds, run
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.loading import using
from qwen_cuda.operators import silu_mul

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch03_swiglu/steps").glob("v*.cu"))}
STEPS["kernels/cuda"] = root / "kernels/cuda/silu_mul.cu"
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, V), strict=True))
HIDDEN, SIZE = 1024, 3072  # of Qwen3-0.6B
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

# %%
# Libraries: the three steps and the engine's kernel, checked, and the two bugs of the lesson.
CHECKED = {step: Library("sim", (path,), "checked") for step, path in STEPS.items()}
built = build(*CHECKED.values(), *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## SiLU, and where it comes from
#
# SiLU is the gate times the share $\sigma(z)$ of it that is let through. Autograd gives its slope; we check it against
# $\sigma(z)\,(1 + z\,(1 - \sigma(z)))$.

# %%
# SiLU and its slope. It is lowest at -1.28, and its slope there is 0; the slope is largest at 2.4, a little above 1.
z = torch.linspace(-8, 8, 801, dtype=torch.float64, requires_grad=True)
value = torch.nn.functional.silu(z)
(slope,) = torch.autograd.grad(value.sum(), z)
at, value = z.detach(), value.detach()
share = torch.sigmoid(at)
assert torch.allclose(slope, share * (1 + at * (1 - share)))
fig, ax = plt.subplots(figsize=(7.2, 3))
ax.axhline(0, color=W, lw=0.6)
ax.plot(at, share, color=W, ls="--", lw=1)
ax.plot(at, slope, color=OTHER)
ax.plot(at, value, color=V, lw=2)
lowest = int(value.argmin())
ax.plot(at[lowest], value[lowest], "o", color=V, ms=5)
ax.annotate(
    f"{value[lowest]:.3f} at {at[lowest]:.2f}", (float(at[lowest]), float(value[lowest])), (-7.5, -0.75), color=V
)
ax.text(2.7, 2.75, "SiLU", color=V, ha="right")
ax.text(5.6, 1.14, "slope", color=OTHER)
ax.text(-4.9, 0.2, "σ, the share", color=W)
ax.set(xlabel="gate", ylim=(-1, 3.5), xlim=(-8, 8))
plt.show()

# %% [markdown]
# ## Rounded once, rounded twice
#
# A million products of normal numbers in bf16: `silu_mul` rounds once, or in Hugging Face's order, `silu(gate)` first.
# The errors are in units of the last place of the true value.

# %%
# Histograms of errors: one rounding ends at half a unit, two reach 1.4. Beside them: a quarter of the results differ.
rows = torch.randn(341, 2 * SIZE, generator=random).bfloat16()
gate, up = rows.double().chunk(2, dim=-1)
truth = torch.nn.functional.silu(gate) * up
unit = 2.0 ** (torch.frexp(truth).exponent - 8)
once, twice = silu_mul(rows), silu_mul(rows, hf_rounding=True)
errors = [((out.double() - truth) / unit).flatten() for out in (once, twice)]
worst = [float(error.abs().max()) for error in errors]
differ = float((once != twice).double().mean())
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), width_ratios=(4, 1))
for error, colour in zip(errors, (V, ACC), strict=True):
    left.hist(error.numpy(), bins=torch.linspace(-1.5, 1.5, 121).tolist(), histtype="step", color=colour, lw=1.5)
top = left.get_ylim()[1]
left.text(0, 1.02 * top, f"once, up to {worst[0]:.2f}", color=V, va="bottom", ha="center")
left.text(0.7, 0.3 * top, f"Hugging Face's order,\nup to {worst[1]:.2f}", color=ACC)
left.set(xlabel="error, ulp of bf16", yticks=[], ylim=(0, 1.2 * top))
right.bar([0], [differ], color=ACC, alpha=0.85)
right.bar([0], [1 - differ], bottom=[differ], color=W, alpha=0.35)
right.text(0, differ / 2, f"{differ:.0%}\ndiffer", ha="center", va="center")
right.set(yticks=[], xticks=[], xlim=(-0.9, 0.9))
plt.show()
plain = torch.nn.functional.silu(rows[:, :SIZE]) * rows[:, SIZE:]
assert worst[0] < 0.51
assert 1.3 < worst[1] < 1.5
assert 0.25 < differ < 0.3
assert (twice != plain).double().mean() < 1e-4  # the bits of PyTorch, but for rare near ties

# %% [markdown]
# ## One weight, two views
#
# A small layer: four numbers in, six for gate and six for up. We mark each row of the packed weight, and find the marks
# again in the columns of the result, and in the places of memory that each view takes.

# %%
# Left: the packed weight, each row with its own shade. Middle: the result, whose columns have the shades of those rows.
# Right: the places in memory that the views gate and up take: runs of six, twelve apart.
tokens, wide = 5, 6
marks = torch.arange(1, 2 * wide + 1, dtype=torch.float32)
packed = marks[:, None] * torch.eye(1, 4)  # row j is j + 1, then zeros
x = torch.eye(1, 4).expand(tokens, 4)
gate_up = x @ packed.T
gate, up = gate_up.split(wide, dim=-1)
assert gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr() == gate_up.untyped_storage().data_ptr()
shades = ListedColormap(["none", *plt.get_cmap("Purples")([0.25 + 0.1 * j for j in range(wide)]).tolist(),
                         *plt.get_cmap("Greys")([0.25 + 0.1 * j for j in range(wide)]).tolist()])  # fmt: skip
fig, axes = plt.subplots(1, 3, figsize=(7.2, 3), width_ratios=(2, 5, 5))
for ax, picture, title in zip(axes[:2], (packed, gate_up), ("packed weight", "gate_up = x · weightᵀ"), strict=True):
    ax.imshow(picture, cmap=shades, vmin=0, vmax=2 * wide, aspect="auto")
    ax.set_title(title, fontsize=9)
    ax.set(xticks=[], yticks=[])
axes[0].set(ylabel="12 rows", xlabel="4 columns")
axes[1].set(ylabel=f"{tokens} tokens", xlabel="12 columns")
places = torch.zeros(2, tokens * 2 * wide)
for line, view in enumerate((gate, up)):
    taken = torch.as_strided(torch.arange(gate_up.numel()), view.shape, view.stride(), view.storage_offset())
    places[line, taken.flatten()] = marks[taken.flatten() % (2 * wide)]
axes[2].imshow(places[:, : 3 * 2 * wide], cmap=shades, vmin=0, vmax=2 * wide, aspect="auto", interpolation="nearest")
axes[2].set_yticks([0, 1], labels=["gate", "up"])
axes[2].set_xticks([0, 6, 12, 18, 24, 30], labels=["0", "6", "12", "18", "24", "30"])
axes[2].set(xlabel="element of memory")
axes[2].set_title(f"strides {gate.stride()}; up begins at {up.storage_offset()}", fontsize=9)
plt.show()
assert gate.stride() == up.stride() == (2 * wide, 1)

# %% [markdown]
# Packing must not change a result. In fp32, at the sizes of Qwen3-0.6B, the products agree up to the order of additions
# in a matrix product, and both views share the memory of `gate_up`.

# %%
# One product and two, on 8 tokens: the largest difference, beside the size of the numbers.
x = torch.randn(8, HIDDEN, generator=random)
weights = [torch.randn(SIZE, HIDDEN, generator=random) / HIDDEN**0.5 for _ in range(2)]
together = (x @ torch.cat(weights).T).split(SIZE, dim=-1)
apart = [x @ weight.T for weight in weights]
furthest = max(float((one - other).abs().max()) for one, other in zip(together, apart, strict=True))
print(f"largest difference {furthest:.1e}, where the numbers are about {float(apart[0].std()):.1f}")
assert furthest < 1e-5

# %% [markdown]
# ## What one warp asks for
#
# `simulator.trace` records every access of a checked kernel. We take the first two loads of the first warp, gate and
# up. v1 asks for two bytes a lane, v2 for sixteen. Hover over a lane or a sector to see its bytes.

# %%
# Gate and up in v1 and in v2: 2 sectors of 32 bytes for 64 useful ones, then 16 for 512. All that comes is used.
pair = torch.randn(16, 2 * SIZE, generator=random).bfloat16()
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        torch.ops.qwen_sim.silu_mul(pair)
for step in ("v1", "v2"):
    for request in TRACES[step].where(target="gate_up", kind="load", block=0, warp=0)[:2]:
        display(HTML(simulator.access_pattern(request).svg()))

# %% [markdown]
# ## Requests, sectors, threads: predicted and traced
#
# By hand, for one row of 3,072: v1 needs 96 requests of 32 elements for each of gate, up and out; the others 12
# requests of 256 elements. All move 576 sectors, 18,432 bytes: what must move. What differs is the number of threads
# that are started.

# %%
# Requests, sectors and threads for each row, by hand (outlined) and traced (filled). v2 leaves a quarter of them idle.
BY_HAND = {step: ((3 * 96 if step == "v1" else 3 * 12), 3 * SIZE * 2 // 32) for step in STEPS}
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.8))
for step, trace in TRACES.items():
    requests = trace.where(space="global")
    sectors = sum(request.transactions.sectors for request in requests)
    (launch,) = trace.launches
    counted = (len(requests) / len(pair), sectors / len(pair), launch.grid[0] * launch.threads / len(pair))
    needed = SIZE if step == "v1" else SIZE // 8
    for ax, hand, found in zip(axes, (*BY_HAND[step], needed), counted, strict=True):
        name = step.replace("kernels/cuda", "engine")
        ax.bar(name, found, color=COLOUR[step], alpha=0.8)
        ax.bar(name, hand, fill=False, edgecolor=W, lw=1.2, width=0.9)
        ax.text(name, found * 1.1, f"{found:,.0f}", ha="center", va="bottom", fontsize=8)
    assert counted[:2] == BY_HAND[step]
for ax, title in zip(axes, ("requests", "sectors of 32 bytes", "threads"), strict=True):
    ax.set(yscale="log", ylim=(10, 12000), yticks=[])
    ax.set_title(f"{title} for each row", fontsize=9)
    ax.tick_params(axis="x", labelsize=8)
    ax.minorticks_off()
plt.show()

# %% [markdown]
# ## A warp, step by step

# %%
# A warp of v3 on one row: gate, up, and the packs of out, written 512 bytes at a time. No barrier and no shuffle.
with simulator.trace(CHECKED["v3"]) as short:
    torch.ops.qwen_sim.silu_mul(pair[:1])
display(HTML(short.timeline(block=0, warp=0).svg()))

# %% [markdown]
# ## A bug that the checker finds, and one that it cannot find
#
# One thread too many reads packs that belong to somebody else, and only on the last row does it leave the tensor:

# %%
# The report of the checked simulator: a read past the end, by the last row's thread that should not have taken part.
display(Markdown(f"```message\n{bounds()}\n```"))

# %% [markdown]
# The other kernel takes `2 * size` for the distance between rows. On packed rows that is right. We run it on a slice of
# a wider tensor, in the same checked simulator. It has nothing to report: every address lies in the tensor.

# %%
# Left: rows packed and nothing else, all right. Right: the same as a slice of a wider tensor; all but row 0 are wrong.
within = torch.randn(6, 3 * 256, generator=random).bfloat16()
slices = {"packed rows": within[:, :512].contiguous(), "a slice of wider rows": within[:, :512]}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 1.9), sharey=True)
for ax, (name, rows) in zip(axes, slices.items(), strict=True):
    good = torch.isclose(run(FAULTS["stride"].library, rows).float(), silu_mul(rows).float(), rtol=2**-7)
    ax.imshow(good, cmap=ListedColormap([ACC, "none"]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set(xlabel="element of out")
    ax.set_title(f"{name}, strides {rows.stride()}", fontsize=9)
    if name == "packed rows":
        assert good.all()
    else:
        assert good[0].all()
        assert not good[1:].all(dim=-1).any()
axes[0].set(ylabel="row", yticks=[0, 5])
plt.show()

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there: calls in a CUDA graph, on operands that no cache holds. Without one
# it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version against the number of rows, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → rows → µs."""
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    found: dict[str, dict[int, float]] = {step: {} for step in STEPS}

    def call(gate_up: Tensor) -> Tensor:
        out: Tensor = torch.ops.qwen_cuda.silu_mul(gate_up)
        return out

    for count in (1, 16, 128, 1024, 8192):
        sets = [torch.randn(count, 2 * SIZE, device="cuda").bfloat16() for _ in range(max(2, min(64, 2**14 // count)))]
        inside = {step: partial(using, library) for step, library in libraries.items()}
        calls = {step: [partial(call, one) for one in sets] for step in STEPS}
        for step, us in graph_timing(calls, torch.device("cuda"), inside=inside).items():
            found[step][count] = us.median
    return found


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    found: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch03_swiglu.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        kind = (case["op"], case["variant"], case["dtype"], case["cache"], case["shape"].get("size"))
        if kind == ("silu_mul", "ours", "bfloat16", "cold", SIZE):
            found.setdefault(case["step"] or "kernels/cuda", {})[case["shape"]["rows"]] = case["us"]["median"]
    return found


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for step, by_rows in sorted(times.items(), reverse=True):
        ax.loglog(list(by_rows), list(by_rows.values()), "o-", ms=4, color=COLOUR[step], label=step)
    counts = sorted(times["v1"])
    ax.set_xticks(counts, labels=[f"{count:,}" for count in counts])
    ax.set(xlabel=f"rows of {SIZE:,} elements, bf16", ylabel="µs")
    ax.legend(frameon=False, labelcolor="linecolor")
    ax.minorticks_off()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 3` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Draw the errors in fp16 instead of bf16, in units of the last place of fp16. What changes, and what does not?
# 2. Trace v2 on `within[:, 1:513]`. How many requests does it need for a row now, and which condition of its launcher
#    failed?
# 3. Plant a bug: exchange gate and up in v1. Does the checker notice? Does a test with gate equal to up?
# 4. Trace the engine's kernel on `pair[:, : 2 * 1000]`. How many of its threads have no pack of their own?
# 5. Write GELU in place of SiLU with an `Edit` of `return z / (1.0f + expf(-z));`, and compare with PyTorch's.
