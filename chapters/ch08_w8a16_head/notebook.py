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
# # Lab 8: integers, a gate, and a warp
#
# The [lesson](README.md) makes an int8 head and asks whether it may be used. Here we look at what rounding does to
# weights, where a model's choices change and where they cannot, how much 160 tokens can say, how a byte becomes a
# float, and what the kernels ask of memory. Nothing needs a GPU; where there is one, the last section times the kernels
# there. The whole lab takes well under a minute on two CPU cores.

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

from chapters.ch08_w8a16_head import candidates
from chapters.ch08_w8a16_head.candidates import Shape
from chapters.ch08_w8a16_head.fake_quant import fake_quantize
from chapters.ch08_w8a16_head.faults import FAULTS, operands, run, tail
from chapters.ch08_w8a16_head.quality_gate.agreement import interval, judged_logits
from chapters.ch08_w8a16_head.quality_gate.subject import Quantization, load
from chapters.ch08_w8a16_head.quantize import quantize_w8
from qwen3_ref.hub import resolve_model
from qwen3_ref.quantized import dequantize_w8
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.loading import using
from qwen_cuda.operators import argmax_workspace, w8a16_linear

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch08_w8a16_head/steps").glob("v*.cu"))}
STEPS["kernels/cuda"] = root / "kernels/cuda/w8a16_linear.cu"
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, V), strict=True))
COLUMNS = 1024  # of Qwen3-0.6B
GROUPS = {"row": None, "128": 128, "64": 64, "32": 32}
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
# Libraries: two steps and the engine's kernels, checked, and the two bugs of the lesson. v2 asks for what v1 does.
CHECKED = {step: Library("sim", (path,), "checked") for step, path in STEPS.items() if step != "v2"}
ARGMAX = Library("sim", (root / "kernels/cuda/w8a16_argmax.cu",), "checked")
built = build(*CHECKED.values(), ARGMAX, *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## What rounding does to weights
#
# The head of the tiny trained checkpoint, and as many normal numbers. In units of its scale, a weight's error is spread
# evenly from −½ to ½; so its rms is the scale over √12. How large the scale is, the largest weight of a group decides.

# %%
# Left: errors in units of the scale, flat. Right: rms error over rms weight for each size of a group: it falls with the
# group, and the trained head lies above the normal numbers, because its rows have longer tails.
subject = load(resolve_model("tiny"), torch.device("cpu"), tokens=64)
trained = subject.weights["model.embed_tokens.weight"]
normal = torch.randn(1024, COLUMNS, generator=random)
qweight, scales = quantize_w8(trained)
steps_off = (
    (dequantize_w8(qweight, scales) - trained).unflatten(1, (scales.shape[1], -1)) / scales[:, :, None]
).flatten()
errors = {
    name: [float((fake_quantize(w, group) - w).norm() / w.norm()) for group in GROUPS.values()]
    for name, w in (("trained", trained), ("normal", normal))
}
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8))
left.hist(steps_off.numpy(), bins=50, color=OTHER, alpha=0.8)
left.set(xlabel="error ÷ scale", yticks=[])
for (name, sizes), colour in zip(errors.items(), (V, W), strict=True):
    right.plot(list(GROUPS), [100 * size for size in sizes], "o-", color=colour)
    right.text(3.15, 100 * sizes[-1], name, color=colour, va="bottom" if colour == V else "top")
right.set(xlabel="columns that share a scale", ylabel="rms error, % of rms", ylim=(0, 0.9), xlim=(-0.3, 4.2))
plt.show()
assert float(steps_off.abs().max()) < 0.5001
assert abs(float(steps_off.square().mean().sqrt()) * 12**0.5 - 1) < 0.02
assert 0.0063 < errors["normal"][1] < 0.0067
assert all(a > b for a, b in zip(errors["trained"], errors["normal"], strict=True) if a > 0.0055)

# %% [markdown]
# ## One outlier
#
# A row of 1,024 normal weights, one of which grows. The other 1,023 pay: all of them with one scale for the row, 127
# with groups of 128, 31 with groups of 32. In a group whose scale is more than twice a weight, that weight becomes 0.

# %%
# Rms error of the row against the size of the outlier, for each group. With one scale it grows in proportion; with
# groups only one group's share of it does.
heights = torch.logspace(0.4, 2, 24)
ends_at: dict[str, float] = {}
row = torch.randn(1, COLUMNS, generator=random)
fig, ax = plt.subplots(figsize=(7.2, 2.9))
for (name, group), colour in zip(GROUPS.items(), (ACC, V, Q, OTHER), strict=True):
    paid = []
    for height in heights:
        spoilt = row.clone()
        spoilt[0, 300] = height
        paid.append(float((fake_quantize(spoilt, group) - spoilt).square().mean().sqrt()))
    ax.loglog(heights, paid, color=colour)
    ax.text(106, paid[-1], name, color=colour, va="center")
    ends_at[name] = paid[-1]
ax.set(xlabel="outlier, in rms of the others", ylabel="rms error", xlim=(2.4, 160))
ax.minorticks_off()
plt.show()
assert ends_at["32"] < ends_at["128"] < 0.5 * ends_at["row"]

# %% [markdown]
# ## Where a choice can change
#
# The gate's own texts and models. At each of 1,536 places the reference's first choice is ahead of its second by a
# *margin*. Rounding moves every logit by some error. A choice flips only where the margin is less than twice the
# largest error: everything above the line is safe, whatever happens.

# %%
# Each dot is a place: its margin, and the largest error of a logit there. With int8 in the head no dot flips, and
# almost all lie far above the line. With int4 in all layers errors are some twenty times as large, and near-ties flip.
ARMS = {"int8, head": Quantization(), "int4, all layers": Quantization("all", 4)}
with torch.inference_mode():
    truth = torch.cat([judged_logits(subject.reference(), prompt, "fp32") for prompt in subject.prompts])
    found = {
        name: torch.cat([judged_logits(subject.quantized(how)[0], prompt, name) for prompt in subject.prompts])
        for name, how in ARMS.items()
    }
best = truth.topk(2, dim=-1).values
margin = best[:, 0] - best[:, 1]
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True)
flipped = {}
for ax, (name, logits) in zip(axes, found.items(), strict=True):
    error = (logits - truth).abs().amax(-1)
    flipped[name] = logits.argmax(-1) != truth.argmax(-1)
    ax.loglog(error, margin, ".", color=W, ms=3, alpha=0.5)
    ax.loglog(error[flipped[name]], margin[flipped[name]], "o", color=ACC, ms=4)
    ax.plot([0.02, 8], [0.04, 16], color=V, lw=1)
    ax.set(xlabel="largest error of a logit", xlim=(0.02, 8))
    ax.set_title(f"{name}: {int(flipped[name].sum())} flips", fontsize=9)
    ax.minorticks_off()
    assert bool((margin[flipped[name]] <= 2 * error[flipped[name]]).all())
axes[0].set(ylabel="margin of the reference", ylim=(5e-3, 40))
plt.show()
assert not flipped["int8, head"].any()
assert flipped["int4, all layers"].float().mean() > 0.01

# %% [markdown]
# ## How much do 160 tokens say?
#
# We know how often int4 flips on these 1,536 places. Let somebody judge it on 160 of them, drawn at random, 2,000 times
# over, and somebody else on 1,000.

# %%
# Agreement on 160 places is anything from 95 % to 100 %; each bar is one whole flip, 0.6 %. On 1,000 places it is
# known to within a per cent. Dashed: the gate.
same = (~flipped["int4, all layers"]).float()
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.6), sharex=True)
spread = {}
for ax, tokens in zip(axes, (160, 1000), strict=True):
    drawn = torch.stack([same[torch.randperm(len(same), generator=random)[:tokens]].mean() for _ in range(2000)])
    spread[tokens] = float(drawn.std())
    values, counts = drawn.unique(return_counts=True)
    ax.bar(100 * values, counts, width=60 / tokens, color=OTHER, alpha=0.85)
    ax.axvline(99, color=W, ls="--", lw=1)
    ax.set(yticks=[], xlabel="same top 1, %")
    ax.set_title(f"{tokens:,} places: {float((drawn >= 0.99).float().mean()):.0%} pass", fontsize=9)
plt.show()
assert spread[160] > 3 * spread[1000]
low, high = (interval(agreed, 160) for agreed in (154, 159))
print(f"154 of 160: {low[0]:.1%} to {low[1]:.1%}; 159 of 160: {high[0]:.1%} to {high[1]:.1%}")
assert low[1] > high[0]

# %% [markdown]
# ## Bytes behind 2²³
#
# All 256 bytes. Flip the sign bit, put the byte behind `0x4B0000`, and take the 32 bits for a float:
# $2^{23} + q + 128$.

# %%
# The bits of the floats, one line for each byte from -128 to 127: the upper 24 are the same for all, the last 8 count.
q = torch.arange(-128, 128)
pattern = 0x4B000000 | ((q & 0xFF) ^ 0x80)
floats = pattern.to(torch.int32).view(torch.float32)
assert torch.equal(floats - 8388736.0, q.float())
digits = pattern[:, None] >> torch.arange(31, -1, -1) & 1
fig, ax = plt.subplots(figsize=(7.2, 2.6))
shown = digits + 2 * (torch.arange(32) >= 24)
ax.imshow(
    shown, cmap=ListedColormap(["none", W, "none", OTHER]), vmin=0, vmax=3, aspect="auto", interpolation="nearest"
)
ax.set_xticks([0, 4.5, 16, 27.5], labels=["sign", "exponent", "fraction", "q + 128"])
ax.set_yticks([0, 128, 255], labels=["−128", "0", "127"])
ax.tick_params(length=0)
plt.show()

# %% [markdown]
# ## What one warp asks for
#
# `simulator.trace` records every access of a checked kernel. We take the first load of weights of the first warp: four
# bytes a lane in v1, sixteen in v3. Hover over a lane or a sector to see its bytes.

# %%
# One request of v1 is 128 bytes side by side, 4 sectors; one of v3 is 512 bytes, 16 sectors. All that comes is used.
head = (torch.randn(1, COLUMNS, generator=random).bfloat16(), *quantize_w8(torch.randn(96, COLUMNS, generator=random)))
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        torch.ops.qwen_sim.w8a16_linear(*head, out_dtype=torch.float32)
for step in ("v1", "v3"):
    display(HTML(simulator.access_pattern(TRACES[step].where(target="qweight", kind="load", block=0, warp=0)[0]).svg()))

# %% [markdown]
# ## Requests for a row: predicted and traced
#
# By hand, for a row of 1,024 bytes with 8 scales: v1 needs 8 requests of weights, 8 of scales, and 4 of x for each of
# the 8 words, 32 in all. v3 needs 2 and 2, and its 32 requests of x serve four rows. The engine reads x once for a
# block, into shared memory.

# %%
# Requests of memory for each row of the weight, by hand (outlined) and traced (filled).
BY_HAND = {"v1": (8, 8, 32), "v3": (2, 2, 8)}
TARGETS = ("qweight", "scales", "x")
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.8), sharey=True)
for step, trace in TRACES.items():
    for i, (ax, target) in enumerate(zip(axes, TARGETS, strict=True)):
        count = len(trace.where(target=target, kind="load")) / 96
        name = step.replace("kernels/cuda", "engine")
        ax.bar(name, count, color=COLOUR[step], alpha=0.8)
        ax.text(name, count + 0.6, f"{count:.3g}", ha="center", fontsize=8)
        if step in BY_HAND:
            ax.bar(name, BY_HAND[step][i], fill=False, edgecolor=W, lw=1.2, width=0.9)
            assert count == BY_HAND[step][i]
        ax.set_title(f"{target}, requests for a row", fontsize=9)
axes[0].set(yticks=[0, 8, 16, 24, 32])
plt.show()

# %% [markdown]
# ## A bug that the checker finds, and one that it cannot find

# %%
# The report of the checked simulator when the last word of a row reads four elements of x.
display(Markdown(f"```message\n{tail()}\n```"))

# %% [markdown]
# Bytes without a sign lie where they should, so there is no report. Negative weights have become large positive ones.

# %%
# Logits with unsigned bytes against the right ones: far from the line, and in no order.
of = operands()
right_ones = w8a16_linear(*of, out_dtype=torch.float32)[0]
wrong_ones = run(FAULTS["unsigned"].library, of)[0]
fig, ax = plt.subplots(figsize=(3.6, 2.8))
ax.plot(right_ones, wrong_ones, "o", color=ACC)
ends = [float(right_ones.min()), float(right_ones.max())]
ax.plot(ends, ends, color=V, lw=1)
ax.set(xlabel="logit", ylabel="with unsigned bytes")
plt.show()
assert int(wrong_ones.argmax()) != int(right_ones.argmax()) or not torch.allclose(wrong_ones, right_ones, rtol=0.1)

# %% [markdown]
# ## One integer for value and place
#
# The upper half of a key is the logit's bits, made to rise with it. We build it in PyTorch and draw it over logits, and
# then let the simulator run the blocks of `w8a16_argmax` in twelve orders: another block comes last, and the id is one.

# %%
# Left: the upper half of the key against the logit: it rises everywhere, steeply near zero, where floats are dense.
# Right: which of the blocks came last and wrote the id, for twelve seeds. The id never changes.
logits = torch.linspace(-20, 20, 801)
raw = logits.view(torch.int32).long() & 0xFFFFFFFF
upper = torch.where(raw >> 31 == 1, raw ^ 0xFFFFFFFF, raw | 0x80000000)
assert bool((upper.diff() > 0).all())
n = 400
many = quantize_w8(torch.randn(n, 64, generator=random), 32)
x = torch.randn(1, 64, generator=random).bfloat16()
last, ids = [], set()
for seed in range(12):
    with simulator.options(seed=seed), simulator.trace(ARGMAX) as trace:
        ids.add(int(torch.ops.qwen_sim.w8a16_argmax(x, *many, workspace=argmax_workspace("cpu"))))
    (block,) = {request.block for request in trace.where(target="ids", kind="store")}
    last.append(block)
    (launch,) = trace.launches
assert ids == {int(w8a16_linear(x, *many, out_dtype=torch.float32).argmax())}
marks = torch.zeros(launch.grid[0], len(last))
marks[last, range(len(last))] = 1
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6))
left.plot(logits, upper / 2**32, color=V)
left.set(xlabel="logit", ylabel="upper half of the key ÷ 2³²", ylim=(0, 1))
right.imshow(marks, cmap=ListedColormap(["none", OTHER]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
right.set(xlabel="seed of the order", ylabel="block that comes last", xticks=range(0, 12, 2))
plt.show()
assert len(set(last)) > 1

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there on the whole head: calls in a CUDA graph, on operands that no cache
# holds. Without one it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version against the number of rows of x, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → rows of x → µs."""
    device = torch.device("cuda")
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    times: dict[str, dict[int, float]] = {step: {} for step in STEPS}
    for batch in (1, 2, 4, 8):
        shape = Shape(batch, COLUMNS, 151936)
        make = candidates.operands("w8a16_linear", shape, device)
        sets = [make(number) for number in range(4)]
        variant = next(candidates.variants("w8a16_linear", shape, device))
        calls = {step: [partial(variant.run, one) for one in sets] for step in STEPS}
        inside = {step: partial(using, library) for step, library in libraries.items()}
        for step, us in graph_timing(calls, device, inside=inside).items():
            times[step][batch] = us.median
    return times


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    times: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch08_w8a16_head.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        kind = (case["op"], case["variant"], case["cache"], case["shape"].get("k"), case["shape"].get("group"))
        if kind == ("w8a16_linear", "ours", "cold", COLUMNS, 128):
            times.setdefault(case["step"] or "kernels/cuda", {})[case["shape"]["batch"]] = case["us"]["median"]
    return times


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.2))
    for step, by_batch in times.items():
        ax.plot(list(by_batch), list(by_batch.values()), "o-", ms=4, color=COLOUR[step], label=step)
    ax.set(xlabel="rows of x", ylabel="µs", ylim=(0, None), xticks=[1, 2, 4, 8])
    ax.legend(frameon=False, labelcolor="linecolor")
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 8` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Quantise all layers with 6 bits, then 5. Where does the first choice flip, and is it a near-tie?
# 2. Add an outlier of ten times the rms to one column of every row of the head. Which groups still pass?
# 3. Draw the third picture for bf16 rounding, `subject.rounded()`. Does it look like int8 or like int4?
# 4. Trace v1 on a head with groups of 32. How many requests of scales are there for a row, and how many sectors?
# 5. Plant a bug: `8388736.0f` → `8388608.0f` in v2. What is wrong with every logit, and by how much?
# 6. Give two rows of the head the same weights, the largest ones. Which id comes out, and which part of the key says
#    so?
