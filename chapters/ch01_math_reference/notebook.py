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
# # Lab 1: the model under the microscope
#
# The [lesson](README.md) makes claims. Here we check them: every section asks one question and answers it with a
# picture; the last one says what to change to see it break. Nothing needs a GPU; where there is one, the timings use
# it. The whole lab runs in well under a minute on two CPU cores.

# %%
import math
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

here = Path.cwd().resolve()
root = next(folder for folder in (here, *here.parents) if (folder / "qwen3_ref").is_dir())
sys.path[:0] = [str(root), str(root / "kernels")]  # so that the lab also runs where nothing is installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: timings bear a busy machine better

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qwen3_ref import QWEN3_0_6B, KVCache, Qwen3, Qwen3Config, SamplingParams, Tokenizer, save_pretrained
from qwen3_ref import cost as C
from qwen3_ref import functional as F
from qwen3_ref.hub import TINY_DIR
from qwen3_ref.sampling import Sampler
from qwen_cuda.benchmarking import measure, measure_ceilings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Q, K, V, W, ACC = "#1f5fbf", "#b4560a", "#1d7a3e", "#5f6672", "#c0292f"  # the tutorial's colours
random = torch.Generator().manual_seed(0)
print(f"torch {torch.__version__} on {DEVICE.type}, {torch.get_num_threads()} threads")

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
# ## Number formats
#
# A floating-point number is a sign, an exponent (how large) and a fraction (how exact). bf16 is float32 with the last
# 16 bits of the fraction cut off: the same range, 2⁻⁸ of relative rounding error.

# %%
# The bits of π in three formats: bf16 keeps float32's eight exponent bits and seven of its 23 fraction bits.
FORMATS = [("float32", torch.float32, 32, 8), ("bfloat16", torch.bfloat16, 16, 8), ("float16", torch.float16, 16, 5)]
fig, axes = plt.subplots(len(FORMATS), 1, figsize=(7.2, 2.5))
for ax, (name, dtype, width, exponent_bits) in zip(axes, FORMATS, strict=True):
    value = torch.tensor(math.pi).to(dtype)
    pattern = int(value.view(torch.int32 if width == 32 else torch.int16)) & (2**width - 1)
    for i, bit in enumerate(f"{pattern:0{width}b}"):
        colour = ACC if i == 0 else K if i <= exponent_bits else Q
        ax.add_patch(plt.Rectangle((i, 0), 0.9, 0.9, color=colour, alpha=0.85 if bit == "1" else 0.22, lw=0))
    ax.text(32.6, 0.45, f"{float(value):.7f}", va="center", family="monospace")
    ax.text(-0.6, 0.45, name, va="center", ha="right")
    ax.set(xlim=(-5.5, 39), ylim=(-0.1, 1.0))
    ax.axis("off")
fig.suptitle("π: sign (red), exponent (orange), fraction (blue); a full square is a 1", fontsize=10)
plt.show()

# %% [markdown]
# What does the missing precision cost? Add 1 to a running sum, 1,024 times. In bf16 the numbers from 256 on are 2
# apart; 256 + 1 lies in the middle, and ties go to the even neighbour, which is 256 again.

# %%
# Left: the sum of 1,024 ones stops at 256 in bf16. Right: rounding error of bf16, a sawtooth below 2⁻⁸ of the value.
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8))
for dtype, colour, line, height in ((torch.float32, W, 3.5, 760), (torch.bfloat16, ACC, 1.8, 170)):
    total, sums = torch.tensor(0, dtype=dtype), []
    for _ in range(1024):
        total = total + torch.tensor(1, dtype=dtype)
        sums.append(float(total))
    left.plot(range(1, 1025), sums, color=colour, lw=line)
    left.text(720, height, str(dtype).removeprefix("torch."), color=colour, ha="right")
left.set(xlabel="ones added", ylabel="running sum", ylim=(0, 1060))
x = torch.linspace(1, 8, 4000, dtype=torch.float64)
right.plot(x, (x.bfloat16().double() - x).abs() / x * 100, color=Q, lw=0.9)
right.axhline(100 * 2**-8, color=W, ls="--", lw=1)
right.text(8, 100 * 2**-8, "2⁻⁸", ha="right", va="bottom", color=W)
right.set(xlabel="value", ylabel="rounding error, %", ylim=(0, 0.46))
plt.show()
assert sums[-1] == 256

# %% [markdown]
# So bf16 *stores*, and float32 *sums*. Every reduction in this tutorial keeps to that.
#
# ## RMSNorm
#
# RMSNorm divides by the root mean square and leaves the mean alone; LayerNorm subtracts the mean first.

# %%
# Left: a row with mean 2; LayerNorm centres it, RMSNorm does not. Right: errors of the two rounding orders, in ulp.
row = torch.randn(64, generator=random, dtype=torch.float64) + 2
one = torch.ones(64, dtype=torch.float64)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3))
for y, name, colour in (
    (row, "x", W),
    (F.rms_norm(row, one, 1e-6), "RMSNorm", Q),
    (torch.nn.functional.layer_norm(row, (64,)), "LayerNorm", K),
):
    left.plot(y, color=colour, lw=1.3)
    left.axhline(float(y.mean()), color=colour, ls=":", lw=1)
    left.text(64.5, float(y.mean()), name, color=colour, va="center")
left.set(xlabel="channel", xlim=(0, 63))
rows = torch.randn(400, 1024, generator=random).bfloat16()
gain = (1 + 0.2 * torch.randn(1024, generator=random)).bfloat16()
truth = F.rms_norm(rows.double(), gain.double(), 1e-6)
ulp = torch.ldexp(torch.full_like(truth, 2.0**-8), torch.frexp(truth).exponent)
for rounding, colour in (("hf", ACC), ("fused", V)):
    error = ((F.rms_norm(rows, gain, 1e-6, rounding).double() - truth) / ulp).flatten()  # type: ignore[arg-type]
    right.hist(error, bins=120, range=(-1.5, 1.5), color=colour, alpha=0.55, density=True)
    worst = f"{rounding}:\nat worst\n{float(error.abs().max()):.2f} ulp"
    right.text(-1.9 if rounding == "hf" else 0.75, 0.95, worst, color=colour, va="top")
right.set(xlabel="error, units in the last place of bf16", xlim=(-2, 2), ylim=(0, 1.05), yticks=[])
plt.show()

# %% [markdown]
# `hf` is Hugging Face's order: the normed row is rounded to bf16, then the product with the gain is rounded again.
# `fused` computes in float32 and rounds once, so no value is further from the truth than half a unit. That is what our
# kernels will promise.
#
# ## RoPE
#
# Does `q·k` depend on the distance alone? We put one query and one key at every pair of positions. On the right the
# per-channel gain of QK-norm is applied *after* the rotation instead of before it.

# %%
# Left: scores are constant along diagonals (equal distance). Right: with the norm's gain after RoPE they no longer are.
D, THETA, POSITIONS = 128, 1e6, 48
q, k = torch.randn(2, 1, D, generator=random, dtype=torch.float64)
q_gain, k_gain = 1 + 0.5 * torch.randn(2, D, generator=random, dtype=torch.float64)
cos, sin = F.rope_cos_sin(torch.arange(POSITIONS), D, THETA, torch.float64)
every_q, every_k = q.expand(POSITIONS, D), k.expand(POSITIONS, D)
before = F.apply_rope(every_q * q_gain, cos, sin) @ F.apply_rope(every_k * k_gain, cos, sin).T
after = (F.apply_rope(every_q, cos, sin) * q_gain) @ (F.apply_rope(every_k, cos, sin) * k_gain).T
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.4))
for ax, scores, title in zip(axes, (before, after), ("norm, then RoPE: Qwen3", "RoPE, then norm"), strict=True):
    ax.imshow(scores, cmap="coolwarm", interpolation="nearest")
    spread = max(float(scores.diagonal(d).max() - scores.diagonal(d).min()) for d in range(-40, 41))
    ax.set_title(f"{title}\nspread along a diagonal: {spread:.1e}", fontsize=10)
    ax.set(xlabel="key position n", ylabel="query position m")
plt.show()
assert max(float(before.diagonal(d).std()) for d in range(-40, 41)) < 1e-12

# %%
# The two pairings are one rotation up to a permutation of the channels; applied to the wrong order they differ in full.
m, n = torch.tensor([3]), torch.tensor([1003])
cs_m, cs_n = (F.rope_cos_sin(p, D, THETA, torch.float64) for p in (m, n))
half = F.apply_rope(F.half_from_interleaved(q), *cs_m) @ F.apply_rope(F.half_from_interleaved(k), *cs_n).T
interleaved = F.apply_rope(q, *cs_m, "interleaved") @ F.apply_rope(k, *cs_n, "interleaved").T
wrong = F.apply_rope(q, *cs_m) @ F.apply_rope(k, *cs_n).T
display(Markdown(
    f"q·k at positions 3 and 1003: interleaved **{float(interleaved):.6f}**, half on permuted channels "
    f"**{float(half):.6f}**, half on channels that were not permuted {float(wrong):.6f}."
))  # fmt: skip
assert abs(float(half - interleaved)) < 1e-12 < abs(float(wrong - interleaved))

# %% [markdown]
# ## Which KV head does a query head read?
#
# We give KV head `g` the value `g` and look at what each of the 16 query heads receives: by `repeat_kv`, and by the
# mistake that is easy to make (`Tensor.repeat`), which tiles.

# %%
# Query head h reads KV head ⌊h/2⌋ (left). Tiling pairs h with h mod 8 (right): every shape fits, every answer is wrong.
marked = torch.arange(8.0).view(1, 8, 1, 1)
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.4), sharey=True)
for ax, received, title in (
    (axes[0], F.repeat_kv(marked, 2), "repeat_kv: ⌊h/2⌋"),
    (axes[1], marked.repeat(1, 2, 1, 1), "Tensor.repeat: h mod 8"),
):
    heads = received.flatten()
    ax.scatter(range(16), heads, color=[Q if h // 2 == int(g) else ACC for h, g in enumerate(heads)], marker="s", s=36)
    ax.set(title=title, xlabel="query head h", xticks=range(0, 16, 2))
axes[0].set(ylabel="KV head", yticks=range(8))
plt.show()

# %% [markdown]
# ## A softmax that does not overflow
#
# float32 ends at 3.4·10³⁸, and $e^{s}$ passes it at $s = 88.7$. Three scores, one apart, pushed upwards together: their
# probabilities must not change.

# %%
# Without the shift the largest probability of three scores becomes NaN beyond 88.7; with it nothing changes at all.
top = torch.linspace(0, 120, 481)
scores = torch.stack((top, top - 1, top - 2), dim=-1)
naive = scores.exp() / scores.exp().sum(-1, keepdim=True)
stable = F.softmax(scores)
fig, ax = plt.subplots(figsize=(7.2, 2.4))
ax.plot(top, stable[:, 0], color=V, lw=4, alpha=0.45)
ax.plot(top, naive[:, 0], color=ACC, lw=1.6)
ax.axvspan(math.log(torch.finfo(torch.float32).max), 120, color=ACC, alpha=0.1, lw=0)
ax.text(104, 0.72, "∞ / ∞ = NaN", color=ACC, ha="center")
ax.text(2, 0.69, "shifted by the maximum (green), not shifted (red)", va="bottom")
ax.set(xlabel="largest score", ylabel="its probability", ylim=(0.55, 0.8))
plt.show()
assert naive[-1].isnan().all()
assert torch.allclose(stable[-1], stable[0])

# %% [markdown]
# ## Bit for bit
#
# The strongest check that the lesson has: a random model, saved by us, read by us and by transformers. We compare the
# logits as bits, then plant bugs. With a tolerance of five per cent, the first three of them would pass.

# %%
# Logits whose bits differ from transformers': none for the model as it stands, nearly all for each planted bug.
warnings.filterwarnings("ignore", message="IProgress not found")
from transformers import Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
config = Qwen3Config(
    vocab_size=300, hidden_size=64, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, initializer_range=0.2,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    save_pretrained(folder, Qwen3.random(config, dtype=torch.bfloat16))
    ours = Qwen3.from_pretrained(folder)
    theirs = Qwen3ForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()
tokens = torch.randint(300, (3, 40), generator=random)


@contextmanager
def planted(name: str, bug: Callable[..., Any]) -> Iterator[None]:
    """Replaces one formula for a while."""
    original = getattr(F, name)
    setattr(F, name, bug)
    try:
        yield
    finally:
        setattr(F, name, original)


rms_norm, swiglu, apply_rope = F.rms_norm, F.swiglu, F.apply_rope
BUGS: dict[str, tuple[str, Callable[..., Any]]] = {
    "as it stands": ("rms_norm", rms_norm),
    "norm rounds once": ("rms_norm", lambda x, w, eps: rms_norm(x, w, eps, "fused")),
    "SwiGLU rounds once": ("swiglu", lambda gate, up: swiglu(gate, up, "fused")),
    "eps ten times larger": ("rms_norm", lambda x, w, eps: rms_norm(x, w, 10 * eps)),
    "interleaved RoPE": ("apply_rope", lambda x, c, s: apply_rope(x, c, s, "interleaved")),
    "KV heads tiled": ("repeat_kv", lambda x, group: x.repeat(1, group, 1, 1)),
    "norm weights ignored": ("rms_norm", lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps)),
}
differ, largest = {}, {}
with torch.inference_mode():
    want = theirs(tokens).logits
    for title, (name, bug) in BUGS.items():
        with planted(name, bug):
            got = ours(tokens)
        differ[title] = float((got.view(torch.int16) != want.view(torch.int16)).float().mean())
        largest[title] = float((got.float() - want.float()).abs().max() / want.float().abs().max())
fig, ax = plt.subplots(figsize=(7.2, 2.9))
ax.barh(list(BUGS), [100 * share for share in differ.values()], color=[V, *[ACC] * 6], alpha=0.85)
for place, title in enumerate(BUGS):
    ax.text(
        100 * differ[title] + 1, place, f"off by up to {largest[title]:.1%} of the largest logit", va="center", size=9
    )
ax.set(xlabel="logits with other bits than transformers', %", xlim=(0, 165), xticks=range(0, 101, 20))
ax.invert_yaxis()
plt.show()
assert differ.pop("as it stands") == 0
assert all(share > 0 for share in differ.values())

# %% [markdown]
# ## Why a KV cache
#
# The tiny model that lies in `qwen3_ref/tiny` writes 192 tokens twice: once sending the whole text through at every
# step (`v1`), once with a KV cache (`v2`). We time each step.

# %%
# Time per token grows with the text without a cache and stays flat with one; the totals separate as N² from N.
tiny = Qwen3.from_pretrained(TINY_DIR, torch.float32, DEVICE)
tokenizer = Tokenizer.from_pretrained(TINY_DIR)
prompt = tokenizer.encode("Once upon a time there was a small robot who lived near the sea.")
NEW = 192


def write(cached: bool) -> tuple[list[int], list[float]]:
    """`NEW` greedy tokens, and the second at which each was there."""
    cache = KVCache(tiny.config, 1, len(prompt) + NEW, tiny.dtype, DEVICE) if cached else None
    ids, out, times = torch.tensor([prompt], device=DEVICE), [], []
    start = time.perf_counter()
    for _ in range(NEW):
        token = tiny(ids, cache, last_only=True)[:, -1:].argmax(-1)
        ids = token if cached else torch.cat((ids, token), dim=1)
        out.append(int(token))
        times.append(time.perf_counter() - start)
    return out, times


def exponent(each: Tensor) -> float:
    """p of total ≈ c · Nᵖ: the slope on logarithmic axes over the last three quarters of the run."""
    calm = torch.nn.functional.pad(each, (12, 12), value=float(each.median())).unfold(0, 25, 1).median(-1).values
    total = calm.cumsum(0)[NEW // 4 :].log()  # the running median takes out hiccups of the machine
    steps = torch.arange(NEW // 4, NEW).add(1).log()
    centred = steps - steps.mean()
    return float((centred * total).sum() / (centred * centred).sum())


threads = torch.get_num_threads()
torch.set_num_threads(1)  # steadier times on a machine with other work
with torch.inference_mode():
    tiny(torch.tensor([prompt], device=DEVICE))  # warm-up
    (v2_tokens, v2), (v1_tokens, v1) = write(cached=True), write(cached=False)
torch.set_num_threads(threads)
assert v1_tokens == v2_tokens, "the cache must not change a token"
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3))
for times, colour, name in ((v1, ACC, "v1, no cache"), (v2, V, "v2, KV cache")):
    each = torch.tensor(times).diff(prepend=torch.zeros(1))
    left.plot(range(1, NEW + 1), 1e3 * each, ".", ms=2.5, color=colour)
    right.loglog(range(1, NEW + 1), times, color=colour)
    level = 4 * v1[-1] if times is v1 else v1[-1]
    right.text(1, level, f"{name}: about N^{exponent(each):.1f}", color=colour, va="center")
slow = float(torch.tensor(v1).diff().quantile(0.97))  # a hiccup must not set the scale
left.set(xlabel="token", ylabel="time of this token, ms", ylim=(0, 1.3e3 * slow))
right.set(xlabel="tokens written, N", ylabel="total, s", ylim=(None, 8 * v1[-1]))
plt.show()
work = {"v1": sum(len(prompt) + i for i in range(NEW)), "v2": len(prompt) + NEW - 1}
display(Markdown(
    f"Rows sent through the layers: {work['v1']:,} without a cache, {work['v2']:,} with it. Measured: "
    f"**{v1[-1]:.1f} s** against **{v2[-1]:.1f} s**, the same {NEW} tokens."
))  # fmt: skip

# %% [markdown]
# The exponent lies below 2 because each step also pays a fixed price, whatever its length. What is that price?
#
# ## How many operations is one token?
#
# We let PyTorch report every operation of one decode step in the shape of Qwen3-0.6B (views, which touch no data, are
# left out). Two layers are enough: the others repeat the second.

# %%
# Operations of one decode step by kind: a few matrix products that read all the weights, among a crowd of small ones.
VIEWS = set("view reshape transpose slice select expand unsqueeze t detach detach_ chunk empty lift_fresh".split())


class Counting(TorchDispatchMode):
    """Counts what reaches PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def operations(layers: int) -> Counter[str]:
    """Operations of one decode step of a model with the widths of Qwen3-0.6B."""
    config = replace(QWEN3_0_6B, num_hidden_layers=layers, vocab_size=256)
    model = Qwen3.random(config, dtype=torch.bfloat16)
    cache = KVCache(config, 1, 8, torch.bfloat16)
    model(torch.tensor([[1, 2, 3]]), cache)
    with Counting() as counting:
        model(torch.tensor([[4]]), cache, last_only=True)
    return Counter({name: count for name, count in counting.calls.items() if name not in VIEWS})


once, twice = operations(1), operations(2)
whole = Counter({name: once[name] + 27 * (twice[name] - once[name]) for name in twice})
kinds = [name for name, _ in whole.most_common(14)]
fig, ax = plt.subplots(figsize=(7.2, 3))
colours = [W if name in ("linear", "matmul") else ACC for name in kinds]
ax.barh(kinds, [whole[name] for name in kinds], color=colours, alpha=0.85)
ax.set(xlabel=f"calls in one decode step of 28 layers, {sum(whole.values()):,} in all; those with matrices in grey")
ax.invert_yaxis()
plt.show()
assert 1500 < sum(whole.values()) < 2000

# %% [markdown]
# On a GPU each call is at least one kernel launch of several microseconds, for work that takes well below one. Chapters
# 2 to 6 merge them, chapter 9 launches them all at once.
#
# ## The cost model
#
# Every number of the lesson, recomputed from the shapes.

# %%
# Parameters and bytes of three models of the family in bf16, from their shapes alone.
family = {
    "Qwen3-0.6B": QWEN3_0_6B,
    "Qwen3-1.7B": replace(QWEN3_0_6B, hidden_size=2048, intermediate_size=6144),
    "Qwen3-4B": replace(
        QWEN3_0_6B, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32
    ),
}
lines = ["| | " + " | ".join(family) + " |", "|---|" + "---:|" * len(family)]
ROWS: dict[str, Callable[[Qwen3Config], str]] = {
    "parameters of a layer": lambda c: f"{C.layer_parameters(c):,}",
    "parameters in all": lambda c: f"{C.parameters(c):,}",
    "layers, MiB per token": lambda c: f"{C.layer_weight_bytes(c) / C.MIB:,.2f}",
    "head, MiB per token": lambda c: f"{C.head_weight_bytes(c) / C.MIB:,.2f}",
    "KV cache, KiB per token": lambda c: f"{C.kv_bytes_per_token(c) / C.KIB:,.0f}",
    "KV at 8192 tokens, MiB": lambda c: f"{8192 * C.kv_bytes_per_token(c) / C.MIB:,.0f}",
    "context whose KV outweighs the weights": lambda c: f"{math.ceil(2 * C.parameters(c) / C.kv_bytes_per_token(c)):,}",
}
lines += [f"| {title} | " + " | ".join(row(c) for c in family.values()) + " |" for title, row in ROWS.items()]
display(Markdown("\n".join(lines)))

small = QWEN3_0_6B
assert (C.layer_parameters(small), C.parameters(small)) == (15_730_944, 596_049_920)
assert round(2 * C.parameters(small) / C.GIB, 2) == 1.11
assert round(C.layer_weight_bytes(small) / C.MIB, 2) == 840.12
assert C.head_weight_bytes(small) / C.MIB == 296.75
assert C.kv_bytes_per_token(small) == 112 * C.KIB
assert 8192 * C.kv_bytes_per_token(small) == 896 * C.MIB
# The floors at the 4.8 TB/s of an H200's data sheet, and the prompt at which prefill crosses its ridge.
floors = {context: round(C.decode_cost(small, context).floor_us(4800)) for context in (128, 1024, 8192, 32768)}
assert floors == {128: 251, 1024: 273, 8192: 444, 32768: 1031}
assert next(t for t in range(1, 999) if C.prefill_cost(small, t).intensity > 989.5 / 4.8) == 277

# %%
# Bytes that one decoded token reads, over the context: weights first, the KV cache from some ten thousand tokens on.
contexts = [2**i for i in range(7, 16)] + [40960]
fig, ax = plt.subplots(figsize=(7.2, 3))
for (name, shape), colour in zip(family.items(), (Q, K, V), strict=True):
    total_bytes = [C.decode_cost(shape, t).bytes / C.GIB for t in contexts]
    ax.semilogx(contexts, total_bytes, color=colour, base=2)
    ax.axhline(C.decode_cost(shape, 0).weight_bytes / C.GIB, color=colour, ls=":", lw=1)
    ax.text(contexts[0], total_bytes[0] + 0.15, name, color=colour, va="bottom")
ax.set(xlabel="context, tokens", ylabel="GiB read per token", ylim=(0, None))
ax.set_title("dotted: weights alone; solid: with the KV cache", fontsize=10)
ax.set_xticks(contexts[:-1], labels=[str(t) for t in contexts[:-1]])
plt.show()

# %% [markdown]
# ## The roofline of your machine
#
# Two ceilings, measured now: bytes read per second and operations per second in a matrix product. Under them, layers of
# the shape of Qwen3-0.6B that process 1 to 128 tokens at once. One token is a decode step; many are a prefill.

# %%
# Speed of 0.6B layers under the roofline of this machine: decode at the left on the memory slope, prefill at the right.
ceilings = measure_ceilings(DEVICE, quick=True)
dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
peak = ceilings.matmul_tflops[str(dtype).removeprefix("torch.")] * 1e3  # GFLOP/s
shape = replace(QWEN3_0_6B, num_hidden_layers=28 if DEVICE.type == "cuda" else 3, vocab_size=1024)
layers = Qwen3.random(shape, dtype=dtype, device=DEVICE, attention="sdpa")
points = []
with torch.inference_mode():
    for count in (1, 2, 4, 8, 16, 32, 64, 128):
        batch = torch.randint(1024, (1, count), generator=random).to(DEVICE)
        us = measure(partial(layers, batch, None, True), DEVICE, budget_s=0.15, min_samples=3, warmup=1).median
        phase = C.prefill_cost(shape, count, dtype.itemsize)
        points.append((count, phase.intensity, phase.flops / us / 1e3))
ridge = peak / ceilings.read_gbps
xs = [min(p[1] for p in points) / 2, ridge, max(8 * ridge, 2 * points[-1][1])]
fig, ax = plt.subplots(figsize=(7.2, 3.6))
ax.loglog(xs, [min(peak, ceilings.read_gbps * i) for i in xs], color=W, lw=2)
ax.fill_between(xs, [min(peak, ceilings.read_gbps * i) for i in xs], 1e-9, color=W, alpha=0.08, lw=0)
ax.loglog([p[1] for p in points], [p[2] for p in points], "o", color=Q, ms=5)
for count, intensity, gflops in points[::2]:
    ax.text(intensity, gflops * 0.72, f"{count}", color=Q, ha="center", va="top", fontsize=9)
ax.axvline(ridge, color=W, ls=":", lw=1)
ax.text(xs[-1], peak * 1.08, f"matrix products: {peak:,.0f} GFLOP/s", ha="right", va="bottom", color=W)
ax.text(xs[0], peak * 1.08, f"reading: {ceilings.read_gbps:,.0f} GB/s", va="bottom", color=W)
ax.text(ridge * 1.1, min(p[2] for p in points) / 2, f"ridge: {ridge:.1f} flop/byte", color=W)
ax.set(xlabel="flop per byte", ylabel="GFLOP/s", ylim=(min(p[2] for p in points) / 3, peak * 2.2))
ax.set_title("numbers at the points: tokens processed at once", fontsize=10)
plt.show()

# %% [markdown]
# To the left of the ridge the machine waits for memory, and the only way to be faster is to read fewer bytes or to use
# each byte for more tokens. Decoding one sequence is as far left as a matrix product can be.
#
# ## And it writes
#
# The same functions with trained weights: seven million parameters that have read little but small stories. We look at
# the eight tokens of an answer about which the model was least certain.

# %%
# The eight least certain tokens of a story, each with its five likeliest candidates; the one that was drawn is blue.
question = [{"role": "user", "content": "Tell me a story about a fox who is scared of the dark."}]
asked = tokenizer.encode(tokenizer.render_chat(question, enable_thinking=False))
sampler = Sampler(SamplingParams(temperature=0.8, seed=7))
cache = KVCache(tiny.config, 1, len(asked) + 260, tiny.dtype, DEVICE)
story: list[int] = []
candidates: list[Tensor] = []
with torch.inference_mode():
    logits = tiny(torch.tensor([asked], device=DEVICE), cache, last_only=True)[0, -1].float()
    while len(story) < 260 and (not story or story[-1] not in tiny.config.eos_token_ids):
        candidates.append(F.softmax(logits / 0.8).cpu())
        story.append(sampler(logits))
        logits = tiny(torch.tensor([[story[-1]]], device=DEVICE), cache)[0, -1].float()
display(Markdown("\n".join("> " + line for line in tokenizer.decode(story).splitlines())))
fig, axes = plt.subplots(2, 4, figsize=(7.2, 3.9))
unsure = sorted(range(len(story)), key=lambda i: float(candidates[i].max()))[:8]
for ax, at in zip(axes.flat, sorted(unsure), strict=False):
    best = candidates[at].topk(5)
    ax.barh(range(5), best.values, color=[Q if int(i) == story[at] else W for i in best.indices], alpha=0.45)
    for place, i in enumerate(best.indices):
        ax.text(0.02, place, tokenizer.token(int(i)).strip(" ") or "␣", va="center", fontsize=9, parse_math=False)
    text = tokenizer.decode(story[:at]).replace("\n", " ")
    ax.set_title(f"…{text[-16:]}", fontsize=8, parse_math=False)
    ax.set(xlim=(0, 1), xticks=[0, 1], yticks=[])
    ax.invert_yaxis()
plt.show()

# %% [markdown]
# ## Things to try
#
# Change a cell, predict the picture, run it.
#
# 1. Sum the 1,024 ones in bf16 *pairwise* instead of one after another. Why is the result exact now, and what does that
#    say about a sum spread over 32 lanes of a warp?
# 2. Set `THETA` to 100 in the RoPE cell and raise `POSITIONS`. At which distances do far tokens look near again?
# 3. Plant a bug of your own under *Bit for bit*. Can you find one that changes no bit? (An `eps` that differs by one
#    part in a million is a candidate; why?)
# 4. Give `write` a longer `NEW`. Does the exponent of `v1` approach 2, or pass it? What grows faster than the layers?
# 5. In the roofline, replace float32 by bfloat16 (or the reverse). Which ceiling moves, and which points follow?
# 6. Raise the temperature to 1.5 and read the story again, then look at the bars.
