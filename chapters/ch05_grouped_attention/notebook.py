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
# # Lab 5: a softmax that does not wait
#
# The [lesson](README.md) turns attention into a sum that can be built up in any order, and then into a kernel. Here we
# watch the sum grow, merge parts in random trees, trace what each version of the kernel asks of memory, and plant the
# bugs of the lesson. Nothing needs a GPU; where there is one, the last section times the kernels there. The whole lab
# takes well under a minute on two CPU cores.

# %%
import json
import os
import random
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
from torch import Tensor

from chapters.ch05_grouped_attention import candidates
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch05_grouped_attention.faults import FAULTS, barrier, of_scores, run
from qwen3_ref.functional import Partial, attention_naive, merge_partials
from qwen3_ref.paged import gather
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.loading import using
from qwen_cuda.operators import paged_attention_grouped

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch05_grouped_attention/steps").glob("v*.cu"))}
STEPS["engine"] = root / "kernels/cuda/paged_attention_grouped.cu"
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, Q, V), strict=True))
seeded = torch.Generator().manual_seed(0)

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
# Libraries: the four steps and the engine's kernel, checked, and the three bugs of the lesson.
CHECKED = {step: Library("sim", (path,), "checked") for step, path in STEPS.items()}
built = build(*CHECKED.values(), *FAULTS.values())
print(f"{len(built)} libraries")

# %% [markdown]
# ## One pass
#
# The loop of the lesson, on 60 tokens with random scores. It keeps `m`, `l` and `o`, here of one dimension.

# %%
# Scores as stems and m as a line that rises a few times; below, o ÷ l on its way to the result of the whole softmax.
scores = 1.5 * torch.randn(60, generator=seeded, dtype=torch.float64)
values = torch.randn(60, generator=seeded, dtype=torch.float64)
m, l, o = torch.tensor(-torch.inf), torch.tensor(0.0), torch.tensor(0.0)  # noqa: E741 - the letter of the literature
kept = []
for score, value in zip(scores, values, strict=True):
    higher = torch.maximum(m, score)
    factor, weight = torch.exp(m - higher), torch.exp(score - higher)
    m, l, o = higher, l * factor + weight, o * factor + weight * value  # noqa: E741
    kept.append((float(m), float(factor), float(o / l)))
maxima, factors, results = zip(*kept, strict=True)
whole = float(torch.softmax(scores, 0) @ values)
fig, (upper, lower) = plt.subplots(2, 1, figsize=(7.2, 4), sharex=True, height_ratios=(1.5, 1))
upper.vlines(range(60), 0, scores, color=K, lw=2)
upper.step(range(60), maxima, where="post", color=ACC, lw=2)
rises = [t for t in range(1, 60) if factors[t] < 1]
for t in rises:
    upper.annotate(f"× {factors[t]:.2f}", (t, maxima[t]), (2, 3), textcoords="offset points", color=ACC, fontsize=8)
upper.axhline(0, color=W, lw=0.6)
upper.set(ylabel="score, and m", ylim=(None, max(maxima) * 1.3))
lower.plot(results, color=V, lw=2)
lower.axhline(whole, color=W, ls="--", lw=1)
lower.set(ylabel="o ÷ l", xlabel="tokens read")
plt.show()
assert abs(results[-1] - whole) < 1e-12

# %% [markdown]
# How often does the maximum rise? Token $t$ of a random order is the largest so far with probability $1/t$, so we
# expect $1 + 1/2 + 1/3 + \dots$ rises, about $\ln t + 0.58$. Rising scores rescale each time, falling ones never.

# %%
# Rises against tokens: 200 random orders in grey, their mean, and the sum of 1/t, which lies on it.
length = 2048
orders = torch.rand(200, length, generator=seeded).cummax(dim=1).values
rose = torch.cat((torch.ones(200, 1), (orders[:, 1:] > orders[:, :-1]).double()), dim=1).cumsum(1)
expected = (1 / torch.arange(1, length + 1).double()).cumsum(0)
fig, ax = plt.subplots(figsize=(7.2, 2.8))
for one in rose[:30]:
    ax.step(range(1, length + 1), one, color=W, lw=0.5, alpha=0.5, where="post")
ax.plot(range(1, length + 1), rose.mean(0), color=ACC, lw=2)
ax.plot(range(1, length + 1), expected, color=V, lw=1.5, ls="--")
ax.text(length * 1.1, float(expected[-1]), f"{float(expected[-1]):.1f}", color=V, va="center")
ax.set(xscale="log", xlabel="tokens read", ylabel="new maxima", ylim=(0, 16))
plt.show()
assert abs(float(rose.mean(0)[-1] - expected[-1])) < 0.6

# %% [markdown]
# ## Any tree
#
# The lesson proves that any cut and any order of merging give the same result. We cut 512 tokens at random places,
# merge the parts in random trees, and look at what rounding leaves of the proof.


# %%
# Errors of 300 random trees in float32, in ulp of bf16: all far below the half unit of one rounding.
def merged(parts: list[Partial], shuffled: random.Random) -> Partial:
    """Merges two parts at a time, chosen at random, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        a, b = (parts.pop(shuffled.randrange(len(parts))) for _ in range(2))
        parts.append(merge_partials(a, b))
    return parts[0]


def reader(scores: Tensor, values: Tensor) -> Partial:
    """What a reader of these tokens keeps; it may have none."""
    m = scores.max()[None] if len(scores) else torch.full((1,), -torch.inf)
    weights = torch.exp(scores - m)
    return Partial(m, weights.sum()[None], weights @ values)


scores, values = 3 * torch.randn(512, generator=seeded), torch.rand(512, 64, generator=seeded) + 0.5
truth = torch.softmax(scores.double(), 0) @ values.double()
unit = 2.0 ** (torch.frexp(truth).exponent - 8)
worst, shuffled = [], random.Random(0)
for _ in range(300):
    cuts = sorted(shuffled.choices(range(513), k=shuffled.randrange(1, 64)))
    edges = list(zip([0, *cuts], [*cuts, 512], strict=True))
    all_of_them = merged([reader(scores[a:b], values[a:b]) for a, b in edges], shuffled)
    worst.append(float(((all_of_them.o / all_of_them.l).double() - truth).div(unit).abs().max()))
fig, ax = plt.subplots(figsize=(7.2, 2.4))
ax.hist(worst, bins=40, color=V, alpha=0.85)
ax.axvline(0.5, color=ACC, ls="--")
ax.text(0.47, ax.get_ylim()[1] * 0.8, "one rounding to bf16", color=ACC, ha="right")
ax.set(xscale="log", xlabel="largest error of a tree, ulp of bf16", yticks=[])
plt.show()
assert max(worst) < 0.01

# %% [markdown]
# ## Rounded once
#
# Eager attention rounds the scores to bf16, and the weights before the product with V. Ours rounds the result alone.

# %%
# Histograms of errors in ulp of bf16: one rounding ends at half a unit, eager attention's order reaches further.
shape = Shape(512, batch=4)
inputs = candidates.operands(shape, torch.device("cpu"), peers=False)(0)
given = candidates.inputs(inputs)
(truth,) = candidates.truth(shape, inputs)
ours = paged_attention_grouped(*given, shape.scale)
k, v = (torch.cat([gather(cache, row, 0, 512) for row in given[3]]) for cache in given[1:3])
eager = attention_naive(given[0][:, :, None], k, v, shape.scale)[:, :, 0]
unit = 2.0 ** (torch.frexp(truth).exponent - 8)
errors = [((out.double() - truth) / unit).flatten() for out in (ours, eager)]
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for error, colour in zip(errors, (V, ACC), strict=True):
    ax.hist(error.numpy(), bins=torch.linspace(-1, 1, 121).tolist(), histtype="step", color=colour, lw=1.5)
top = ax.get_ylim()[1]
ax.text(0.53, 0.9 * top, f"once, up to {float(errors[0].abs().max()):.2f}", color=V)
ax.text(0.6, 0.35 * top, f"eager attention,\nup to {float(errors[1].abs().max()):.2f}", color=ACC)
ax.set(xlabel="error, ulp of bf16", yticks=[])
plt.show()
assert float(errors[0].abs().max()) < 0.51 < float(errors[1].abs().max())

# %% [markdown]
# ## What one warp asks for
#
# `simulator.trace` records every access of a checked kernel. We run each version on one sequence of 256 tokens with two
# KV heads and four query heads, and take the first request for keys. v1 asks for two bytes a lane; v3 for sixteen, in
# two streams, which read two tokens. Hover over a lane or a sector to see its bytes.

# %%
# The first request for keys in v1 and in v3: 2 sectors of 32 bytes for 64 useful ones, then 16 for 512.
one = Shape(256, query_heads=4, kv_heads=2)
small = candidates.inputs(candidates.operands(one, torch.device("cpu"), peers=False)(0))
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        torch.ops.qwen_sim.paged_attention_grouped(*small, one.scale)
for step in ("v1", "v3"):
    request = TRACES[step].where(target="k_cache", kind="load", block=0, warp=0)[0]
    display(HTML(simulator.access_pattern(request).svg()))

# %% [markdown]
# ## Requests and bytes: predicted and traced
#
# By hand, for each token of a KV head: v1 reads K and V for each of two query heads, with four requests each, 16 in all
# and 1,024 bytes. v2 reads them once: 8 requests. With 16 bytes a lane, a request brings 512 bytes: one for a token.

# %%
# Requests and bytes of K and V for a token and KV head, looks into the table: by hand (outlined), traced (filled).
BY_HAND = {"v1": (16, 1024, 2), "v2": (8, 512, 1), "v3": (1, 512, 1 / 8), "v4": (1, 512, 1 / 8),
           "engine": (1, 512, 1 / 16)}  # fmt: skip
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.6))
for step, trace in TRACES.items():
    cached = [r for r in trace.where(space="global") if r.target in ("k_cache", "v_cache")]
    counts = (len(cached), 32 * sum(r.transactions.sectors for r in cached), len(trace.where(target="block_table")))
    found = [count / (256 * 2) for count in counts]
    for ax, hand, traced in zip(axes, BY_HAND[step], found, strict=True):
        ax.bar(step, traced, color=COLOUR[step], alpha=0.8)
        ax.bar(step, hand, fill=False, edgecolor=W, lw=1.2, width=0.9)
        ax.text(step, traced, f"{traced:,.4g}", ha="center", va="bottom", fontsize=8)
    assert tuple(found) == BY_HAND[step]
for ax, title in zip(axes, ("requests", "bytes", "looks into the table"), strict=True):
    ax.set(yticks=[])
    ax.margins(y=0.12)
    ax.set_title(f"{title} a token", fontsize=9)
    ax.tick_params(axis="x", labelsize=8)
plt.show()

# %% [markdown]
# ## Who reads which token
#
# From the trace of keys: each warp of v4 and of the engine's kernel, and the tokens that it reads. The pages lie in any
# order, so we look their place in the block table up.

# %%
# Tokens 0 to 255 of KV head 0 across, warps down. v4: 8 tokens a warp and turn; the engine: 16 a warp and turn.
page_of = {int(block): page for page, block in enumerate(small[3][0])}
fig, axes = plt.subplots(2, 1, figsize=(7.2, 2.8), sharex=True)
for ax, step in zip(axes, ("v4", "engine"), strict=True):
    for request in TRACES[step].where(target="k_cache", kind="load", block=0):
        slots = {int(offset) // (2 * 128 * 2) for offset in request.offsets}
        for slot in slots:
            token = page_of[slot // 16] * 16 + slot % 16
            ax.barh(request.warp, 1, left=token, height=0.8, color=COLOUR[step])
    ax.set(ylabel=f"{step}: warp", yticks=[0, 7])
    ax.invert_yaxis()
axes[1].set(xlabel="token", xticks=range(0, 257, 32), xlim=(0, 256))
plt.show()

# %% [markdown]
# ## A warp, step by step

# %%
# The warp of v3 on 8 tokens, one turn: the page, then all loads of K and V before the first shuffle.
short = Shape(8, query_heads=1, kv_heads=1)
few = candidates.inputs(candidates.operands(short, torch.device("cpu"), peers=False)(0))
with simulator.trace(CHECKED["v3"]) as seen:
    torch.ops.qwen_sim.paged_attention_grouped(*few, short.scale)
display(HTML(seen.timeline(block=0, warp=0).svg()))

# %% [markdown]
# ## Three bugs
#
# **A factor forgotten.** In v1, `o` is not rescaled when the maximum rises. We give the same tokens in rising, falling
# and random order. The simulator has nothing to report: every access is in order.

# %%
# Result of the faulty kernel ÷ the truth, for three orders of the same scores: right only if the maximum comes first.
scores = torch.linspace(-4, 4, 40).bfloat16().float()
values = torch.rand(40, 128, generator=seeded) + 0.5
given_in = {
    "falling": torch.arange(39, -1, -1),
    "random": torch.randperm(40, generator=seeded),
    "rising": torch.arange(40),
}
fig, ax = plt.subplots(figsize=(7.2, 1.8))
for place, (name, order) in enumerate(given_in.items()):
    wrong = run(FAULTS["rescale"], of_scores(scores[order], values[order]))[0, 0].float()
    ratio = float((wrong / (torch.softmax(scores, 0) @ values)).mean())
    ax.barh(name, ratio, color=V if abs(ratio - 1) < 0.01 else ACC)
    ax.text(ratio + 0.05, place, f"{ratio:.2f}", va="center")
    assert (abs(ratio - 1) < 0.01) == (name == "falling")
ax.axvline(1, color=W, ls="--", lw=1)
ax.set(xlabel="result ÷ truth", xlim=(0, 9))
plt.show()

# %% [markdown]
# **−∞ for nobody.** In v3, `m` begins as −∞. A stream that has no token computes −∞ − (−∞).

# %%
# Contexts of 1 to 12 tokens: NaN up to four, where the second stream of the warp has nothing to read; right beyond.
spoilt = [
    bool(run(FAULTS["infinity"], of_scores(torch.zeros(t), torch.ones(t, 128))).isnan().any()) for t in range(1, 13)
]
fig, ax = plt.subplots(figsize=(7.2, 0.9))
ax.bar(range(1, 13), 1, width=0.92, color=[ACC if bad else V for bad in spoilt])
for t, bad in enumerate(spoilt, 1):
    ax.text(t, 0.5, "NaN" if bad else "right", ha="center", va="center", color="white", fontsize=9)
ax.set(xlabel="tokens of context", xticks=range(1, 13), yticks=[], ylim=(0, 1))
plt.show()
assert spoilt == [t <= 4 for t in range(1, 13)]

# %% [markdown]
# **A barrier forgotten.** In v4, a fast warp writes its part of the second head while others read the first:

# %%
# The report of the checked simulator: a race between a thread that reads and one that writes, with both lines.
display(Markdown(f"```message\n{barrier()}\n```"))

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there: calls in a CUDA graph, on caches that no cache of the GPU holds.
# Without one it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version against the context of one sequence, on this machine's GPU or from stored results of an H200.
CONTEXTS = (128, 1024, 8192)


def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → context → µs."""
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    found: dict[str, dict[int, float]] = {step: {} for step in STEPS}

    def call(shape: Shape, given: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = torch.ops.qwen_cuda.paged_attention_grouped(*given, shape.scale)
        return out

    for context in CONTEXTS:
        shape = Shape(context)
        make = candidates.operands(shape, torch.device("cuda"), peers=False)
        sets = [candidates.inputs(make(n)) for n in range(max(8, 2**18 // context // 4))]
        inside = {step: partial(using, library) for step, library in libraries.items()}
        calls = {step: [partial(call, shape, given) for given in sets] for step in STEPS}
        for step, us in graph_timing(calls, torch.device("cuda"), inside=inside).items():
            found[step][context] = us.median
    return found


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    found: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch05_grouped_attention.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        shape = case["shape"]
        kind = (case["variant"], case["dtype"], case["cache"], shape["heads"], shape["batch"])
        if kind == ("ours", "bfloat16", "cold", Shape(1).heads, 1) and shape["context"] in CONTEXTS:
            found.setdefault(case["step"] or "engine", {})[shape["context"]] = case["us"]["median"]
    return found


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for step, by_context in sorted(times.items(), reverse=True):
        ax.loglog(list(by_context), list(by_context.values()), "o-", ms=4, color=COLOUR[step], label=step)
    ax.set_xticks(CONTEXTS, labels=[f"{context:,}" for context in CONTEXTS])
    ax.set(xlabel="tokens of one sequence, 16/8 heads of 128, bf16", ylabel="µs")
    ax.legend(frameon=False, labelcolor="linecolor")
    ax.minorticks_off()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 5` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# * Let the scores of *One pass* be 50 times as large. How many tokens still count?
# * Cut *Any tree* so that most parts are empty. Which bits change?
# * Plant in v2 what is planted in v1. Does a group of two make a difference?
# * Set `kRun` of v3 to 3 with an `Edit`. Which contexts are wrong now, and what does that have to do with pages?
