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
# # Lab 4: heads, lanes, pages
#
# The [lesson](README.md) norms and rotates heads and writes keys and values to pages, in one launch. Here we look at
# why the norm comes first, at what PyTorch does instead, at a cache in use, and at what the kernels ask of memory.
# Nothing needs a GPU; where there is one, the last section times the kernels there. The whole lab takes well under a
# minute on two CPU cores.

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

from chapters.ch04_paged_kv import candidates, faults
from chapters.ch04_paged_kv.paged_cache import OutOfBlocks, PagedKVCache
from qwen3_ref import QWEN3_0_6B
from qwen3_ref.functional import apply_rope, rms_norm, rope_cos_sin
from qwen_cuda import simulator
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import using

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
STEPS = {path.name[:2]: path for path in sorted((root / "chapters/ch04_paged_kv/steps").glob("v*.cu"))}
STEPS["kernels/cuda"] = root / "kernels/cuda/qk_norm_rope_cache_write.cu"
COLOUR = dict(zip(STEPS, (ACC, K, OTHER, Q, W, V), strict=True))
HEADS, KV_HEADS, DIM, THETA = 16, 8, 128, 1e6  # of Qwen3-0.6B
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
# Libraries: v1 and v3 to v5 and the engine's kernel, checked, the latter also with 32 lanes; the lesson's two bugs.
CHECKED = {step: Library("sim", (path,), "checked") for step, path in STEPS.items() if step != "v2"}
BROKEN = {name: faults.broken(name) for name in faults.FAULTS}
ENGINE = STEPS["kernels/cuda"]
OF_32_LANES = Library("sim", (ENGINE,), "checked", (Edit(ENGINE.name, "launch_heads<T, 8,", "launch_heads<T, 32,"),))
print(f"{len(build(*CHECKED.values(), OF_32_LANES, *BROKEN.values()))} libraries")

# %% [markdown]
# ## Why the norm comes before the rotation
#
# A query at position m and a key seven tokens before it. With the weights first, the score is the same for every m.
# With the weights behind the rotation, the pair's two axes are stretched after it was turned, and the score wanders.

# %%
# Scores of one query and one key at a distance of 7, by position: flat with the weight first, restless with it behind.
q, k = torch.randn(2, DIM, generator=random, dtype=torch.float64)
q_weight, k_weight = 1 + 0.3 * torch.randn(2, DIM, generator=random, dtype=torch.float64)
at = torch.arange(0, 300)
turned = [rope_cos_sin(at + ahead, DIM, THETA, torch.float64) for ahead in (7, 0)]
ones = torch.ones(DIM, dtype=torch.float64)
scores = {}
for name, first in (("weight, then rotation", True), ("rotation, then weight", False)):
    sides = []
    for x, weight, (cos, sin) in zip((q, k), (q_weight, k_weight), turned, strict=True):
        normed = rms_norm(x.expand(len(at), -1), weight if first else ones, 1e-6)
        sides.append(apply_rope(normed, cos, sin) * (1 if first else weight))
    scores[name] = (sides[0] * sides[1]).sum(-1) / DIM**0.5
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for (name, values), colour in zip(scores.items(), (V, ACC), strict=True):
    ax.plot(at, values, color=colour, lw=1.6, label=name)
ax.set(xlabel="position of the key; the query is 7 further", ylabel="score")
ax.legend(frameon=False, labelcolor="linecolor", ncols=2, loc="upper right")
ax.margins(y=0.3)
plt.show()
spread = [float(values.max() - values.min()) for values in scores.values()]
assert spread[0] < 1e-10
assert spread[1] > 0.1

# %% [markdown]
# ## What PyTorch does
#
# A dispatch mode sees each operation. We leave views out, as they start nothing, and count what each operation reads
# and writes, for one token of one layer.


# %%
# Bytes in and out of the 34 operations, in their order: two for the angles, 15 each for Q and K, two writes.
class Watch(TorchDispatchMode):
    """Name and bytes of each operation that is no view."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        name = func.overloadpacket.__name__
        if func.is_view:
            return out
        if name == "index":  # of the table only the rows that it takes
            moved = 2 * out.nbytes
        elif name == "index_put_":  # the values go in and out; the rest of the cache stays
            moved = 2 * args[2].nbytes
        else:
            given = args[0] if isinstance(args[0], list | tuple) else args
            moved = out.nbytes + sum(one.nbytes for one in given if isinstance(one, Tensor))
        self.seen.append((name.strip("_"), moved))
        return out


of = candidates.operands(1, torch.bfloat16, torch.device("cpu"))(0)
eager = next(variant for variant in candidates.peers(None) if variant.name == "torch_eager")
with Watch() as watch:
    eager.run(of)
names, moved = zip(*watch.seen, strict=True)
needed = candidates.work(1, torch.bfloat16).bytes
colours = [W] * 2 + ([ACC] * 8 + [OTHER] * 7) * 2 + [K] * 2
fig, ax = plt.subplots(figsize=(7.2, 2.9))
ax.bar(range(len(moved)), [m / 1024 for m in moved], color=colours, alpha=0.85)
ax.axhline(needed / 1024, color=V, ls="--", lw=1)
ax.text(len(moved) - 0.5, needed / 1024, "one kernel for all", color=V, ha="right", va="bottom")
for x, words, colour in (
    (5.5, "norm of Q", ACC),
    (13, "rotation", OTHER),
    (20.5, "norm of K", ACC),
    (28, "rotation", OTHER),
):
    ax.text(x, -3.4, words, color=colour, ha="center", va="top", fontsize=9)
ax.text(32.5, -3.4, "write", color=K, ha="center", va="top", fontsize=9)
ax.set(ylabel="KiB in and out", xticks=[], ylim=(0, 20))
ax.set_title(
    f"{len(moved)} operations, {sum(moved) / 1024:.0f} KiB for a token that needs {needed / 1024:.0f}", fontsize=10
)
plt.show()
assert len(moved) == 34
assert 9 < sum(moved) / needed < 12

# %% [markdown]
# ## A cache at work
#
# Forty blocks of 16 tokens. Requests come, grow, are forked and end, at random. Each line of the picture is the memory
# after one step: who uses which block. A sequence's blocks need not be neighbours.

# %%
# Time runs down. Each colour is a sequence, blank is free, grey a block that several share. A full cache refuses.
cache = PagedKVCache(QWEN3_0_6B, tokens=640, max_context=640, max_sequences=8)
lines, events, refused = [], torch.Generator().manual_seed(7), 0


def below(most: int) -> int:
    return int(torch.randint(most, (), generator=events))


for _ in range(160):
    alive = cache.sequences
    what = below(20)
    try:
        if not alive or (what < 3 and len(alive) < 8):
            cache.append([cache.allocate()], [20 + below(80)])
        elif what < 4 and len(alive) < 8:
            cache.fork(alive[below(len(alive))])
        elif what < 6:
            cache.free(alive[below(len(alive))])
        else:
            growing = [one for one in alive if cache.length(one)]
            cache.append(growing, [1 + below(9) for _ in growing])
    except OutOfBlocks:
        refused += 1
        cache.free(cache.sequences[0])
    line = torch.zeros(cache.num_blocks)
    for one in cache.sequences:
        for block in cache.block_table(one):
            line[block] = 6 if line[block] else 1 + one % 5
    lines.append(line)
fig, ax = plt.subplots(figsize=(7.2, 3.6))
shades = ListedColormap(["none", Q, K, V, OTHER, ACC, W])
ax.imshow(torch.stack(lines), cmap=shades, vmin=0, vmax=6, aspect="auto", interpolation="nearest")
ax.set(xlabel="block", ylabel="step")
plt.show()
used = sum(cache.length(one) for one in cache.sequences)
held = cache.num_blocks - cache.free_blocks
print(f"{refused} appends were refused; now {used} tokens of {len(cache.sequences)} sequences lie in {held} blocks")
assert refused
assert cache.free_blocks == cache.num_blocks - len({b for one in cache.sequences for b in cache.block_table(one)})

# %% [markdown]
# ## The same bits, by 8 lanes and by 32
#
# The engine's kernel has a fixed tree of additions, whatever the number of lanes. We write 40 tokens in one call, and
# again one by one with 32 lanes a head instead of 8. Then we take v5 for the prompt and v4 for the single tokens, whose
# sums go in different orders. In fp16, where a changed last bit of fp32 shows more often.


# %%
# Elements of q that differ between 8 lanes and 32: none with the fixed tree, some with two orders.
def of_tokens(tokens: int) -> dict[str, Any]:
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM, generator=random).half()
    weights = [(1 + 0.3 * torch.randn(DIM, generator=random)).half() for _ in range(2)]
    table = faults.cos_sin_table(512, THETA)
    caches = [torch.zeros(4, 16, KV_HEADS, DIM).half() for _ in range(2)]
    values = (qkv, *weights, table, torch.arange(tokens), torch.arange(tokens), *caches)
    return dict(zip(candidates.ARGUMENTS, values, strict=True))


def queries(library: Library, of: dict[str, Any], which: slice) -> Tensor:
    some = of | {name: of[name][which] for name in ("qkv", "positions", "slot_mapping")}
    with using(library):
        q, _ = torch.ops.qwen_sim.qk_norm_rope_cache_write(*some.values(), 1e-6, HEADS)
    return q


prompt = of_tokens(40)
differ = {}
for name, (together, alone) in {
    "kernels/cuda": (CHECKED["kernels/cuda"], OF_32_LANES),
    "v5 and v4": (CHECKED["v5"], CHECKED["v4"]),
}.items():
    at_once = queries(together, prompt, slice(None))
    singly = torch.cat([queries(alone, prompt, slice(i, i + 1)) for i in range(40)])
    differ[name] = int((at_once != singly).sum())
print(f"of {at_once.numel():,} elements differ: " + ", ".join(f"{name} {count}" for name, count in differ.items()))
assert differ["kernels/cuda"] == 0
assert differ["v5 and v4"] > 0

# %% [markdown]
# ## What a warp asks for
#
# `simulator.trace` records every access of a checked kernel. The first load of `qkv` by the first warp: in v1 32 lanes
# read from 32 heads, in v3 from one, in v5 sixteen bytes each from four. Hover over a lane or a sector to see its
# bytes.

# %%
# v1: 32 sectors for 64 bytes. v3: 2 sectors for 64 bytes. v5: 16 sectors for 512 bytes.
TRACES = {}
for step, library in CHECKED.items():
    with simulator.trace(library) as TRACES[step]:
        queries(library, prompt, slice(0, 2))
for step in ("v1", "v3", "v5"):
    request = TRACES[step].where(target="qkv", kind="load", block=0, warp=0)[0]
    print(f"{step}: {request.transactions.sectors} sectors for {request.bytes_requested} bytes")
    display(HTML(simulator.access_pattern(request).svg()))

# %% [markdown]
# By hand: a head is 256 bytes, or 8 sectors. v3 loads it by four requests of 64 bytes, v4 by two of 128, v5 four heads
# by two of 512. A token has 32 heads.

# %%
# Requests for qkv and the sectors that they move, for one token, by hand (outlined) and traced (filled).
BY_HAND = {"v3": (4 * 32, 256), "v4": (2 * 32, 256), "v5": (2 * 32 // 4, 256)}
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.4))
for step, hand in BY_HAND.items():
    requests = TRACES[step].where(target="qkv", kind="load")
    found = (len(requests) / 2, sum(request.transactions.sectors for request in requests) / 2)
    for ax, expected, count in zip(axes, hand, found, strict=True):
        ax.bar(step, count, color=COLOUR[step], alpha=0.8)
        ax.bar(step, expected, fill=False, edgecolor=W, lw=1.2, width=0.9)
        ax.text(step, count, f"{count:,.0f}", ha="center", va="bottom", fontsize=9)
    assert found == hand
for ax, title in zip(axes, ("requests for a token", "sectors for a token"), strict=True):
    ax.set_title(title, fontsize=9)
    ax.set(yticks=[])
    ax.margins(y=0.2)
plt.show()

# %% [markdown]
# ## A warp, step by step
#
# v3 asks for the weights and the angles after the shuffles, v4 before them. In v3 the second trip to memory begins when
# the sum is known, in v4 as soon as the position is there; the sum is added meanwhile.

# %%
# The first warp of v3: load the head, five shuffles, then weights and angles.
display(HTML(TRACES["v3"].timeline(block=0, warp=0).svg()))

# %%
# The first warp of v4: everything is asked for first, then five shuffles.
display(HTML(TRACES["v4"].timeline(block=0, warp=0).svg()))

# %% [markdown]
# ## A bug that the checker finds, and one that it cannot find
#
# Slot −1 taken for a slot:

# %%
# The report of the checked simulator: a write before the start of the cache.
display(Markdown(f"```message\n{faults.minus_one()}\n```"))

# %% [markdown]
# The other kernel takes the position for the slot. With one sequence in a fresh cache that is right. We give it a
# sequence of 20 tokens in blocks 0 and 1, then the same in blocks 3 and 1.

# %%
# Slots of the cache: written as they should be, written wrongly, and missing. On scattered blocks 16 tokens go astray.
fig, axes = plt.subplots(2, 1, figsize=(7.2, 2.2), sharex=True)
for ax, (name, slots) in zip(
    axes, {"blocks 0, 1": [*range(20)], "blocks 3, 1": [*range(48, 64), *range(16, 20)]}.items(), strict=True
):
    written = [
        faults.run(library, faults.arguments(slots))[1].view(64, -1) for library in (CHECKED["v3"], BROKEN["position"])
    ]
    right, wrong = (cache.ne(0).any(-1) for cache in written)
    state = torch.where(right & wrong, 1, torch.where(wrong, 2, torch.where(right, 3, 0)))
    ax.imshow(
        state[None], cmap=ListedColormap(["none", V, ACC, W]), vmin=0, vmax=3, aspect="auto", interpolation="nearest"
    )
    for border in (16, 32, 48):
        ax.axvline(border - 0.5, color=W, lw=0.8)
    ax.set(yticks=[])
    ax.set_ylabel(name, rotation=0, ha="right", va="center")
    assert int((state == 2).sum()) == (0 if name == "blocks 0, 1" else 16)
axes[1].set(xlabel="slot: green right, red written wrongly, grey missing")
plt.show()

# %% [markdown]
# ## Times
#
# With a GPU, this cell times every version there: calls in a CUDA graph, on operands that no cache holds. Without one
# it shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time of each version against the number of tokens, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Version → tokens → µs."""
    libraries = {step: Library("cuda", (path,)) for step, path in STEPS.items()}
    build(*libraries.values())
    found: dict[str, dict[int, float]] = {step: {} for step in STEPS}
    device, ours = torch.device("cuda"), candidates.ours().run
    for count in (1, 8, 128, 1024, 8192):
        make = candidates.operands(count, torch.bfloat16, device)
        sets = [make(number) for number in range(max(2, min(64, 2**13 // count)))]
        inside = {step: partial(using, library) for step, library in libraries.items()}
        calls = {step: [partial(ours, one) for one in sets] for step in STEPS}
        for step, us in graph_timing(calls, device, inside=inside).items():
            found[step][count] = us.median
    return found


def stored() -> dict[str, dict[int, float]]:
    """The same from docs/results; empty without a file."""
    found: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch04_paged_kv.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        if (case["variant"], case["dtype"], case["cache"]) == ("ours", "bfloat16", "cold"):
            found.setdefault(case["step"] or "kernels/cuda", {})[case["shape"]["tokens"]] = case["us"]["median"]
    return found


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for step, by_tokens in sorted(times.items(), reverse=True):
        ax.loglog(list(by_tokens), list(by_tokens.values()), "o-", ms=4, color=COLOUR[step], label=step)
    counts = sorted(times["v1"])
    ax.set_xticks(counts, labels=[f"{count:,}" for count in counts])
    ax.set(xlabel="tokens, bf16", ylabel="µs")
    ax.legend(frameon=False, labelcolor="linecolor")
    ax.minorticks_off()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 4` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Use a weight that is the same for r and r + 64 in the first picture. Does it still matter which comes first?
# 2. Make the blocks of the cache at work 64 tokens long, at the same 640 tokens. How many more appends are refused?
# 3. Give each lane of v3 four consecutive elements. Which two functions of a warp do you need now, and what does the
#    timeline show?
# 4. Plant a bug with an `Edit` in `cache_slot.cuh`: `place.slot <= a.num_slots`. Which tensor does the checker name?
# 5. Fork a sequence of 17 tokens three times and append one token to all four in one call. How many blocks are in use
#    then? Change the 17 to 16.
