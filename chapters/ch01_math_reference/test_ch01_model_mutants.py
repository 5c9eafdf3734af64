"""Plausible bugs in how the model puts the formulas together: parity with transformers must notice every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chapters.ch01_math_reference.model_checks import check_cached, check_prefill
from chapters.ch01_math_reference.twins import SHAPES, Twins, make_twins
from qwen3_ref import KVCache, Qwen3
from qwen3_ref import functional as F
from qwen3_ref import model as model_module
from qwen3_ref.model import Attention, Decoder, DecoderLayer

APPEND, ADVANCE, COS_SIN, MASK = KVCache.append, KVCache.advance, F.rope_cos_sin, F.causal_mask
RMS_NORM, NAIVE, SWIGLU, DECODER = F.rms_norm, F.attention_naive, F.swiglu, Decoder.forward


def attention(
    norm_q: str = "q_norm",
    norm_k: str = "k_norm",
    norm_first: bool = True,
    cache_rotated: bool = True,
    norm_v: bool = False,
) -> Callable[..., Any]:
    """`Attention.forward`, with one of its choices made differently."""

    def forward(self: Any, x: Any, cos: Any, sin: Any, cache: Any) -> Any:
        b, t, _ = x.shape
        norms = [getattr(self, name) if name else (lambda y: y) for name in (norm_q, norm_k)]
        q, k, v = (p(x).view(b, t, -1, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if norm_first:
            q, k = norms[0](q), norms[1](k)
        v = self.k_norm(v) if norm_v else v
        if cache is not None and not cache_rotated:
            k, v = cache.append(self.layer, k, v)
            q, k = F.apply_rope(q, cos, sin), F.apply_rope(k, cos[-1:], sin[-1:])
        else:
            q, k = F.apply_rope(q, cos, sin), F.apply_rope(k, cos, sin)
            if not norm_first:
                q, k = norms[0](q), norms[1](k)
            if cache is not None:
                k, v = cache.append(self.layer, k, v)
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).reshape(b, t, -1))

    return forward


def layer(h_into_mlp: bool = False, norm_twice: bool = False) -> Callable[..., Any]:
    """`DecoderLayer.forward`, with one of its choices made differently."""

    def forward(self: Any, h: Any, cos: Any, sin: Any, cache: Any) -> Any:
        normed = self.input_layernorm(h)
        h = (normed if norm_twice else h) + self.self_attn(normed, cos, sin, cache)
        return h + self.mlp(h if h_into_mlp else self.post_attention_layernorm(h))

    return forward


def append_at_the_start(self: Any, index: int, k: Any, v: Any) -> Any:
    length, self.length = self.length, 0
    try:
        APPEND(self, index, k, v)
    finally:
        self.length = length
    end = length + k.shape[2]
    return self.k[index, :, :, :end], self.v[index, :, :, :end]


def attend_with_hidden_scale(self: Any, q: Any, k: Any, v: Any) -> Any:
    mask = MASK(q.shape[2], k.shape[2]) if q.shape[2] > 1 else None
    return NAIVE(q, k, v, (self.o_proj.out_features / q.shape[1]) ** -0.5, mask)  # hidden / heads is not head_dim


def naive_softmax_in_the_models_dtype(q: Any, k: Any, v: Any, scale: float, mask: Any = None) -> Any:
    group = q.shape[1] // k.shape[1]
    scores = torch.matmul(q, F.repeat_kv(k, group).transpose(2, 3)) * scale
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.matmul(weights / weights.sum(-1, keepdim=True), F.repeat_kv(v, group))


def naive_scaling_q_first(q: Any, k: Any, v: Any, scale: float, mask: Any = None) -> Any:
    return NAIVE(q * scale, k, v, 1.0, mask)  # the same mathematics, another rounding


def without_last_norm(self: Any, *args: Any) -> Any:
    norm, self.norm = self.norm, torch.nn.Identity()
    try:
        return DECODER(self, *args)
    finally:
        self.norm = norm


SOURCE = "the model"
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "QK-norm after RoPE": (Attention, "forward", attention(norm_first=False)),
    "no QK-norm": (Attention, "forward", attention(norm_q="", norm_k="")),
    "no norm on k": (Attention, "forward", attention(norm_k="")),
    "k takes the norm of q": (Attention, "forward", attention(norm_k="q_norm")),
    "v is normed too": (Attention, "forward", attention(norm_v=True)),
    "cache holds k before RoPE": (Attention, "forward", attention(cache_rotated=False)),
    "scale from hidden / heads": (Attention, "attend", attend_with_hidden_scale),
    "no causal mask": (Attention, "attend", lambda self, q, k, v: NAIVE(q, k, v, self.scale)),
    "residual taken after the norm": (DecoderLayer, "forward", layer(norm_twice=True)),
    "no norm before the MLP": (DecoderLayer, "forward", layer(h_into_mlp=True)),
    "no last norm": (Decoder, "forward", without_last_norm),
    "an untied head ignored": (Qwen3, "head_weight", property(lambda self: self.model.embed_tokens.weight)),
    "cache never advances": (KVCache, "advance", lambda self, tokens: None),
    "cache advances by one": (KVCache, "advance", lambda self, tokens: ADVANCE(self, 1)),
    "cache gives the new tokens only": (KVCache, "append", lambda self, i, k, v: (APPEND(self, i, k, v), (k, v))[1]),
    "cache writes at the start": (KVCache, "append", append_at_the_start),
    "cache swaps k and v": (KVCache, "append", lambda self, i, k, v: APPEND(self, i, k, v)[::-1]),
    "all layers share a cache": (KVCache, "append", lambda self, i, k, v: APPEND(self, 0, k, v)),
    "positions start at 0 again": (
        F,
        "rope_cos_sin",
        lambda positions, *rest: COS_SIN(positions - positions[0], *rest),
    ),
    "positions start at 1": (
        F,
        "rope_cos_sin",
        lambda positions, *rest: COS_SIN(positions + positions[-1] // 9, *rest),
    ),
    "theta fixed at 1e6": (F, "rope_cos_sin", lambda p, dim, theta, dtype: COS_SIN(p, dim, 1e6, dtype)),
    "interleaved RoPE": (F, "apply_rope", lambda x, cos, sin, rope=F.apply_rope: rope(x, cos, sin, "interleaved")),
    "chunks aligned to the first key": (F, "causal_mask", lambda t, s, device="cpu": torch.ones(t, s).tril().bool()),
    "mask off by one": (F, "causal_mask", lambda t, s, device="cpu": torch.ones(t, s).tril(s - t + 1).bool()),
    "query head h reads h % Hkv": (F, "repeat_kv", lambda x, group: x.repeat(1, group, 1, 1)),
    "unit norm weights": (F, "rms_norm", lambda x, weight, eps: RMS_NORM(x, torch.ones_like(weight), eps)),
    "eps fixed at 1e-6": (F, "rms_norm", lambda x, weight, eps: RMS_NORM(x, weight, 1e-6)),
    "norm rounds once": (F, "rms_norm", lambda x, weight, eps: RMS_NORM(x, weight, eps, "fused")),
    "swiglu rounds once": (F, "swiglu", lambda gate, up: SWIGLU(gate, up, "fused")),
    "gate and up swapped": (F, "swiglu", lambda gate, up: SWIGLU(up, gate)),
    "softmax in the model's dtype": (F, "attention_naive", naive_softmax_in_the_models_dtype),
    "scale applied to q": (F, "attention_naive", naive_scaling_q_first),
}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Twins]:
    return [
        make_twins(tmp_path_factory.mktemp("twins"), SHAPES[shape], dtype)
        for shape in ("group2-untied", "group4-theta1e4")
        for dtype in (torch.float32, torch.bfloat16)
    ]


def noticed(twins: list[Twins]) -> bool:
    """Whether parity fails; only an assertion counts, a crash does not."""
    try:
        for pair in twins:
            check_prefill(pair, batch=2)
            check_cached(pair, batch=2)
    except AssertionError:
        return True
    return False


def test_the_true_model_passes(twins: list[Twins]) -> None:
    assert model_module.F is F, "the mutants replace names that the model looks up in `functional`"
    assert not noticed(twins)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, twins: list[Twins], monkeypatch: pytest.MonkeyPatch, tally: list[str]) -> None:
    target, attribute, bug = MUTANTS[name]
    monkeypatch.setattr(target, attribute, bug)
    assert noticed(twins), f"parity did not notice: {name}"
    tally.append(name)
