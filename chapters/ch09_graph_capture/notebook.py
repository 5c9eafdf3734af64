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
# # Lab 9: a step that goes on by itself
#
# The [lesson](README.md) takes the host out of a decode step. Here we ask the cost model who waits for whom, measure
# what a call costs on this machine before anything is launched, decode with the tiny model and watch what changes
# between two steps and what must not, and run the end of a step in the simulator, bugs included. Nothing needs a GPU;
# where there is one, the last section times the ladder there. The whole lab takes well under a minute on two CPU cores.

# %%
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the simulator needs the cores

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from matplotlib_inline.backend_inline import set_matplotlib_formats

from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.paged_model import PagedModel
from chapters.ch09_graph_capture import benchmark
from chapters.ch09_graph_capture.advance_checks import Rows
from chapters.ch09_graph_capture.cost_model import GRAPH_US, Step, Way, launches
from chapters.ch09_graph_capture.decode_step import StepKind
from chapters.ch09_graph_capture.decoder import Decoder
from chapters.ch09_graph_capture.faults import FAULTS, KERNEL, ONE, early, overrun, race, run
from chapters.ch09_graph_capture.starting_batch import StartingBatch
from qwen3_ref import QWEN3_0_6B
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.model import Qwen3
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Tokenizer
from qwen_cuda import simulator
from qwen_cuda.building import Library, build
from qwen_cuda.loading import load_operators

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
WAYS: dict[Way, str] = {"one by one": ACC, "graph": Q, "dependent": V}

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
# Libraries: the operators, and the kernel of this chapter in the checked simulator, as it is and with three bugs.
load_operators()
CHECKED = Library("sim", (KERNEL,), "checked")
build(CHECKED, *(fault.library for fault in FAULTS.values()))
torch.set_num_threads(2)

# %% [markdown]
# ## The wall
#
# 142 kernels that are all alike, and a host that takes 3.5 µs for a launch. We make the kernels faster, from right to
# left, and ask the model what a step takes in each of three ways.

# %%
# Time of a step against the time of a kernel. One by one, the line is level below 2.8 µs: there faster kernels change
# nothing. A graph goes on down; dependent launch lies below it everywhere.
kernel_us = [0.5 + 0.1 * i for i in range(56)]
fig, ax = plt.subplots(figsize=(7.2, 3))
for way, colour in WAYS.items():
    totals = [Step(launches(QWEN3_0_6B), 3.5, g, GRAPH_US, ahead=0.4).total_us(way) for g in kernel_us]
    ax.plot(kernel_us, totals, color=colour)
    ax.text(
        *{"one by one": (1.2, 520), "graph": (1.2, 215), "dependent": (5.2, 430)}[way], way, color=colour, fontsize=9
    )
wall = launches(QWEN3_0_6B) * 3.5
ax.axhline(wall, color=W, ls="--", lw=0.8)
ax.text(6.1, wall - 12, "142 launches of 3.5 µs", color=W, va="top", ha="right", fontsize=9)
ax.set(xlabel="µs of the device for a kernel", ylabel="µs for a step", xlim=(0.4, 6.1), ylim=(0, None))
plt.show()
at = Step(launches(QWEN3_0_6B), 3.5, 1.0, GRAPH_US)
assert abs(at.total_us("one by one") - replace(at, kernel_us=2.0).total_us("one by one")) < 2

# %% [markdown]
# From near: the first eight kernels. Red is the host, green the device.

# %%
# Three pairs of lanes. One by one, each kernel begins where its launch ends, and waits for it. In a graph, kernels
# follow each other with a gap; with dependent launches they overlap.
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for row, way in enumerate(WAYS):
    host, device = Step(8, 3.5, 1.8, GRAPH_US, ahead=0.4).spans(way)
    ax.broken_barh([(b, e - b - 0.05) for b, e in host], (row - 0.36, 0.3), color=ACC, alpha=0.8)
    for turn in (0, 1):
        ax.broken_barh([(b, e - b) for b, e in device[turn::2]], (row + 0.02, 0.3), color=V, alpha=0.9 - 0.35 * turn)
ax.set_yticks(range(3), labels=list(WAYS))
ax.set(xlabel="µs", ylim=(2.6, -0.6))
plt.show()

# %% [markdown]
# ## What a call costs before anything is launched
#
# On a CPU nothing is launched, but the way to a kernel is the same: Python, PyTorch's dispatcher, the checks of
# the arguments, the allocation of the result. We call operators on the smallest tensors that they take, so that
# next to nothing is computed.

# %%
# Bars: µs a call on this machine. A step makes 142 of them, so all that a graph skips is 142 times as long.
tiny = torch.ones(1, 8, dtype=torch.bfloat16)
weight = torch.ones(8, 8, dtype=torch.bfloat16)
rows = dict(zip(ONE.names, replace(ONE, hidden=1).tensors(), strict=True))
advance, linear = torch.ops.qwen_cuda.advance_decode, torch.ops.qwen_cuda.decode_linear
CALLS = {
    "torch.add": lambda: torch.add(tiny, tiny),
    "decode_linear": lambda: linear(tiny, weight),
    "advance_decode": lambda: advance(*rows.values(), ONE.num_blocks, ONE.block_size),
}


def us_of(call: Callable[[], object], times: int = 300) -> float:
    """The fastest of five rounds."""
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(times):
            call()
        rounds.append((time.perf_counter() - begun) * 1e6 / times)
    return min(rounds)


with torch.inference_mode():
    spent = {name: us_of(call) for name, call in CALLS.items()}
fig, ax = plt.subplots(figsize=(7.2, 1.6))
for place, us in enumerate(spent.values()):
    ax.barh(place, us, color=OTHER, height=0.6)
    ax.text(us + max(spent.values()) * 0.02, place, f"{us:.1f} µs, × 142 = {142 * us:,.0f} µs", va="center", fontsize=9)
ax.set_yticks(range(len(spent)), labels=list(spent))
ax.set(xlabel="µs a call, on this machine", xlim=(0, max(spent.values()) * 1.6))
plt.show()

# %% [markdown]
# ## What changes between two steps
#
# The tiny model tells a story on the kernels, one row, with pages of 16 tokens. After each step we look at the memory
# that the next one reads: what it holds, and where it lies.


# %%
# Left: the slot of the newest token against its position: runs of 16, each in a page of its own, and the pages are in
# no order. Right: which tensors changed their contents in a step, and which their address: none.
def short_plans(batch: int, kv_heads: int, longest: int, device: torch.device) -> Plan:
    """Three plans, so that a short story meets all of them."""
    return Plan(16, 1) if longest <= 20 else Plan(16, 4) if longest <= 64 else Plan(64, 4)


model = PagedModel(Qwen3.from_pretrained(TINY_DIR, dtype=torch.bfloat16, attention="sdpa"), plans=short_plans)
tokenizer = Tokenizer.from_pretrained(TINY_DIR)
cache = model.new_cache(tokens=320, max_sequences=3, max_context=160)
held = [cache.allocate() for _ in range(2)]
for _ in range(4):  # two others have taken pages in turn, and one is gone: free pages are scattered
    cache.append(held, [16, 16])
cache.free(held[0])
decoder = Decoder(model, cache)
story = decoder.start(0, tokenizer.encode("Once upon a time"), SamplingParams(), new_tokens=100)
NAMES = ("h", "block_table", "context_lens", "positions", "slot_mapping", "draws", "history")


def state() -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Contents and addresses of what outlives a step."""
    tensors = {name: getattr(decoder.rows, name) for name in NAMES}
    return {n: t.clone() for n, t in tensors.items()}, {n: t.data_ptr() for n, t in tensors.items()}


changed, moved = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
tokens: list[int] = []
slots: dict[int, int] = {}
kinds: list[StepKind] = []
graphs = decoder.graphs


class Noted:
    """Runs a step, and remembers of what kind it was."""

    enabled = False  # each step is enqueued by itself

    def __call__(self, kind: StepKind) -> None:
        kinds.append(kind)
        graphs(kind)


decoder.graphs = Noted()  # type: ignore[assignment]
for _ in range(80):
    before, places = state()
    tokens.append(decoder.next(story) or 0)
    after, now = state()
    slots[int(after["positions"][0])] = int(after["slot_mapping"][0])
    for name in NAMES:
        changed[name] += not torch.equal(before[name], after[name])
        moved[name] += places[name] != now[name]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3))
left.plot(list(slots), list(slots.values()), ".", color=K, ms=4)
left.set(xlabel="position", ylabel="slot")
right.barh(range(len(NAMES)), [changed[name] for name in NAMES], color=V, height=0.55)
right.barh(range(len(NAMES)), [moved[name] for name in NAMES], color=ACC, height=0.55)
right.set_yticks(range(len(NAMES)), labels=NAMES, fontsize=9)
right.set(xlabel="steps of 80 that changed it")
right.invert_yaxis()
plt.show()
print(tokenizer.decode(tokens))
assert not any(moved.values())
assert changed["block_table"] == 0
assert min(changed[name] for name in ("context_lens", "positions", "slot_mapping", "history")) == 80

# %% [markdown]
# ## Kinds of steps
#
# Each kind of step would be a graph. The plan of attention follows the context, so a story meets one after the other.

# %%
# Partitions of each step's plan against the step. Three levels: on a GPU, graphs of three kinds, captured once a
# step of their kind has run, and replayed from then on.
fig, ax = plt.subplots(figsize=(7.2, 1.9))
ax.step(range(len(kinds)), [kind.plan.partitions * kind.plan.partition_size for kind in kinds], color=OTHER)
ax.set(xlabel="step", ylabel="tokens that\nthe plan covers", ylim=(0, None))
plt.show()
print(f"{len(kinds)} steps, {len(set(kinds))} kinds: {', '.join(sorted({str(kind.plan) for kind in kinds}))}")
assert len(set(kinds)) == 3

# %% [markdown]
# ## One step behind
#
# The host enqueues a step, and only then looks for the token of the step before. So it always has drawn one token
# more than it has handed out, until the end; with graphs, up to four.

# %%
# Tokens that steps were enqueued for, and tokens handed out, at each call of next(). The first line runs one ahead.
decoder.finish(story)
cache.free(story.sequence)
short = decoder.start(0, tokenizer.encode("The cat"), SamplingParams(), new_tokens=12)
counts = []
while decoder.next(short) is not None:
    counts.append((short.drawn, short.given))
fig, ax = plt.subplots(figsize=(7.2, 2))
ax.step(range(1, 13), [drawn for drawn, _ in counts], where="mid", color=V)
ax.step(range(1, 13), [given for _, given in counts], where="mid", color=K)
ax.text(1.0, 4.6, "enqueued", color=V, fontsize=9)
ax.text(3.2, 1.6, "handed out", color=K, fontsize=9)
ax.set(xlabel="call of next()", ylabel="tokens")
plt.show()
assert [drawn - given for drawn, given in counts] == [1] * 11 + [0]

# %% [markdown]
# ## The end of a step, in the simulator
#
# `advance_decode` for three rows with room for 4, 9 and 14 more tokens, twelve times in a row: nobody watches, and the
# graph does not stop.

# %%
# Length of each row after each step. A row that has used up its room takes its last token, then drops to -1, at rest,
# and stays there.
three = Rows(
    ids=(3, 3, 3),
    lens=(12, 7, 2),
    table=((1, 2, -1), (4, 8, -1), (6, 0, -1)),
    num_blocks=9,
    block_size=8,
    max_context=24,
)
lengths = torch.stack([run(CHECKED, three, steps)["context_lens"] for steps in range(1, 13)])
fig, ax = plt.subplots(figsize=(7.2, 2.6))
for row, colour in enumerate((Q, K, V)):
    ax.step(range(1, 13), lengths[:, row], where="mid", color=colour)
    ax.text(0.9, int(lengths[0, row]), f"row {row}", color=colour, fontsize=9, ha="right", va="center")
ax.axhline(-1, color=W, lw=0.8, ls="--")
ax.set(xlabel="step", ylabel="context_lens", xlim=(0, 12.5))
plt.show()
assert lengths[-1].tolist() == [-1, -1, 14]
assert int(lengths.max()) == 16

# %% [markdown]
# What one launch asks of memory, line by line: a table of the checked simulator.

# %%
# Requests of each line of the kernel. All threads read the same few numbers; the embedding is the only long one.
with simulator.trace(CHECKED) as trace:
    run(CHECKED, replace(three, hidden=256))
display(trace.summary())

# %% [markdown]
# ## Three bugs
#
# A barrier is left out; a page begins one token early; a table is read one column too far. Only the third one hits
# memory that is not ours, and only there the simulator has something to say.

# %%
# Left: columns of h that hold the embedding, by the length of the row: all 40, but 1 for the last token of its room.
# Right: slots by position, right and with the bug: at the last token of a page they part.
LENGTHS = range(8, 16)
arrived = [int((run(FAULTS["race"].library, replace(ONE, lens=(n,)))["h"] != 0).sum()) for n in LENGTHS]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.6))
left.bar(LENGTHS, arrived, color=[ACC if count < 40 else W for count in arrived])
left.set(xlabel="tokens before this one, room for 16", ylabel="columns that are right")
for name, library, colour in (("right", CHECKED, V), ("early", FAULTS["early"].library, ACC)):
    found = [int(run(library, replace(ONE, lens=(n,)))["slot_mapping"]) for n in range(15)]
    right.plot(range(15), found, "o-", ms=3, color=colour, label=name)
right.set(xlabel="position", ylabel="slot")
right.legend(frameon=False, labelcolor="linecolor")
plt.show()
assert arrived == [40] * 7 + [1]

# %%
# The reports of the lesson: the dropped barrier, the early page, the table read too far.
for said in (race(), early(), overrun()):
    display(Markdown(f"```message\n{said}\n```"))

# %% [markdown]
# ## Times
#
# With a GPU, this cell times the ladder there, with the shapes of Qwen3-0.6B. Without one it shows what the benchmark
# has measured on an H200, if that lies in the repository.


# %%
# Time of a decode step by each version of the ladder, on this machine's GPU or from the stored results of an H200.
def on_this_gpu() -> dict[str, float]:
    """Version → µs, one row of 1,024 tokens."""
    device, times = torch.device("cuda"), {}
    start = StartingBatch.of_noise(benchmark.model_for(device), 1, 1024, 34)
    for step, make in benchmark.LADDER.items():
        with benchmark.launched_as(step, device):
            decoding = make(start)
            times[step] = min(benchmark.step_us(decoding, 32, torch.cuda.synchronize) for _ in range(4))
    return times


def stored() -> dict[str, float]:
    """The same from docs/results; empty without a file."""
    file = root / "docs/results/h200/ch09_graph_capture.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    return {c["step"]: c["us"]["median"] for c in cases if c["shape"] == {"context": 1024, "rows": 1}}


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 2))
    ax.barh(list(times), list(times.values()), color=[ACC, K, OTHER, V, Q], height=0.6)
    for place, us in enumerate(times.values()):
        ax.text(us, place, f" {us:,.0f} µs", va="center", fontsize=9)
    ax.set(xlabel="µs a step")
    ax.invert_yaxis()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 9` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Give the model a gap of 0 µs. Does dependent launch still gain anything, and by what?
# 2. How short must a launch be for the wall to lie at 1 µs a kernel? Which of the calls that you measured is near it?
# 3. Start the story with `new_tokens=20`. How many pages does the table have, and what does a 21st step do?
# 4. Put a second run into row 1 of a `Decoder` with two rows, 30 steps later. Is the first story still the same?
# 5. Let the rows of the simulator begin with a length of −1. Which tensors does a step change now?
# 6. Plant a bug: `id >= a.vocab` → `false`. Which input shows it, and where does the simulator say that it read?
