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
# # Lab 10: small floats, a turned basis, and a cache of bytes
#
# The [lesson](README.md) stores keys and values in 8 or 4 bits. Here we look at the steps of such numbers, find scales
# by the bits of a float, flatten the outliers of a trained model's keys, write a cache and look at its bytes, and read
# it again. Nothing needs a GPU; where there is one, the last section times the kernels there. The whole lab takes well
# under a minute on two CPU cores.

# %%
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import get_args

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the simulator needs the cores

import matplotlib.pyplot as plt
import torch
from IPython.display import HTML, Markdown, display
from matplotlib.colors import ListedColormap
from matplotlib_inline.backend_inline import set_matplotlib_formats

from chapters.ch10_quantized_kv import candidates
from chapters.ch10_quantized_kv.faults import FAULTS, basis, race, saturated
from chapters.ch10_quantized_kv.figures.outliers import (
    CASTS,
    SHOWN_LAYER,
    peak,
    queries_and_keys,
    score_error,
    subject,
    turned,
)
from qwen3_ref.functional import rms_norm
from qwen3_ref.kv_quantization import hadamard_transform
from qwen3_ref.narrow_floats import decode_e2m1, decode_e4m3, encode_e2m1, encode_e4m3
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.kv_cache_format import KVCacheFormat, Layout
from qwen_cuda.loading import using
from qwen_cuda.operators import (
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    RopeArgs,
    cos_sin_table,
    load_kv,
    norm_rope_hadamard_quant_store,
    store_kv,
)

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch10_quantized_kv/steps").glob("v*.cu"))}
STEPS["kernels/cuda"] = root / "kernels/cuda/norm_rope_hadamard_quant_store.cu"
COLOUR = dict(zip(STEPS, (ACC, K, V), strict=True))
ORTHOGONAL = HadamardArgs(128**-0.5)
FP8, NVFP4 = CASTS["FP8"], CASTS["NVFP4"]
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
# Libraries: the steps and the engine's kernel, checked, and the two bugs of the lesson.
CHECKED = {step: Library("sim", (path,), "checked") for step, path in STEPS.items()}
built = build(*CHECKED.values(), *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## Steps that grow with the number
#
# What rounding costs relative to the number itself: for E4M3, for E2M1, and for the integers of chapter 8, all scaled
# so that the largest number is 1.

# %%
# Relative error against the size of a number. Integers: it grows as numbers shrink. Floats: a saw with level teeth, six
# per cent high at most for E4M3, until its subnormals begin; E2M1 has teeth of 20 to 33 %, and ends soon.
x = torch.logspace(-5, 0, 4000)
rounded = {
    "INT8": ((x * 127).round() / 127, W),
    "E4M3": (decode_e4m3(encode_e4m3(x * 448)) / 448, K),
    "E2M1": (decode_e2m1(encode_e2m1(x * 6)) / 6, OTHER),
}
fig, ax = plt.subplots(figsize=(7.2, 2.9))
for name, (back, colour) in rounded.items():
    error = ((back - x) / x).abs()
    ax.loglog(x, error.clamp(min=1e-4), color=colour, lw=1)
    ax.text(1.1, float(error[-60:].max()), name, color=colour, va="center")
ax.set(xlabel="number ÷ largest of its group", ylabel="relative error", xlim=(1e-5, 3), ylim=(1e-3, 2))
plt.show()
normal = x > 2**-6 / 448
assert float(((rounded["E4M3"][0] - x) / x)[normal].abs().max()) <= 1 / 17 + 1e-6
assert float(((rounded["INT8"][0] - x) / x)[x < 0.01].abs().max()) > 0.3

# %% [markdown]
# ## A power of two by its bits
#
# `(bits + 0x1fffff) >> 23` is the exponent of the smallest power of two that is not below amax ÷ 448, plus 8. We take
# amax over four powers of two and compare with the definition, and with reading the exponent alone.

# %%
# amax divided by its scale: with the right scale it fills the upper half of E4M3's range and never leaves it. With the
# bare exponent as a scale (dashed) it lies beyond 448 wherever the significand of amax is above 1.75.
amax = torch.logspace(0, 1.2, 2000, base=10.0)
bits = amax.view(torch.int32)
right, bare = ((bits + 0x1FFFFF) >> 23) - 8 - 127, (bits >> 23) - 8 - 127
fig, ax = plt.subplots(figsize=(7.2, 2.6))
ax.plot(amax, amax / 2.0**right, color=V, lw=1.6)
ax.plot(amax, amax / 2.0**bare, color=ACC, lw=1, ls="--")
ax.axhline(448, color=W, lw=0.8)
ax.text(float(amax[-1]) * 1.02, 448, "448", va="center", color=W)
ax.set(xscale="log", xlabel="largest magnitude of a group", ylabel="÷ its scale", ylim=(0, 540))
ax.minorticks_off()
plt.show()
assert torch.equal(2.0**right, 2.0 ** (amax.double() / 448).log2().ceil())
too_far = (amax / 2.0**bare > 448).float().mean()
print(f"the bare exponent saturates {too_far:.0%} of these groups")

# %% [markdown]
# ## Outliers of a trained model
#
# Queries and keys of the tiny checkpoint as attention meets them, on the texts of chapter 8's gate. First a few keys as
# they are, then transformed.

# %%
# 160 keys of layer 1, one a line, before and after: dark vertical stripes are elements that are large in every token.
# After the transform there is grey noise.
of = subject()
tokens = torch.cat(of.prompts[:4])
layers = queries_and_keys(of.reference(), tokens)
q, k = layers[SHOWN_LAYER]
rows = k[:, 0].flatten(0, 1)[:160]
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True)
for ax, one, words in zip(axes, (rows, turned(rows)), ("keys", "transformed"), strict=True):
    ax.imshow(one.abs(), cmap="Greys", vmin=0, vmax=5, aspect="auto", interpolation="nearest")
    ax.set(title=f"{words}: largest ÷ rms {peak(one):.1f}", xlabel="element", xticks=[0, 32, 64, 96, 127])
axes[0].set(ylabel="token")
plt.show()
assert peak(rows) > 1.6 * peak(turned(rows))

# %% [markdown]
# A score stays what it was, but for the last bits of fp32. What quantised keys change in it, is another matter.

# %%
# Root mean square error of a score by format, for each layer: as they are (orange), transformed (green).
scores, other = q[:, :2] @ k[:, :1].mT, turned(q[:, :2]) @ turned(k[:, :1]).mT
assert float((scores - other).abs().max() / scores.abs().max()) < 1e-5
fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.6), sharey=True)
for ax, (name, cast) in zip(axes, CASTS.items(), strict=True):
    found = torch.tensor([[score_error(*heads, cast, transform) for transform in (False, True)] for heads in layers])
    for side, colour in enumerate((K, V)):
        ax.bar(torch.arange(6) + 0.4 * side, found[:, side], width=0.38, color=colour)
    gain = 1 - float((found[:, 1] / found[:, 0]).mean())
    ax.set_title(f"{name}: {gain:.0%} less", fontsize=9)
    ax.set(xlabel="layer", xticks=range(6))
    assert gain > 0
axes[0].set(ylabel="rms error of a score")
plt.show()

# %% [markdown]
# ## A cache, byte by byte
#
# Three tokens of two heads go into a block of eight, by one launch. We fill the cache with 0 before, and draw what is
# not 0 afterwards: in one layout records with gaps, in the other codes and, behind them, scales.

# %%
# Each dot a byte of the block, 96 a line: codes in one colour, scales in another; what was not written stays empty.
HEADS, TOKENS = 2, 3
x = torch.randn(TOKENS, 2 * HEADS, 128, generator=random).bfloat16()
weight = torch.rand(128, generator=random).bfloat16() + 0.5
positions, slots = torch.tensor([40, 41, 42]), torch.tensor([1, 2, 5])
norm, rope = NormArgs(weight), RopeArgs(positions, cos_sin_table(64, 1e6))
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.6))
for ax, layout in zip(axes, get_args(Layout), strict=True):
    form = KVCacheFormat(FP8, heads=HEADS, block_size=8, layout=layout)
    k_cache, v_cache = form.new(1), form.new(1)
    to = KVCacheOut(k_cache, slots, form, v_cache=v_cache)
    norm_rope_hadamard_quant_store(x, norm, rope, ORTHOGONAL, form.cast, to)
    kinds = torch.zeros(form.block_bytes)
    for slot in slots.tolist():
        for head in range(HEADS):
            data, scales = form.spans(slot, head)
            kinds[data.start : data.stop], kinds[scales.start : scales.stop] = 1, 2
    assert not k_cache[0][kinds == 0].any()
    shown = torch.nn.functional.pad(kinds, (0, -len(kinds) % 96)).view(-1, 96)
    colours = ListedColormap(["none", K, OTHER])
    ax.imshow(shown, cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="nearest")
    ax.set(title=f"{layout}: {form.block_bytes:,} bytes", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# The same bytes come out when the stages run one after the other, each rounded to bf16 in between where one launch
# rounds, and stored by `store_kv`. Not nearly: all of them.

# %%
# Bytes of the cache that differ from the unfused way; and, for comparison, when the head is not rounded to bf16 first.
transformed = torch.empty_like(x[:, :HEADS])
norm_rope_hadamard_quant_store(x[:, :HEADS], norm, rope, ORTHOGONAL, out=transformed)
apart = form.new(1)
store_kv(transformed, KVCacheOut(apart, slots, form))
different = int((apart != k_cache).sum())
exact = torch.empty_like(transformed, dtype=torch.float32)
norm_rope_hadamard_quant_store(x[:, :HEADS].float(), NormArgs(weight.float()), rope, ORTHOGONAL, out=exact)
unrounded = form.new(1)
store_kv(exact, KVCacheOut(unrounded, slots, form))
print(f"{different} bytes differ; with heads that are not rounded first, {int((unrounded != k_cache).sum())}")
assert different == 0
assert bool((unrounded != k_cache).any())

# %% [markdown]
# ## What comes back
#
# `load_kv` reads slots. Keys come back in the turned basis; the transform is its own inverse, so it turns them back.

# %%
# What the cache gives back against what went in, for one key: FP8 on the line, NVFP4 around it.
want = rms_norm(x[:, :HEADS].float(), weight.float(), 1e-6, "fused")
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.9), sharey=True)
errors = {}
for ax, (name, cast) in zip(axes, {"FP8": FP8, "NVFP4": NVFP4}.items(), strict=True):
    form = KVCacheFormat(cast, heads=HEADS, block_size=8, layout="block_wide")
    cache = form.new(1)
    to = KVCacheOut(cache, slots, form)
    norm_rope_hadamard_quant_store(x[:, :HEADS], norm, hadamard=ORTHOGONAL, cast=cast, out=to)
    back = hadamard_transform(load_kv(cache, slots, form, torch.float32), ORTHOGONAL.scale)
    errors[name] = float((back - want).norm() / want.norm())
    ax.plot(want.flatten(), back.flatten(), ".", ms=3, color=V if name == "FP8" else OTHER)
    ax.set(title=f"{name}: rms error {errors[name]:.1%}", xlabel="went in")
axes[0].set(ylabel="came back")
plt.show()
assert errors["FP8"] < 0.035 < errors["NVFP4"] < 0.12

# %% [markdown]
# ## What one warp asks for
#
# `simulator.trace` records every access of a checked kernel. The first load of x by the first warp, for v1 and for the
# engine. Hover over a lane or a sector to see its bytes.

# %%
# v1: 32 lanes, each at a head of its own, 32 sectors for 64 bytes. The engine: halves of four heads, 16 for 512 bytes.
form = KVCacheFormat(FP8, heads=8, layout="block_wide")
many = torch.randn(8, 16, 128, generator=random).bfloat16()
table = cos_sin_table(64, 1e6)


def write(library: Library) -> simulator.Trace:
    """K and V of eight tokens, by the kernel of `library`."""
    caches, at = [form.new(1), form.new(1)], torch.arange(8)
    with simulator.trace(library) as seen:
        torch.ops.qwen_sim.norm_rope_hadamard_quant_store(
            many, norm_weight=weight, eps=1e-6, cos_sin=table, positions=at, hadamard_scale=ORTHOGONAL.scale,
            values="e4m3", group=32, scale_format="ue8m0", k_cache=caches[0], v_cache=caches[1], slot_mapping=at,
            cache_layout=list(form.strides),
        )  # fmt: skip
    return seen


TRACES = {step: write(library) for step, library in CHECKED.items()}
for step in ("v1", "kernels/cuda"):
    loads = TRACES[step].where(target="x", kind="load", block=0, warp=0)
    display(HTML(simulator.access_pattern(loads[0]).svg()))

# %%
# Requests of memory for each head, by step: loads of x, stores of codes and scales into the caches.
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.6))
counts = {}
for ax, kind, targets in zip(axes, ("load", "store"), (("x",), ("k_cache", "v_cache")), strict=True):
    for step, trace in TRACES.items():
        sectors = sum(r.transactions.sectors for target in targets for r in trace.where(target=target, kind=kind))
        counts[step, kind] = sectors / (8 * 16)
        ax.bar(step.replace("kernels/cuda", "engine"), counts[step, kind], color=COLOUR[step], alpha=0.8)
        ax.text(step.replace("kernels/cuda", "engine"), counts[step, kind], f"{counts[step, kind]:.3g}", ha="center")
    ax.set_title(f"sectors of {'loads of x' if kind == 'load' else 'stores into caches'}, each head", fontsize=9)
    ax.set(yscale="log", ylim=(1, 400))
    ax.minorticks_off()
plt.show()
assert counts["kernels/cuda", "load"] == 8  # 256 bytes
assert counts["v1", "load"] > 10 * counts["kernels/cuda", "load"]

# %% [markdown]
# ## Bugs
#
# The transform of v2 without its barrier, as the checked simulator sees it; a scale that is rounded down; and queries
# that were not transformed. Only the first of them has a report.

# %%
# A race, named by both lines and both lanes.
display(Markdown(f"```message\n{race()}\n```"))

# %%
# The largest numbers of a group saturate.
display(Markdown(f"```message\n{saturated()}\n```"))

# %%
# The value of the key that the query matches, and what comes out.
display(Markdown(f"```message\n{basis()}\n```"))

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there: calls in a CUDA graph, on operands that no cache holds. Without one
# it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version against the number of tokens, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → tokens → µs."""
    device = torch.device("cuda")
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    times: dict[str, dict[int, float]] = {step: {} for step in STEPS}
    for tokens in (1, 128, 1024, 8192):
        make = candidates.operands(tokens, "fp8", device)
        sets = [make(number) for number in range(4)]
        calls = {step: [partial(candidates.ours("fp8").run, one) for one in sets] for step in STEPS}
        inside = {step: partial(using, library) for step, library in libraries.items()}
        for step, us in graph_timing(calls, device, inside=inside).items():
            times[step][tokens] = us.median
    return times


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    times: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch10_quantized_kv.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        kind = (case["op"], case["variant"], case["cache"], case["shape"].get("format"))
        if kind == (candidates.OP, "ours", "cold", "fp8"):
            times.setdefault(case["step"] or "kernels/cuda", {})[case["shape"]["tokens"]] = case["us"]["median"]
    return times


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.2))
    for step, by_tokens in times.items():
        ax.loglog(list(by_tokens), list(by_tokens.values()), "o-", ms=4, color=COLOUR[step], label=step)
    ax.set(xlabel="tokens", ylabel="µs")
    ax.legend(frameon=False, labelcolor="linecolor")
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 10` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Draw the keys' picture for layer 0 and for values (a third hook, on `v_proj`). Which of them has stripes?
# 2. `CASTS["MXFP4"]` with groups of 16 is refused. By which sentence? Is there a reason but the standard?
# 3. Give `score_error` the cast `CastArgs("e4m3", 128, "float32")`, one scale for a head. Does the transform help?
# 4. Replace Sylvester's matrix by a random orthogonal one. Is the largest element as small? What would it cost?
# 5. Transform the keys, but quantise before the transform's rounding to bf16. How many codes change, and by how much?
# 6. In `write`, use the other layout. Which requests of stores change, and how many sectors do they touch?
