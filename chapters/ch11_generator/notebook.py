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
# # Lab 11: a draw, a threshold, a text
#
# The [lesson](README.md) puts all stages in a row. Here we watch noise become softmax, a threshold being closed in on,
# blocks that share a row, a seed that means the same everywhere, and text that waits until it is certain. Nothing needs
# a GPU; where there is one, the last section times the backends there. The lab takes well under a minute on two cores.

# %%
import json
import os
import sys
from pathlib import Path

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the simulator needs the cores

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown, display
from matplotlib_inline.backend_inline import set_matplotlib_formats

import qwen_cuda.operators as ops
from chapters.ch11_generator import Generator, SamplingParams
from chapters.ch11_generator.faults import histogram
from chapters.ch11_generator.sampling_checks import Draws, normal
from qwen3_ref.gumbel import gumbel_noise, philox4x32
from qwen3_ref.sampling import Sampler
from qwen_cuda import simulator
from qwen_cuda.building import Library, build

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
VOCAB = 151_936  # of Qwen3

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
# The kernel in the simulator that checks every access; the generator's backends, all on the tiny trained model.
CHECKED = Library("sim", (root / "kernels/cuda/sample_tokens.cu",), "checked")
build(CHECKED)
BACKENDS = {name: Generator("tiny", "cpu", "bfloat16", name) for name in ("reference", "paged", "kernels")}
print(", ".join(BACKENDS))

# %% [markdown]
# ## Noise becomes softmax
#
# A million values of Gumbel noise against the density of the proof, and six logits whose largest sum with noise is
# taken 8,000 times. No exponential of a logit is computed on the way.

# %%
# Left: noise (filled) and density (line). Right: shares of draws (filled) and softmax (outlined) agree.
noise = gumbel_noise(seed=1, draw=0, size=1_000_000)
logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, 2.0])
wins = [int((logits.numpy() + gumbel_noise(1, draw, 6)).argmax()) for draw in range(8000)]
shares = np.bincount(wins, minlength=6) / len(wins)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8))
left.hist(noise, bins=120, range=(-3, 10), density=True, color=OTHER, alpha=0.5)
a = np.linspace(-3, 10, 400)
left.plot(a, np.exp(-a - np.exp(-a)), color=ACC, lw=1)
left.set(xlabel="noise", yticks=[])
right.bar(range(6), shares, color=OTHER, alpha=0.5)
right.bar(range(6), logits.softmax(-1), fill=False, edgecolor=W, width=0.9)
right.set(xlabel="token", ylabel="share")
plt.show()
assert abs(float(noise.mean()) - 0.5772) < 0.005
assert np.abs(shares - logits.softmax(-1).numpy()).max() < 4 * 0.5 / len(wins) ** 0.5

# %% [markdown]
# ## Most tokens need no logarithm
#
# A row like a model's. The sum of the largest logit is known first. A word with z leading zeros makes noise of at most
# 0.694 (z + 1); where logit and bound together do not reach that sum, the kernel passes the token over. Of 151,936
# tokens, for how many must it take logarithms?

# %%
# Each dot is a token: its logit less the largest, and its noise. Red dots pass the bound; above the line they would
# beat the largest logit.
row = normal(1, VOCAB)[0]
below = (row - row.max()).numpy()
noise = gumbel_noise(1, 0, VOCAB)
counter = np.zeros((4, VOCAB // 4), np.uint32)
counter[0] = np.arange(VOCAB // 4)
zeros = 31 - np.floor(np.log2(philox4x32(counter, 1).T.reshape(-1) + 0.5)).clip(-1)
bound = 0.694 * (zeros + 1)
own = float(noise[below.argmax()])
asked = below + bound >= own
fig, ax = plt.subplots(figsize=(7.2, 2.8))
ax.plot(below[::40], noise[::40], ".", color=W, ms=2)
ax.plot(below[asked], noise[asked], ".", color=ACC, ms=4)
ax.plot([-20, 0], [own + 20, own], color=V, lw=1)
ax.set(xlabel="logit − largest", ylabel="noise", ylim=(-3, 14), xlim=(-26, 0.5))
plt.show()
print(f"{int(asked.sum()):,} of {VOCAB:,} tokens")
assert (noise <= bound + 1e-6).all()
assert asked.mean() < 0.1

# %% [markdown]
# ## A threshold by its bits
#
# Keys of 32 bits that are ordered as the logits are. We look for the 25th largest: 256 bins from 16 below the largest
# up, then 256 bins inside the one that holds it.


# %%
# Each picture is a pass: tokens in a bin, from the top down; red is the bin in which 25 are reached.
def keys_of(x: torch.Tensor) -> torch.Tensor:
    """The bits of float32, made to rise with the number."""
    raw = (x + 0.0).view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(raw >> 31 == 1, raw ^ 0xFFFFFFFF, raw | 0x80000000)


def passes_of(x: torch.Tensor, k: int) -> list[tuple[torch.Tensor, int]]:
    """Tokens in each bin, and the bin that holds the k-th largest key, for each pass."""
    keys, found = keys_of(x), []
    start = torch.maximum(x.max() - 16, x.max() / 8) if x.max() > 0 else x.max() - 16
    low, high, above = int(keys_of(start[None])[0]), int(keys.max()), 0
    while True:
        shift = max((high - low).bit_length() - 8, 0)
        inside = keys[(keys >= low) & (keys <= high)]
        bins = torch.bincount((inside - low) >> shift, minlength=256)
        from_here = above + bins.flip(0).cumsum(0).flip(0)
        at = int((from_here >= k).nonzero().max())
        found.append((bins, at))
        if bins[at] == 1 or from_here[at] == k or shift == 0:
            return found
        above = int(from_here[at] - bins[at])
        low, high = low + (at << shift), min(high, low + ((at + 1) << shift) - 1)


passes = passes_of(row, 25)
fig, axes = plt.subplots(1, len(passes), figsize=(7.2, 2.6), squeeze=False)
for number, (ax, (bins, at)) in enumerate(zip(axes[0], passes, strict=True), 1):
    ax.bar(range(256), bins + 0.3, width=1, color=W)
    ax.bar(at, bins[at] + 0.3, width=2, color=ACC)
    ax.set(yscale="log", xlabel="bin", title=f"pass {number}: {int(bins[at])} in the bin")
    ax.minorticks_off()
axes[0, 0].set_ylabel("tokens")
plt.show()
several = [len(passes_of(normal(1, VOCAB, seed)[0], k)) for seed in range(5) for k in (5, 20, 100)]
print(f"passes of 15 searches: {min(several)} to {max(several)}")
assert len(passes) == 2
assert max(several) <= 5

# %% [markdown]
# ## Blocks that share a row
#
# The trace of one draw from 8,192 logits, top-k 20 and top-p 0.95: eight blocks of a cluster. From global memory each
# logit comes once. All further looks go to shared memory.

# %%
# Which block reads which logits from global memory (left), and bytes by kind of memory (right).
some = Draws(normal(1, 8192), 0.8, top_k=20, top_p=0.95)
with simulator.trace(CHECKED) as trace:
    traced = torch.ops.qwen_sim.sample_tokens(some.logits, **some.parameters(), seen=some.seen())
loads = trace.where(target="logits", kind="load")
times = np.zeros(8192, int)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), width_ratios=(2, 1))
for request in loads:
    times[request.offsets // 4] += 1
    left.plot(request.offsets // 4, np.full(len(request.offsets), request.block), "|", color=Q, ms=4)
left.set(xlabel="logit", ylabel="block", yticks=range(8))
logits_bytes = sum(int(request.bytes_requested) for request in loads)
shared = sum(int(r.bytes_requested) for r in trace.where(kind="load") if r.space == "shared")
right.bar(["global", "shared"], [logits_bytes / 1024, shared / 1024], color=[Q, ACC], alpha=0.8)
right.set(ylabel="KiB loaded")
plt.show()
assert (times == 1).all(), "each logit once"

# %% [markdown]
# With one histogram for all passes in place of two, the checker sees one block empty what another reads:

# %%
# The report of the checked simulator for the lesson's planted bug.
display(Markdown(f"```message\n{histogram()}\n```"))

# %% [markdown]
# ## One seed, one token
#
# Draws of one seed by the reference in PyTorch, by the CPU's operator in a batch, and by the simulated kernel with its
# threads in another order each time.

# %%
# The rank of the token that each of 12 draws takes. All three lie on each other.
sampler = Sampler(SamplingParams(0.8, top_k=20, top_p=0.95, seed=1))
rank = some.logits[0].argsort(descending=True).argsort()
said: dict[str, list[int]] = {"reference": [], "operator": [], "simulator": []}
for draw in range(12):
    given = some.parameters() | {"draws": torch.tensor([draw])}
    said["reference"].append(sampler(some.logits[0]))
    eight = {name: value.expand(8).contiguous() for name, value in given.items()}
    batch = ops.sample_tokens(some.logits.expand(8, -1).contiguous(), **eight, seen=some.seen().repeat(8, 1))
    assert len(set(batch.tolist())) == 1
    said["operator"].append(int(batch[5]))
    with simulator.options(seed=draw):
        said["simulator"].append(int(ops.sample_tokens(some.logits, **given, seen=some.seen())))
fig, ax = plt.subplots(figsize=(7.2, 2.4))
for (name, tokens), marker, colour in zip(said.items(), ("o", "s", "x"), (V, Q, ACC), strict=True):
    ax.plot(rank[tokens], marker, color=colour, fillstyle="none", ms=9 if marker == "s" else 6, label=name)
ax.set(xlabel="draw", ylabel="rank of the token")
ax.legend(frameon=False, labelcolor="linecolor")
plt.show()
assert said["reference"] == said["operator"] == said["simulator"]

# %% [markdown]
# ## One request, three backends
#
# The same prompt and seed on chapter 1's model, on pages, and on the decode kernels (on a CPU, their C++ twins) give
# one text. Then a longer text of the kernels, and the same with a string from its middle as the stop string.

# %%
# The text so far against the number of tokens: it grows in pieces, and not at all while a stop string might come.
PROMPT = "Once upon a time"
how = SamplingParams(0.8, top_k=20, top_p=0.95, seed=3)
texts = {name: generator.generate(PROMPT, 24, how).text for name, generator in BACKENDS.items()}
print(PROMPT + texts["kernels"])
whole = BACKENDS["kernels"].generate(PROMPT, 60, how).text
stop = whole[len(whole) // 2 :][:12]
grown = {}
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for (words, ends), colour in zip((("no stop", ()), (f"stop {stop!r}", (stop,))), (W, ACC), strict=True):
    pieces = [piece.text for piece in BACKENDS["kernels"].stream(PROMPT, 60, how, ends)]
    grown[words] = "".join(pieces)
    ax.step(
        range(1, len(pieces) + 1), np.cumsum([len(text) for text in pieces]), where="mid", color=colour, label=words
    )
ax.set(xlabel="tokens drawn", ylabel="characters given out")
ax.legend(frameon=False, labelcolor="linecolor")
plt.show()
assert len(set(texts.values())) == 1
assert all(stop not in text for words, text in grown.items() if words != "no stop")

# %% [markdown]
# ## Speeds
#
# With a GPU, this cell times the backends there, on the tiny model. Without one it shows what `make bench-e2e` has
# measured on an H200 with Qwen3-0.6B's shape, if that lies in the repository.


# %%
# Tokens per second of decoding, from the first version to the last.
def on_this_gpu() -> dict[str, float]:
    """Backend → tokens per second."""
    speeds = {}
    for name in BACKENDS:
        generator = Generator("tiny", "cuda", "bfloat16", name)
        for _ in range(3):  # the first run builds, the second captures
            speed = generator.generate(PROMPT, 128, SamplingParams()).figures.decode_tok_s
        speeds[name] = speed or 0.0
    return speeds


def stored() -> dict[str, float]:
    """Variant → tokens per second after a prompt of 128 tokens, from docs/results; empty without a file."""
    file = root / "docs/results/h200/ch11_generator.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    names = ("reference", "paged", "ours_launched", "ours", "ours_w8_head")
    return {
        case["variant"]: case["tok_s"]["median"]
        for case in cases
        if case["op"] == "decode" and case["variant"] in names and case["shape"]["prompt"] == 128
    }


speeds = on_this_gpu() if torch.cuda.is_available() else stored()
if speeds:
    fig, ax = plt.subplots(figsize=(7.2, 2.6))
    ax.barh(list(speeds), list(speeds.values()), color=V, alpha=0.8)
    ax.set(xlabel="tokens per second")
    ax.invert_yaxis()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-e2e` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture, run it.
#
# 1. Multiply the logits of the first picture by 3. What happens to the shares, and what to the noise?
# 2. Search for the 25th largest of logits that are all the same. How many passes are there, and how many tokens stay?
# 3. Trace a row of 1,000 logits. How many blocks are there, and why?
# 4. Trace the draw with a penalty of 1.2. Which loads are new?
# 5. Generate with `seed=3` and `seed=4`. From which token on do the texts differ?
# 6. Give a stop string that begins with the first characters of the answer. How long is the text held back?
