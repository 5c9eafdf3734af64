"""Each formula of Qwen3 as one function. They run in any floating dtype; in float64 they are the truth of every test.

Two orders of rounding appear (they agree in float64 up to its own rounding):
`hf` rounds where Hugging Face's eager code rounds, bit for bit; `fused` computes in float32 and rounds once at the end,
as our kernels do.

Letters in shapes: `b` sequences, `t` tokens, `d` hidden size, `Hq`/`Hkv` query/KV heads, `D` head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Rounding = Literal["hf", "fused"]
Pairing = Literal["half", "interleaved"]


def _wide(x: Tensor) -> Tensor:
    """`x` in the accumulation dtype: float32 for 16-bit inputs, unchanged for float32 and float64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


# --8<-- [start:linear]
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`y = x Wᵀ`. `x: [..., k]`, `weight: [n, k]` (PyTorch's layout: one row per output) → `[..., n]`."""
    return torch.nn.functional.linear(x, weight)


# --8<-- [end:linear]


# --8<-- [start:rms_norm]
def rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: Rounding = "hf") -> Tensor:
    """Scales each row to unit root mean square, then by `weight`. No mean is subtracted.

    `x: [..., d]`, `weight: [d]` → `[..., d]` in `x.dtype`.
    The sum of squares is float32 (float64 for float64).
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, eq. 4.
    """
    wide = _wide(x)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if rounding == "hf":
        return weight * normed.to(x.dtype)  # rounds twice in 16 bits: here and in the product
    return (_wide(weight) * normed).to(x.dtype)


# --8<-- [end:rms_norm]


# --8<-- [start:add_rms_norm]
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, rounding: Rounding = "hf"
) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual`, and that sum. `x, residual: [..., d]`, `weight: [d]` → two `[..., d]`.

    `hf` rounds the sum before it is normed; `fused` norms it in float32 and rounds each output once.
    """
    if rounding == "hf":
        total = x + residual
        return rms_norm(total, weight, eps, "hf"), total
    total = _wide(x) + _wide(residual)
    return rms_norm(total, _wide(weight), eps, "fused").to(x.dtype), total.to(x.dtype)


# --8<-- [end:add_rms_norm]


# --8<-- [start:rope]
# --8<-- [start:cos_sin]
def rope_cos_sin(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every rotation angle `m · theta^(−2i/D)`.

    `positions: [...]` integers → two tensors `[..., D/2]`, computed in float32 (float64 for float64) and
    rounded to `dtype`.
    Source: Su et al., RoFormer, 2021, eq. 15.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exponent = torch.arange(0, head_dim, 2, dtype=wide, device=positions.device) / head_dim
    angle = positions.to(wide)[..., None] * (1.0 / theta**exponent)
    return angle.cos().to(dtype), angle.sin().to(dtype)


# --8<-- [end:cos_sin]


# --8<-- [start:apply_rope]
def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing = "half") -> Tensor:
    """Rotates each pair of channels by its angle.

    `x: [..., t, D]`, `cos`, `sin: [t, D/2]` → `[..., t, D]`.
    Qwen3 pairs channel `i` with `i + D/2` (`half`); `interleaved` pairs `2i` with `2i + 1`,
    as the paper does. They differ by a permutation of the channels: `half_from_interleaved`.
    """
    if pairing == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


# --8<-- [end:apply_rope]
# --8<-- [end:rope]


def half_from_interleaved(x: Tensor) -> Tensor:
    """Reorders the last axis so that pairs (2i, 2i+1) become pairs (i, i + D/2)."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


# --8<-- [start:softmax]
def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, shifted by the maximum so that no exponential overflows; float32 or float64 inside.

    A row whose every score is −inf (nothing to attend to) gives zeros.
    """
    wide = _wide(scores)
    m = wide.amax(-1, keepdim=True)
    weights = torch.exp(wide - torch.where(m == -torch.inf, 0.0, m))  # −inf − (−inf) would be NaN
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total == 0, 1.0, total)).to(scores.dtype)


# --8<-- [end:softmax]


def silu(x: Tensor) -> Tensor:
    """`x · sigmoid(x)`, computed in float32 (float64 for float64) and rounded once to `x.dtype`."""
    return torch.nn.functional.silu(x)


# --8<-- [start:swiglu]
def swiglu(gate: Tensor, up: Tensor, rounding: Rounding = "hf") -> Tensor:
    """`silu(gate) · up`. Both `[..., i]` → `[..., i]`. `hf` also rounds the SiLU itself.

    Source: Shazeer, GLU Variants Improve Transformer, 2020, eq. 6.
    """
    if rounding == "hf":
        return silu(gate) * up
    return (silu(_wide(gate)) * _wide(up)).to(gate.dtype)


# --8<-- [end:swiglu]


def fused_linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """A linear layer with what stands around it in a decoder layer, rounded once.

    `x: [..., k]`, `weight: [n, k]`, `norm_weight: [k]` of an RMSNorm before it, `residual: [..., n]` → `[..., n]`, or
    `[..., n/2]` with `silu_mul`, where `weight` holds gate's rows, then up's. In `out_dtype`, by default the weight's.
    """
    # --8<-- [start:fused_linear]
    out_dtype = out_dtype or weight.dtype
    wide = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    x, weight = x.to(wide), weight.to(wide)
    if norm_weight is not None:
        x = rms_norm(x, norm_weight.to(wide), eps, "fused")
    out = linear(x, weight)
    if silu_mul:
        gate, up = out.chunk(2, dim=-1)
        out = swiglu(gate, up, "fused")
    if residual is not None:
        out = out + residual.to(wide)
    return out.to(out_dtype)
    # --8<-- [end:fused_linear]


# --8<-- [start:gqa]
# --8<-- [start:repeat_kv]
def repeat_kv(x: Tensor, group_size: int) -> Tensor:
    """Query head `h` reads KV head `h // group_size`.

    `x: [b, Hkv, t, D]` → `[b, Hkv · group_size, t, D]`.
    """
    if group_size == 1:
        return x
    b, heads, t, dim = x.shape
    copies = x[:, :, None].expand(b, heads, group_size, t, dim)
    return copies.reshape(b, heads * group_size, t, dim)


# --8<-- [end:repeat_kv]


def causal_mask(query_len: int, key_len: int, device: torch.device | str = "cpu") -> Tensor:
    """`[query_len, key_len]` bool, True where a query may look. The last query sees every key."""
    rows = torch.arange(key_len - query_len, key_len, device=device)
    return torch.arange(key_len, device=device)[None, :] <= rows[:, None]


# --8<-- [start:naive]
def attention_naive(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Grouped-query attention with all scores in memory, rounding where Hugging Face rounds.

    `q: [b, Hq, t, D]`, `k, v: [b, Hkv, s, D]`, `mask: [t, s]` bool (True = may be read)
    → `[b, Hq, t, D]`.
    A query that may read nothing gives NaN; the online and partitioned forms give zeros.
    """
    group_size = q.shape[1] // k.shape[1]
    k, v = repeat_kv(k, group_size), repeat_kv(v, group_size)
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(_wide(scores), dim=-1).to(q.dtype)
    return torch.matmul(weights, v)


# --8<-- [end:naive]
# --8<-- [end:gqa]


# --8<-- [start:partition]
class Partial(NamedTuple):
    """What one partition of the keys knows: enough to merge, independent of the rest.

    `m: [..., 1]` largest score (−inf if empty), `l: [..., 1]` sum of `exp(score − m)`, `o: [..., D]` the sum of
    `exp(score − m) · v`, not yet divided. All float32 (float64 for float64).
    """

    m: Tensor
    l: Tensor  # noqa: E741 - the letter of the literature
    o: Tensor


def attention_partition(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Partial:
    """Attention over one slice of the keys. Shapes as in `attention_naive`; `s` may be 0."""
    group_size = q.shape[1] // k.shape[1]
    q, k, v = _wide(q), repeat_kv(_wide(k), group_size), repeat_kv(_wide(v), group_size)
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if scores.shape[-1] == 0:
        zero = q.new_zeros(*q.shape[:-1], 1)
        return Partial(zero - torch.inf, zero, torch.zeros_like(q))
    m = scores.amax(-1, keepdim=True)
    # exp(−inf − (−inf)) would be NaN: a fully masked row subtracts 0 and sums to 0.
    p = torch.exp(scores - torch.where(m == -torch.inf, 0.0, m))
    return Partial(m, p.sum(-1, keepdim=True), torch.matmul(p, v))


def merge_partials(a: Partial, b: Partial) -> Partial:
    """The exact merge: both sums are brought to the larger maximum, then added. Associative and commutative."""
    m = torch.maximum(a.m, b.m)
    shift = torch.where(m == -torch.inf, 0.0, m)
    scale_a, scale_b = torch.exp(a.m - shift), torch.exp(b.m - shift)
    return Partial(m, a.l * scale_a + b.l * scale_b, a.o * scale_a + b.o * scale_b)


def merge_partitions(partials: Iterable[Partial]) -> Tensor:
    """Merges partitions and divides by the sum. Rows without any key give zeros. → `[b, Hq, t, D]`, float32 or float64.

    Raises:
        ValueError: no partition was given.
    """
    total: Partial | None = None
    for partial in partials:
        total = partial if total is None else merge_partials(total, partial)
    if total is None:
        raise ValueError("partials is empty; it must hold at least one partition.")
    return total.o / torch.where(total.l == 0, 1.0, total.l)


# --8<-- [end:partition]


# --8<-- [start:online]
def attention_online(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, block: int = 64
) -> Tensor:
    """Attention that reads K and V once, `block` keys at a time, with a running `(m, l, o)`.

    Shapes as in `attention_naive`. Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
    Raises:
        ValueError: `block` is below 1.
    """
    if block < 1:
        raise ValueError(f"block is {block}; it must be at least 1.")

    def slices() -> Iterable[Partial]:
        for start in range(0, max(1, k.shape[2]), block):
            keys = slice(start, start + block)
            yield attention_partition(q, k[:, :, keys], v[:, :, keys], scale, None if mask is None else mask[:, keys])

    return merge_partitions(slices()).to(q.dtype)


# --8<-- [end:online]
