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
# # Lab 7: a matrix, and one row
#
# The [lesson](README.md) multiplies a few rows by a large matrix, with the norm before and SiLU or a sum behind. Here
# we look at what each version asks of memory, at how a row becomes a tile of a tensor core, at the order of additions,
# and at two bugs. Nothing needs a GPU; where there is one, the last section times the kernels there. The whole lab
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
from matplotlib_inline.backend_inline import set_matplotlib_formats

from chapters.ch07_decode_gemv import candidates
from chapters.ch07_decode_gemv.candidates import LAYERS
from chapters.ch07_decode_gemv.faults import FAULTS, meeting, numbers, run
from qwen3_ref import functional
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.loading import using
from qwen_cuda.operators import decode_linear

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch07_decode_gemv/steps").glob("v*.cu"))}
STEPS["engine"] = root / "kernels/cuda/decode_linear.cu"
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, Q, V), strict=True))

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
# Libraries: three versions, checked, and the two bugs of the lesson.
CHECKED = {step: Library("sim", (STEPS[step],), "checked") for step in ("v1", "v2", "engine")}
built = build(*CHECKED.values(), *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## A norm that comes last
#
# The factor of the norm does not depend on the column, so it can be multiplied in when the sum is done. Hugging Face's
# order rounds the normed row to bf16 first. We compare both with float64, on a layer of 1,024 columns.

# %%
# Histograms of errors, in units of the last place of bf16: the factor last ends at half a unit, a rounded row does not.
x, gain, weight = numbers(8, 1024), numbers(1024, seed=1), numbers(512, 1024, seed=2, by=1 / 32)
truth = functional.fused_linear(x.double(), weight.double(), norm_weight=gain.double())
rounded = torch.nn.functional.linear(functional.rms_norm(x, gain, 1e-6, "hf"), weight)
size = truth.square().mean().sqrt()
unit = 2.0 ** (torch.frexp(torch.maximum(truth.abs(), size)).exponent - 8)
errors = [((out.double() - truth) / unit).flatten() for out in (decode_linear(x, weight, norm_weight=gain), rounded)]
worst = [float(error.abs().max()) for error in errors]
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for error, colour in zip(errors, (V, ACC), strict=True):
    ax.hist(error.numpy(), bins=torch.linspace(-1.5, 1.5, 121).tolist(), histtype="step", color=colour, lw=1.5)
top = ax.get_ylim()[1]
ax.text(0.55, 0.9 * top, f"the factor last, up to {worst[0]:.2f}", color=V)
ax.text(0.55, 0.7 * top, f"a normed row in bf16, up to {worst[1]:.2f}", color=ACC)
ax.set(xlabel="error, ulp of bf16", yticks=[])
plt.show()
assert worst[0] < 0.51 < worst[1]

# %% [markdown]
# ## What one warp asks for
#
# `simulator.trace` records every access of a checked kernel. We multiply one row by 32 rows of 1,024 weights, and take
# the first request for weights. v1 asks for two bytes a lane, v2 and the engine for sixteen. Hover over a lane or a
# sector to see its bytes.

# %%
# The first request for weights in v1 and in the engine: 2 sectors of 32 bytes for 64 useful ones, then 16 for 512.
given = numbers(1, 1024), numbers(32, 1024, seed=3)
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        torch.ops.qwen_sim.decode_linear(*given)
for step in ("v1", "engine"):
    request = TRACES[step].where(target="weight", kind="load", block=0, warp=0)[0]
    display(HTML(simulator.access_pattern(request).svg()))

# %% [markdown]
# ## Requests: predicted and traced
#
# By hand, for each row of 1,024 weights: v1 needs 32 requests for weights and as many for x. With 16 bytes a lane, 4
# for weights. v2 reads x for four rows at once: 4 requests for 4 rows. The engine's warp has 256 columns of 16 rows:
# 4 warps read x once each, for all 16 rows of the block.

# %%
# Requests for weights and for x, for each row of W: by hand (outlined) and traced (filled).
BY_HAND = {"v1": (32, 32), "v2": (4, 1), "engine": (4, 0.25)}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.4))
for step, trace in TRACES.items():
    counts = [len(trace.where(target=target, kind="load")) / len(given[1]) for target in ("weight", "x")]
    for ax, hand, found in zip(axes, BY_HAND[step], counts, strict=True):
        ax.bar(step, found, color=COLOUR[step], alpha=0.8)
        ax.bar(step, hand, fill=False, edgecolor=W, lw=1.2, width=0.9)
        ax.text(step, found, f"{found:g}", ha="center", va="bottom", fontsize=8)
    assert tuple(counts) == BY_HAND[step]
for ax, title in zip(axes, ("for weights", "for x"), strict=True):
    ax.set(yticks=[])
    ax.margins(y=0.15)
    ax.set_title(f"requests {title}, each row of W", fontsize=9)
plt.show()

# %% [markdown]
# ## A warp, step by step

# %%
# A warp of the engine: sixteen requests for weights, one for x, a barrier, its tiles, and another barrier.
display(HTML(TRACES["engine"].timeline(block=0, warp=0).svg()))

# %% [markdown]
# ## A row becomes a tile
#
# `mma.m16n8k16` adds `a: [16, 16]` times `b: [16, 8]` to `d: [16, 8]`. A lane that loads 16 bytes has eight neighbours
# of one row, four words. Words 0 and 2 become row g of a, words 1 and 3 row g + 8; so x becomes two columns of b. What
# is wanted lies in rows 0 to 7 of the first column and in rows 8 to 15 of the second.

# %%
# d of one tile, as sizes of its numbers. Outlined: what is added up; the pair of each row is its product with x.
eight_rows, columns = torch.randn(8, 32, generator=torch.Generator().manual_seed(4)), torch.randn(32)
a, b = torch.zeros(16, 16), torch.zeros(16, 8)
for t in range(4):  # the lanes that share a row
    low, high = slice(2 * t, 2 * t + 2), slice(2 * t + 8, 2 * t + 10)
    words = eight_rows[:, 8 * t : 8 * t + 8].view(8, 4, 2)
    a[:8, low], a[8:, low], a[:8, high], a[8:, high] = words.unbind(1)
    b[low, 0], b[low, 1], b[high, 0], b[high, 1] = columns[8 * t : 8 * t + 8].view(4, 2)
d = a @ b
product = d[:8, 0] + d[8:, 1]
torch.testing.assert_close(product, eight_rows @ columns)
fig, ax = plt.subplots(figsize=(7.2, 3))
ax.imshow(d.abs(), cmap="Greys", aspect="auto")
for i in range(16):
    ax.add_patch(plt.Rectangle((i // 8 - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=ACC, lw=1.5))
ax.set(xlabel="column: 0 and 1 are x, the others wait for its other parts", ylabel="row", xticks=range(8))
plt.show()

# %% [markdown]
# The other columns hold what bf16 cuts off. Two parts of x keep 16 bits, three keep all 24.

# %%
# What is left of x after one, two and three parts, relative to x: the largest of 10,000 numbers, in bits.
wide = torch.randn(10_000, generator=torch.Generator().manual_seed(8))
rest, kept = wide.double(), []
for _ in range(3):
    rest = rest - rest.bfloat16().double()
    kept.append(float((rest.abs() / wide.abs()).max()))
print(", ".join(f"2^{torch.tensor(k).log2():.1f}" if k else "nothing" for k in kept))
assert all(k <= bound for k, bound in zip(kept, (2.0**-8, 2.0**-16, 0), strict=True))

# %% [markdown]
# ## One order
#
# Additions of floats are not associative. A sum over 2,048 columns, cut in 1 to 8 segments that are added as they come
# in random order, has many results; in one fixed order it has one. The engine's kernel gives a row the same bits alone
# and among eight.

# %%
# How many different float32 results 200 random orders of 8 segments give; and our kernel, alone and in a batch: equal.
row, matrix = numbers(8, 2048), numbers(20, 2048, seed=5)
parts = (row[0].float() * matrix[0].float()).view(8, 256).sum(1)
orders = [torch.randperm(8, generator=torch.Generator().manual_seed(seed)) for seed in range(200)]
results = {float(sum(parts[order], torch.tensor(0.0))) for order in orders}
engine = CHECKED["engine"]
batch = run(engine, row, matrix, out_dtype=torch.float32)
alone = [run(engine, row[i : i + 1], matrix, out_dtype=torch.float32) for i in range(8)]
assert torch.equal(torch.cat(alone), batch)
print(f"{len(results)} results of 200 orders; alone and in a batch of 8: the same bits")
assert len(results) > 1

# %% [markdown]
# ## A bug that the checker finds, and one that it cannot find
#
# Rows of 18 segments, blocks of up to 8 warps: the sums of three turns meet in shared memory. With one meeting place
# instead of two:

# %%
# The report of the checked simulator: a race between a lane that writes its next sum and one that adds the last ones.
display(Markdown(f"```message\n{meeting()}\n```"))

# %% [markdown]
# The other kernel forgets the norm's factor for up. Every access is in order, every number finite:

# %%
# Faulty ÷ right, for rows of five sizes: the root mean square of x. Only rows of size one are right.
sizes, gain = (0.25, 0.5, 1.0, 2.0, 4.0), torch.ones(256).bfloat16()
unit_row = numbers(1, 256).float()
unit_row /= unit_row.square().mean().sqrt()
weight = numbers(16, 256, seed=6, by=1 / 16)
ratios = []
for factor in sizes:
    row = unit_row * factor
    wrong = run(
        FAULTS["up is not normed"].library, row, weight, norm_weight=gain, silu_mul=True, out_dtype=torch.float32
    )
    right = decode_linear(row, weight, norm_weight=gain, silu_mul=True, out_dtype=torch.float32)
    ratios.append(float((wrong / right).median()))
fig, ax = plt.subplots(figsize=(7.2, 2))
ax.bar([f"{factor:g}" for factor in sizes], ratios, color=[V if abs(r - 1) < 0.01 else ACC for r in ratios])
for place, ratio in enumerate(ratios):
    ax.text(place, ratio + 0.05, f"{ratio:.2f}", ha="center", fontsize=9)
ax.axhline(1, color=W, ls="--", lw=1)
ax.set(xlabel="root mean square of x", ylabel="result ÷ truth", ylim=(0, 4.6))
plt.show()
assert all(abs(ratio / factor - 1) < 0.01 for ratio, factor in zip(ratios, sizes, strict=True))

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there: calls in a CUDA graph, on weights that no cache holds. Without one
# it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version on the four layers of a decoder layer, on this machine's GPU or from stored results of an H200.
FOUR = [layer for layer in LAYERS if layer.op != "head"]


def on_this_gpu() -> dict[str, dict[str, float]]:
    """Version → layer → µs."""
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    found: dict[str, dict[str, float]] = {step: {} for step in STEPS}
    for layer in FOUR:
        make = candidates.operands(layer, torch.device("cuda"))
        ours = next(candidates.ours(layer, on_gpu=False))
        sets = [make(number) for number in range(24)]
        inside = {step: partial(using, library) for step, library in libraries.items()}
        calls = {step: [partial(ours.run, one) for one in sets] for step in STEPS}
        for step, us in graph_timing(calls, torch.device("cuda"), inside=inside).items():
            found[step][layer.op] = us.median
    return found


def stored() -> dict[str, dict[str, float]]:
    """The same from docs/results; empty without a file."""
    found: dict[str, dict[str, float]] = {}
    file = root / "docs/results/h200/ch07_decode_gemv.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        wanted = {layer.op: {"rows": 1, "n": layer.n, "k": layer.k} for layer in FOUR}
        kind = (case["variant"], case["dtype"], case["cache"], case["shape"])
        if kind == ("ours", "bfloat16", "cold", wanted.get(case["op"])):
            found.setdefault(case["step"] or "engine", {})[case["op"]] = case["us"]["median"]
    return found


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3))
    for place, (step, by_layer) in enumerate(sorted(times.items(), key=lambda item: list(STEPS).index(item[0]))):
        where = [i + 0.16 * (place - 2) for i in range(len(FOUR))]
        ax.bar(where, [by_layer.get(layer.op, 0) for layer in FOUR], 0.14, color=COLOUR[step], label=step)
    ax.set_xticks(range(len(FOUR)), labels=[f"{layer.op}\n{layer.k:,} → {layer.n:,}" for layer in FOUR])
    ax.set(ylabel="µs, one token, bf16")
    ax.legend(frameon=False, labelcolor="linecolor")
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 7` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Trace the engine on `x` in float32. Which bars change, and which do not?
# 2. Trace it on 1,023 columns. How many requests for weights does a row need now, and which condition failed?
# 3. Give `halving` 32 sums, then 8. How many shuffles for each?
# 4. Exchange two distances in `one_by_one`. Are the sums equal to those of `halving`? Are they as near to the truth?
# 5. Take `kTurnWarps = 8` down to 4 with an `Edit`. Which results change?
