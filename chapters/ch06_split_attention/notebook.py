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
# # Lab 6: cut, attend, merge
#
# The [lesson](README.md) cuts a context into partitions and merges what they leave. Here we cut in hundreds of ways
# and compare, look at the partials of a real call, let blocks end in other orders, merge by a cluster, plant the bugs
# of the lesson, and prefill a prompt over pages. Nothing needs a GPU; where there is one, the last section times the
# kernels there. The whole lab takes well under a minute on two CPU cores.

# %%
import itertools
import json
import os
import sys
from pathlib import Path

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the simulator needs the cores

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from matplotlib.colors import ListedColormap
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch.nn.functional import scaled_dot_product_attention

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import fused_candidates
from chapters.ch06_split_attention.attention import Plan, paged_attention
from chapters.ch06_split_attention.candidates import by_plan
from chapters.ch06_split_attention.faults import FAULTS, KERNEL, arguments, planted, run, used_workspace
from chapters.ch06_split_attention.fused_candidates import EPS
from qwen3_ref.functional import attention_naive, attention_partition, merge_partitions
from qwen3_ref.paged import gather
from qwen_cuda import simulator
from qwen_cuda.attention_workspace import WorkspaceLayout, partition_tokens
from qwen_cuda.benchmarking import graph_timing
from qwen_cuda.building import Library, build
from qwen_cuda.loading import using
from qwen_cuda.operators import attention_workspace, paged_attention_partials

Q, K, V, W, ACC, OTHER = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f", "#7a4fb5"  # the tutorial's colours
CACHES = ("k_cache", "v_cache", "block_table", "context_lens")  # what attention reads, in its order
HEADS, KV_HEADS, DIM, PAGE = 16, 8, 128, 16  # of Qwen3-0.6B, and of its cache
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
# Libraries: the engine's kernel, checked, and the three bugs of the lesson.
CHECKED = Library("sim", (KERNEL,), "checked")
built = build(CHECKED, *(fault.library for fault in FAULTS.values()))
print(f"{len(built)} libraries")

# %% [markdown]
# ## Any cut gives the same answer
#
# A head of 1,000 tokens, cut at random places into 1 to 40 partitions, 300 times, and merged in a random order: in
# fp64, and in fp32. In fp64 the results differ from one pass by rounding. In fp32 they do, too, and we ask what
# becomes of the difference when the result is rounded to bf16.

# %%
# Left: the largest difference of each cut from one pass, in fp64 near 1e-16 and in fp32 near 1e-7, for any number of
# partitions. Right: nearly all cuts change no number of the bf16 result, and some change a few of its 128 numbers.
q, k, v = (torch.randn(1, 1, n, DIM, generator=random) for n in (1, 1000, 1000))
found: dict[torch.dtype, list[tuple[int, float]]] = {torch.float64: [], torch.float32: []}
changed = []
for dtype, differences in found.items():
    whole = merge_partitions([attention_partition(q.to(dtype), k.to(dtype), v.to(dtype), DIM**-0.5)])
    for _ in range(300):
        count = int(torch.randint(1, 41, (), generator=random))
        inner = torch.randint(0, 1001, (count - 1,), generator=random).sort().values.tolist()
        edges = [0, *inner, 1000]
        partials = [
            attention_partition(q.to(dtype), k[:, :, a:b].to(dtype), v[:, :, a:b].to(dtype), DIM**-0.5)
            for a, b in itertools.pairwise(edges)
        ]
        order = torch.randperm(count, generator=random).tolist()
        out = merge_partitions(partials[p] for p in order)
        differences.append((count, float((out - whole).abs().max())))
        if dtype == torch.float32:
            changed.append(int((out.bfloat16() != whole.bfloat16()).sum()))
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3), width_ratios=(3, 2))
for (dtype, differences), colour in zip(found.items(), (V, ACC), strict=True):
    counts, sizes = zip(*differences, strict=True)
    left.semilogy(counts, [max(size, 1e-18) for size in sizes], ".", color=colour, ms=4)
    left.text(41, sorted(sizes)[-1] * 2, str(dtype).removeprefix("torch."), color=colour, ha="right", va="bottom")
left.set(xlabel="partitions", ylabel="largest difference from one pass", ylim=(3e-19, 1e-5))
left.minorticks_off()
most = max(changed)
right.bar(range(most + 1), [changed.count(n) for n in range(most + 1)], color=ACC, alpha=0.8)
right.set(xlabel="numbers of 128 that change in bf16", ylabel="cuts", xticks=range(most + 1))
plt.show()
assert max(size for _, size in found[torch.float64]) < 1e-14
assert max(size for _, size in found[torch.float32]) < 1e-5
assert changed.count(0) > 100

# %% [markdown]
# ## Where the borders lie
#
# A graph was captured with 16 partitions of at least 128 tokens. Contexts grow from 1 to 4,096 tokens, and each block
# computes its own begin and end.

# %%
# Borders against the context. Up to 2,048 tokens partitions of 128 are added one by one; from there on 16 grow
# together.
plan = Plan(128, 16)
contexts = list(range(1, 4097, 8))
fig, ax = plt.subplots(figsize=(7.2, 3.2))
for p in range(plan.partitions):
    lengths = [partition_tokens(t, plan.partition_size, plan.partitions) for t in contexts]
    begins = [min(p * size, t) for size, t in zip(lengths, contexts, strict=True)]
    ends = [min((p + 1) * size, t) for size, t in zip(lengths, contexts, strict=True)]
    ax.fill_between(contexts, begins, ends, color=K, alpha=(0.25, 0.55)[p % 2], lw=0)
ax.axvline(plan.partitions * plan.partition_size, color=W, ls="--", lw=1)
ax.text(2000, 3700, "16 · 128 tokens", color=W, ha="right")
ax.set(xlabel="tokens of context", ylabel="token", xlim=(0, 4096), ylim=(0, 4096))
plt.show()

# %% [markdown]
# ## What partitions leave
#
# One sequence of 900 tokens with the heads of Qwen3-0.6B. A key that fits the query of head 0 well is planted at token
# 700. `paged_attention_partials` leaves $m$ and $\ell$ of each head and partition; $m$ is in powers of two.

# %%
# Left: m of 16 heads and 8 partitions; head 0 and its mate have one large maximum. Right: how much each partition
# counts, 2^(m - largest m) · l over their sum: about evenly for most heads, and nearly all in one partition for head
# 0.
pages = (64, PAGE, KV_HEADS, DIM)
k_cache, v_cache = (torch.randn(pages, generator=random).bfloat16() for _ in range(2))
q = torch.randn(1, HEADS, DIM, generator=random).bfloat16()
table = torch.randperm(64, generator=random).int()[None]
k_cache[table[0, 700 // PAGE], 700 % PAGE, 0] = q[0, 0]
call = (q, k_cache, v_cache, table, torch.tensor([900], dtype=torch.int32), DIM**-0.5)
eight = Plan(128, 8)
workspace = attention_workspace(q, KV_HEADS, eight.partitions)
paged_attention_partials(*call, eight.partition_size, eight.partitions, workspace)
parts = WorkspaceLayout(1, HEADS, KV_HEADS, DIM, eight.partitions).parts(workspace)
m, weight = parts.m[0], torch.exp2(parts.m[0] - parts.m[0].amax(-1, keepdim=True)) * parts.l[0]
share = weight / weight.sum(-1, keepdim=True)
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), sharey=True)
for ax, picture, title in zip(axes, (m, share), ("m", "share of the result"), strict=True):
    image = ax.imshow(picture, aspect="auto", cmap="Oranges", interpolation="nearest")
    fig.colorbar(image, ax=ax, shrink=0.8)
    ax.set(xlabel="partition", xticks=range(8))
    ax.set_title(title, fontsize=9)
axes[0].set(ylabel="query head", yticks=[0, 1, 5, 10, 15])
plt.show()
assert int(share[0].argmax()) == 700 // 128
assert float(share[0].max()) > 0.8
assert not parts.arrived.any()
for other in (Plan(16, 1), Plan(16, 57), Plan(256, 4)):  # other cuts: within rounding of each other
    assert torch.allclose(
        paged_attention(*call, plan=other).float(), paged_attention(*call, plan=eight).float(), rtol=2**-7, atol=2**-9
    )

# %% [markdown]
# ## Who comes last
#
# The simulator runs blocks in an order that a seed draws. Four blocks, twelve orders: which block writes the result,
# and are its bits the same?

# %%
# For each order the block that merged, marked: it varies. The bits of the result never do.
of = arguments(100)
last, results = [], []
for seed in range(12):
    with simulator.options(seed=seed), simulator.trace(CHECKED) as trace:
        results.append(torch.ops.qwen_sim.paged_attention_split(*of, 32, 4, used_workspace(), merge="last_block"))
    (block,) = {request.block for request in trace.where(target="out", kind="store")}
    last.append(block)
marks = torch.zeros(4, len(last))
marks[last, range(len(last))] = 1
fig, ax = plt.subplots(figsize=(7.2, 1.9))
ax.imshow(marks, cmap=ListedColormap(["none", OTHER]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
ax.set(xlabel="seed of the order", ylabel="block", xticks=range(len(last)), yticks=range(4))
plt.show()
assert len(set(last)) > 1
assert all(torch.equal(out, results[0]) for out in results)

# %% [markdown]
# What a warp of that block asks of memory, one request after the other. The merge is its end: three stores of partials,
# one atomic that counts, and the partials of all four blocks.

# %%
# Requests of warp 0 of the block that merges, in order: q, length and table, keys and values, shared memory for the
# merge of warps, then the workspace: stores, one atomic, loads; and one store of the result.
with simulator.trace(CHECKED) as trace:
    torch.ops.qwen_sim.paged_attention_split(*of, 32, 4, used_workspace(), merge="last_block")
(block,) = {request.block for request in trace.where(target="out", kind="store")}
requests = [request for request in trace.where(block=block, warp=0) if request.object is not None]
names = [request.object.name for request in requests if request.object is not None]
rows = ("q", "context_lens", "block_table", "k_cache", "v_cache", "shared", "workspace", "out")
fig, ax = plt.subplots(figsize=(7.2, 3))
for kind, colour, mark in (("load", Q, "."), ("store", ACC, "s"), ("atomic", OTHER, "*")):
    steps = [i for i, request in enumerate(requests) if request.kind == kind]
    ax.plot(steps, [rows.index(names[i]) for i in steps], mark, color=colour, ms=9 if mark == "*" else 4, label=kind)
ax.set_yticks(range(len(rows)), labels=rows)
ax.invert_yaxis()
ax.set(xlabel="request")
ax.legend(frameon=False, labelcolor="linecolor", loc="lower left")
plt.show()
workspace_kinds = [r.kind for r, name in zip(requests, names, strict=True) if name == "workspace"]
assert workspace_kinds == ["store"] * 3 + ["atomic"] + ["load"] * 12

# %% [markdown]
# ## By a cluster, and with the write
#
# `fused_decode_attention` begins with packed QKV. We run it by both merges, and the two operators that it joins one
# after the other. Both caches have the same bits, and so have the results of both merges; that of the two operators,
# whose sums run in another order, may round to the number beside it. What differs is what the blocks ask of memory.

# %%
# Requests of all warps by what they touch, for each merge. Both read qkv, weights, table, keys and values alike; the
# last block's merge goes through the workspace, and the cluster's through shared memory alone.
FUSED, WRITE = (
    Library("sim", (KERNEL.with_name(f"{name}.cu"),), variant)
    for name, variant in (("fused_decode_attention", "checked"), ("qk_norm_rope_cache_write", "plain"))
)
build(FUSED, WRITE)
shape = Shape(100, 1, 2, 1)
make = fused_candidates.operands(shape, torch.device("cpu"))
token, sizes = fused_candidates.TOKEN, (EPS, shape.scale, shape.query_heads)
asked: dict[str, dict[str, int]] = {}
outs = []
for merge in ("last_block", "cluster"):
    made = make(0)
    given = [made[name] for name in (*token, *CACHES)]
    with simulator.trace(FUSED) as trace:
        out = torch.ops.qwen_sim.fused_decode_attention(*given, *sizes, 32, 4, used_workspace(), merge=merge)
    outs.append((out, made["k_cache"], made["v_cache"]))
    names = [request.object.name for request in trace.where() if request.object is not None]
    asked[merge] = {name: names.count(name) for name in names}
made = make(0)
with using(WRITE):
    given = [made[name] for name in (*token, "k_cache", "v_cache")]
    q, _ = torch.ops.qwen_sim.qk_norm_rope_cache_write(*given, EPS, shape.query_heads)
with using(CHECKED):
    in_turn = torch.ops.qwen_sim.paged_attention_split(
        q, *(made[name] for name in CACHES), shape.scale, 32, 4, used_workspace()
    )
for got in outs:
    assert all(map(torch.equal, got, (outs[0][0], made["k_cache"], made["v_cache"])))
    torch.testing.assert_close(got[0], in_turn, rtol=2**-7, atol=2**-14)
assert asked["last_block"]["workspace"] > 0 == asked["cluster"].get("workspace", 0)
touched = list(asked["last_block"])
fig, ax = plt.subplots(figsize=(7.2, 3.4))
for offset, (merge, colour) in zip((-0.2, 0.2), (("last_block", OTHER), ("cluster", V)), strict=True):
    bars = [asked[merge].get(name, 0) for name in touched]
    ax.barh([i + offset for i in range(len(touched))], bars, 0.36, color=colour, alpha=0.85, label=merge)
ax.set_yticks(range(len(touched)), labels=touched)
ax.invert_yaxis()
ax.set(xlabel="requests of warps, four blocks", xscale="log")
ax.legend(frameon=False, labelcolor="linecolor", loc="lower right")
plt.show()

# %% [markdown]
# ## Bugs without a report
#
# Each access of these kernels lies in its tensor and is ordered; the checked simulator has nothing to say. Two calls
# share a workspace.

# %%
# What comes of each planted bug, in words.
display(Markdown(f"```message\n{planted()}\n```"))

# %%
# The 256 numbers of each call's result: wrong ones are filled. Every bug is right, or wrong, in its own call.
fig, axes = plt.subplots(len(FAULTS), 2, figsize=(7.2, 2.6), sharex=True)
for row, (name, fault) in zip(axes, FAULTS.items(), strict=True):
    workspace = used_workspace()
    for ax, context in zip(row, (100, 40), strict=True):
        of = arguments(context)
        out, good = run(fault.library, of, workspace), run(CHECKED, of, used_workspace())
        right = torch.isclose(out.float(), good.float(), rtol=2**-6, atol=2**-6)
        ax.imshow(
            right.view(2, DIM),
            cmap=ListedColormap([ACC, "none"]),
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        ax.set(yticks=[])
        ax.set_title(f"{name}: {context} tokens", fontsize=8)
axes[-1][0].set(xlabel="dimension")
axes[-1][1].set(xlabel="dimension")
plt.show()

# %% [markdown]
# ## A prompt in chunks, over pages
#
# 96 tokens arrive in chunks of 40, 40 and 16. Each chunk's keys and values go to their pages; its queries then attend
# to all pages so far, gathered into one dense tensor, by PyTorch's SDPA. The result must be that of the whole prompt
# at once.

# %%
# The mask of each chunk: its queries see all earlier chunks and, of their own, what is not later. Together a triangle.
n = 96
q, k, v = (torch.randn(1, heads, n, DIM, generator=random) for heads in (HEADS, KV_HEADS, KV_HEADS))
k_pages, v_pages = (torch.full((8, PAGE, KV_HEADS, DIM), torch.nan) for _ in range(2))
blocks = torch.randperm(8, generator=random)[: n // PAGE].int()
chunks: list[torch.Tensor] = []
seen, begin = torch.zeros(n, n), 0
for size in (40, 40, 16):
    end = begin + size
    for t in range(begin, end):
        slot = blocks[t // PAGE], t % PAGE
        k_pages[slot], v_pages[slot] = k[0, :, t], v[0, :, t]
    past_k, past_v = (gather(cache, blocks, 0, end) for cache in (k_pages, v_pages))
    mask = torch.arange(end) <= torch.arange(begin, end)[:, None]
    seen[begin:end, :end] = mask * (1 + len(chunks))
    out = scaled_dot_product_attention(q[:, :, begin:end], past_k, past_v, mask, scale=DIM**-0.5, enable_gqa=True)
    chunks.append(out)
    begin = end
triangle = torch.ones(n, n, dtype=torch.bool).tril()
whole = attention_naive(q, k, v, DIM**-0.5, triangle)
assert torch.allclose(torch.cat(chunks, 2), whole, atol=1e-5)
fig, ax = plt.subplots(figsize=(3.6, 3.4))
ax.imshow(seen, cmap=ListedColormap(["none", Q, OTHER, V]), vmin=0, vmax=3, interpolation="nearest", alpha=0.7)
ax.set(xlabel="key", ylabel="query", xticks=[0, 40, 80], yticks=[0, 40, 80])
plt.show()

# %% [markdown]
# ## Times
#
# With a GPU, this cell times chapter 5's kernel and four plans there, on operands that no cache holds. Without one it
# shows what the benchmark has measured on an H200, if that lies in the repository.


# %%
# Time against the context: one block a KV head is fastest for short contexts and by far the slowest for long ones.
def on_this_gpu() -> dict[str, dict[int, float]]:
    """Plan → context → µs."""
    device = torch.device("cuda")
    plans = {f"{n} × {size}": Plan(size, n) for n, size in ((1, 128), (4, 128), (16, 128), (32, 128))}
    times: dict[str, dict[int, float]] = {name: {} for name in plans}
    for context in (128, 512, 2048, 8192):
        shape = Shape(context)
        make = grouped.operands(shape, device, peers=False)
        sets = [make(number) for number in range(max(2, min(64, 2**16 // context)))]
        variants = {name: by_plan(name, shape, one, device) for name, one in plans.items()}
        calls = {name: [lambda of=of, one=one: one.run(of) for of in sets] for name, one in variants.items()}
        for name, us in graph_timing(calls, device).items():
            times[name][context] = us.median
    return times


def stored() -> dict[str, dict[int, float]]:
    """The ways of the benchmark from docs/results; empty without a file."""
    times: dict[str, dict[int, float]] = {}
    file = root / "docs/results/h200/ch06_split_attention.json"
    for case in json.loads(file.read_text())["cases"] if file.exists() else []:
        shape = case["shape"]
        alike = (shape["batch"], shape["heads"], case["dtype"], case["cache"]) == (1, "16/8 × 128", "bfloat16", "cold")
        if alike and case["variant"].startswith("ours"):
            times.setdefault(case["variant"], {})[shape["context"]] = case["us"]["median"]
    return times


times = on_this_gpu() if torch.cuda.is_available() else stored()
if times:
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for (name, by_context), colour in zip(times.items(), (V, OTHER, ACC, K), strict=False):
        ax.loglog(list(by_context), list(by_context.values()), "o-", ms=4, color=colour, label=name)
    seen_contexts = sorted({context for by_context in times.values() for context in by_context})
    ax.set_xticks(seen_contexts, labels=[f"{context:,}" for context in seen_contexts], fontsize=8)
    ax.set(xlabel="tokens of context, one sequence, bf16", ylabel="µs")
    ax.legend(frameon=False, labelcolor="linecolor")
    ax.minorticks_off()
    plt.show()
else:
    display(Markdown("*No GPU here, and no results in the repository: `make bench-chapter 6` on a GPU writes them.*"))

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture or the report, run it.
#
# 1. Widen the scores of the first picture: multiply q by 30. What happens to the differences, and to the numbers that
#    change?
# 2. Capture for 64 partitions of 16 tokens instead. For which contexts are there more partitions than blocks that an
#    H200 runs at once?
# 3. Put the planted key at token 899. Which partition has it, and how many tokens does that partition have?
# 4. Let the new token be the first of a partition: make the context 97. Which block stores it?
# 5. Plant `__threadfence()` → nothing. Does any seed change the result in the simulator? Why not?
# 6. Merge the partials of the third picture in fp32 from the last to the first. How many of the 2,048 numbers change
#    in bf16?
