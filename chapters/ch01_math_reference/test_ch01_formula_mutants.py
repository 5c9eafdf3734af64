"""Plausible bugs in the formulas, one at a time: the checks of this chapter must notice every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chapters.ch01_math_reference.attention_checks import ATTENTION_CHECKS
from chapters.ch01_math_reference.formula_checks import FORMULA_CHECKS
from qwen3_ref import functional as F
from qwen3_ref.functional import Partial

# The originals: a mutant replaces the name in the module, and often needs what it replaces.
RMS_NORM, ROPE, COS_SIN, REPEAT_KV, SWIGLU = F.rms_norm, F.apply_rope, F.rope_cos_sin, F.repeat_kv, F.swiglu
PARTITION, ONLINE, NAIVE, SOFTMAX = F.attention_partition, F.attention_online, F.attention_naive, F.softmax


def norm_centred(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    return RMS_NORM(x - x.mean(-1, keepdim=True), weight, eps, rounding)


def norm_with_eps_outside_the_root(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    wide = x.double()
    normed = wide / (wide.pow(2).mean(-1, keepdim=True).sqrt() + eps)
    return weight * normed.to(x.dtype) if rounding == "hf" else (weight.double() * normed).to(x.dtype)


def norm_by_unbiased_mean(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    size = x.shape[-1]
    return RMS_NORM(x, weight, eps, rounding) * (max(size - 1, 1) / size) ** 0.5


def norm_squared_in_16_bits(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return (weight * normed).to(x.dtype)


def norm_with_gemma_weight(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    return RMS_NORM(x, 1 + weight, eps, rounding)


def swap_rounding(x: Any, weight: Any, eps: Any, rounding: Any = "hf") -> Any:
    return RMS_NORM(x, weight, eps, "fused" if rounding == "hf" else "hf")


def rope_one_sided(x: Any, cos: Any, sin: Any, pairing: Any = "half") -> Any:
    turned = ROPE(x, cos, sin, pairing)
    return torch.cat((turned[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]), -1)


def rope_with_sign_lost(x: Any, cos: Any, sin: Any, pairing: Any = "half") -> Any:
    a, b = x.chunk(2, -1) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    parts = (a * cos - b * sin, b * cos - a * sin)
    return torch.cat(parts, -1) if pairing == "half" else torch.stack(parts, -1).flatten(-2)


def angles_of_half_the_exponent(positions: Any, head_dim: Any, theta: Any, dtype: Any) -> Any:
    return COS_SIN(positions, head_dim, theta**0.5, dtype)


def angles_in_the_models_dtype(positions: Any, head_dim: Any, theta: Any, dtype: Any) -> Any:
    frequency = (1.0 / theta ** (torch.arange(0, head_dim, 2).double() / head_dim)).to(dtype)
    angle = positions.to(dtype)[..., None] * frequency
    return angle.cos(), angle.sin()


def repeat_by_tiling(x: Any, group_size: Any) -> Any:
    return x.repeat(1, group_size, 1, 1)  # h % Hkv


def mask_aligned_to_the_first_key(query_len: Any, key_len: Any, device: Any = "cpu") -> Any:
    return torch.ones(query_len, key_len, dtype=torch.bool).tril()


def merge_without_rescaling_sums(a: Any, b: Any) -> Any:
    m = torch.maximum(a.m, b.m)
    shift = torch.where(m == -torch.inf, 0.0, m)
    return Partial(m, a.l + b.l, a.o * torch.exp(a.m - shift) + b.o * torch.exp(b.m - shift))


def merge_without_rescaling_outputs(a: Any, b: Any) -> Any:
    m = torch.maximum(a.m, b.m)
    shift = torch.where(m == -torch.inf, 0.0, m)
    return Partial(m, a.l * torch.exp(a.m - shift) + b.l * torch.exp(b.m - shift), a.o + b.o)


def merge_rescaling_one_side(a: Any, b: Any) -> Any:
    scale = torch.exp(a.m - torch.where(b.m == -torch.inf, 0.0, b.m))  # takes b's maximum for the larger one
    return Partial(b.m, a.l * scale + b.l, a.o * scale + b.o)


def merge_without_the_empty_guard(a: Any, b: Any) -> Any:
    m = torch.maximum(a.m, b.m)
    scale_a, scale_b = torch.exp(a.m - m), torch.exp(b.m - m)
    return Partial(m, a.l * scale_a + b.l * scale_b, a.o * scale_a + b.o * scale_b)


def merge_of_normalised_outputs(partials: Any) -> Any:
    outs = [p.o / torch.where(p.l == 0, 1.0, p.l) for p in partials]
    return torch.stack(outs).mean(0)


def merge_dividing_by_zero(partials: Any) -> Any:
    total = None
    for partial in partials:
        total = partial if total is None else F.merge_partials(total, partial)
    assert total is not None
    return total.o / total.l


def partition_ignoring_its_mask(q: Any, k: Any, v: Any, scale: Any, mask: Any = None) -> Any:
    return PARTITION(q, k, v, scale, None)


def partition_scaled_twice(q: Any, k: Any, v: Any, scale: Any, mask: Any = None) -> Any:
    return PARTITION(q * scale, k, v, scale, mask)


def partition_from_a_zero_maximum(q: Any, k: Any, v: Any, scale: Any, mask: Any = None) -> Any:
    partial = PARTITION(q, k, v, scale, mask)
    grow = torch.exp(torch.where(partial.m == -torch.inf, 0.0, partial.m))  # scores never shifted: exp overflows
    return Partial(torch.zeros_like(partial.m), partial.l * grow, partial.o * grow)


def online_dropping_the_tail(q: Any, k: Any, v: Any, scale: Any, mask: Any = None, block: Any = 64) -> Any:
    whole = max(block, k.shape[2] // block * block)
    return ONLINE(q, k[:, :, :whole], v[:, :, :whole], scale, None if mask is None else mask[:, :whole], block)


def naive_without_scale(q: Any, k: Any, v: Any, scale: Any, mask: Any = None) -> Any:
    return NAIVE(q, k, v, 1.0, mask)


def softmax_unshifted(scores: Any) -> Any:
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def softmax_in_16_bits(scores: Any) -> Any:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = weights.cumsum(-1)[..., -1:]  # a running sum in the scores' own dtype
    return weights / torch.where(total == 0, 1.0, total)


SOURCE = "the formulas"
MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "norm subtracts the mean": ("rms_norm", norm_centred),
    "norm ignores its weight": (
        "rms_norm",
        lambda x, w, eps, rounding="hf": RMS_NORM(x, torch.ones_like(w), eps, rounding),
    ),
    "norm drops eps": ("rms_norm", lambda x, w, eps, rounding="hf": RMS_NORM(x, w, 0.0, rounding)),
    "norm fixes eps at 1e-6": ("rms_norm", lambda x, w, eps, rounding="hf": RMS_NORM(x, w, 1e-6, rounding)),
    "norm adds eps outside the root": ("rms_norm", norm_with_eps_outside_the_root),
    "norm divides by n - 1": ("rms_norm", norm_by_unbiased_mean),
    "norm squares in 16 bits": ("rms_norm", norm_squared_in_16_bits),
    "norm adds one to its weight": ("rms_norm", norm_with_gemma_weight),
    "norm swaps its roundings": ("rms_norm", swap_rounding),
    "norm rounds once in hf": ("rms_norm", lambda x, w, eps, rounding="hf": RMS_NORM(x, w, eps, "fused")),
    "norm rounds twice in fused": ("rms_norm", lambda x, w, eps, rounding="hf": RMS_NORM(x, w, eps, "hf")),
    "rope swaps its pairings": (
        "apply_rope",
        lambda x, c, s, pairing="half": ROPE(x, c, s, "half" if pairing == "interleaved" else "interleaved"),
    ),
    "rope knows one pairing": ("apply_rope", lambda x, c, s, pairing="half": ROPE(x, c, s, "half")),
    "rope turns backwards": ("apply_rope", lambda x, c, s, pairing="half": ROPE(x, c, -s, pairing)),
    "rope turns one half": ("apply_rope", rope_one_sided),
    "rope loses a sign": ("apply_rope", rope_with_sign_lost),
    "rope halves the exponent": ("rope_cos_sin", angles_of_half_the_exponent),
    "rope fixes theta at 1e4": ("rope_cos_sin", lambda p, d, theta, dtype: COS_SIN(p, d, 1e4, dtype)),
    "rope counts positions from one": ("rope_cos_sin", lambda p, d, theta, dtype: COS_SIN(p + 1, d, theta, dtype)),
    "rope angles in the model's dtype": ("rope_cos_sin", angles_in_the_models_dtype),
    "rope swaps cos and sin": ("rope_cos_sin", lambda *args: COS_SIN(*args)[::-1]),
    "permutation is the identity": ("half_from_interleaved", lambda x: x),
    "kv heads are tiled": ("repeat_kv", repeat_by_tiling),
    "kv heads are reversed": ("repeat_kv", lambda x, g: REPEAT_KV(x.flip(1), g)),
    "mask hides the token itself": ("causal_mask", lambda t, s, device="cpu": torch.ones(t, s).tril(s - t - 1).bool()),
    "mask shows one token ahead": ("causal_mask", lambda t, s, device="cpu": torch.ones(t, s).tril(s - t + 1).bool()),
    "mask starts at the first key": ("causal_mask", mask_aligned_to_the_first_key),
    "naive forgets the scale": ("attention_naive", naive_without_scale),
    "naive ignores its mask": ("attention_naive", lambda q, k, v, scale, mask=None: NAIVE(q, k, v, scale)),
    "online drops the tail": ("attention_online", online_dropping_the_tail),
    "merge forgets the sums' rescale": ("merge_partials", merge_without_rescaling_sums),
    "merge forgets the outputs' rescale": ("merge_partials", merge_without_rescaling_outputs),
    "merge rescales one side": ("merge_partials", merge_rescaling_one_side),
    "merge lacks the empty guard": ("merge_partials", merge_without_the_empty_guard),
    "merge averages normalised outputs": ("merge_partitions", merge_of_normalised_outputs),
    "merge divides by zero": ("merge_partitions", merge_dividing_by_zero),
    "partition ignores its mask": ("attention_partition", partition_ignoring_its_mask),
    "partition scales twice": ("attention_partition", partition_scaled_twice),
    "partition never shifts": ("attention_partition", partition_from_a_zero_maximum),
    "softmax never shifts": ("softmax", softmax_unshifted),
    "softmax gives NaN for nothing": ("softmax", lambda scores: torch.softmax(scores, -1)),
    "softmax sums in 16 bits": ("softmax", softmax_in_16_bits),
    "swiglu swaps gate and up": ("swiglu", lambda g, u, rounding="hf": SWIGLU(u, g, rounding)),
    "swiglu is GLU": ("swiglu", lambda g, u, rounding="hf": torch.sigmoid(g) * u),
    "swiglu is GEGLU": ("swiglu", lambda g, u, rounding="hf": torch.nn.functional.gelu(g) * u),
    "swiglu rounds once in hf": ("swiglu", lambda g, u, rounding="hf": SWIGLU(g, u, "fused")),
    "swiglu rounds twice in fused": ("swiglu", lambda g, u, rounding="hf": SWIGLU(g, u, "hf")),
}


def noticed_by() -> str | None:
    """The first check that fails; only an assertion counts, a crash does not."""
    for check in (*FORMULA_CHECKS, *ATTENTION_CHECKS):
        try:
            check()
        except AssertionError:
            return check.__name__
    return None


def test_the_true_formulas_pass() -> None:
    assert noticed_by() is None


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tally: list[str]) -> None:
    attribute, bug = MUTANTS[name]
    monkeypatch.setattr(F, attribute, bug)
    assert noticed_by() is not None, f"no check noticed: {name}"
    tally.append(name)
