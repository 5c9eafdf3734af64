"""torch.compile with coordinate descent: one decoder layer, tuned, called for each, and the step in one CUDA graph.

Keys and values are dense, `[1, Hkv, t, D]` a layer, of just the request's size; the prompt is chapter 1's model. There
are two ways to write attention down. Both are compiled, and the faster one takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from chapters.ch07_decode_gemv.candidates import COMPILED
from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.step_graph import Counters, answering
from chapters.ch11_generator.end_to_end.subject import Request
from qwen3_ref import KVCache, functional

Attention = Literal["sdpa", "products"]
_TRIAL_TOKENS = 32


def fastest(request: Request, report: Callable[[str], None]) -> Answer:
    """The faster of both ways, on a GPU. `report` gets a sentence that says which; one that fails is left out.

    Raises:
        RuntimeError: neither can be compiled or captured.
    """
    found: dict[str, tuple[float, Answer]] = {}
    failures = []
    for attention in get_args(Attention):
        try:
            answer = answering(CompiledModel(request, attention), request, graph=True)
            answer(min(_TRIAL_TOKENS, request.new_tokens))
            found[attention] = _seconds(answer, min(_TRIAL_TOKENS, request.new_tokens)), answer
        except RuntimeError as error:
            failures.append(f"{attention}: {str(error).strip().partition(chr(10))[0]}")
    if not found:
        raise RuntimeError("; ".join(failures))
    best = min(found, key=lambda name: found[name][0])
    report(f"torch_compile, prompt {len(request.prompt):,}: attention by {best} of {', '.join(found)}.")
    return found[best][1]


def _seconds(answer: Answer, new_tokens: int) -> float:
    """Of a request, the shortest of three: it ends with its tokens on the host."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        answer(new_tokens)
        times.append(time.perf_counter() - start)
    return min(times)


class CompiledModel:
    """A `step_graph.Peer`. `compiler` compiles a function of tensors; by default torch.compile as above."""

    def __init__(
        self,
        request: Request,
        attention: Attention,
        compiler: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] | None = None,
    ) -> None:
        subject = request.subject
        self._ids, self._model, self._paged = request.ids, subject.model, subject.paged()
        self._cache = KVCache(subject.config, 1, request.tokens, subject.model.dtype, subject.device)
        self._cache.k.zero_()  # a masked weight of 0 times NaN is NaN
        self._cache.v.zero_()
        self._places = torch.arange(request.tokens, device=subject.device)
        self.counters = Counters(request)
        config, eps = subject.config, subject.config.rms_norm_eps
        sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim

        def layer(
            x: Tensor, position: Tensor, angles: Tensor, seen: Tensor, k: Tensor, v: Tensor, *w: Tensor
        ) -> Tensor:
            return _layer(x, position, angles, seen, k, v, *w, sizes=sizes, eps=eps, attention=attention)

        def head(x: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
            return linear(functional.rms_norm(x, norm, eps, "hf"), weight).argmax(-1)

        compiler = compiler or _compiled
        self._layer, self._head = compiler(layer), compiler(head)

    def prefill(self) -> Tensor:
        self._cache.clear()
        return self._model(self._ids, self._cache, last_only=True)[0, -1].argmax()

    def step(self) -> None:
        counters, paged = self.counters, self._paged
        x = paged.embedding.index_select(0, counters.token)
        angles = paged.cos_sin.index_select(0, counters.position)
        seen = self._places <= counters.position
        for i, layer in enumerate(paged.layers):
            weights = layer.qkv, layer.o, layer.gate_up, layer.down
            norms = layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm
            x = self._layer(x, counters.position, angles, seen, self._cache.k[i], self._cache.v[i], *weights, *norms)
        counters.advance(self._head(x, paged.norm, paged.head))


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    made: Callable[..., Tensor] = torch.compile(function, dynamic=False, options=COMPILED)
    return made


def _layer(
    x: Tensor, position: Tensor, angles: Tensor, seen: Tensor, k_cache: Tensor, v_cache: Tensor,
    qkv: Tensor, o: Tensor, gate_up: Tensor, down: Tensor,
    input_norm: Tensor, mlp_norm: Tensor, q_norm: Tensor, k_norm: Tensor,
    *, sizes: tuple[int, int, int], eps: float, attention: Attention,
) -> Tensor:  # fmt: skip
    """A decoder layer for one token, `x: [1, d]`, in the roundings of transformers. Writes the caches.

    `angles: [1, D]` holds cosines, then sines; `seen: [t]` which places count.
    """
    heads, kv_heads, dim = sizes
    cos, sin = angles.to(x.dtype).chunk(2, dim=-1)
    packed = linear(functional.rms_norm(x, input_norm, eps, "hf"), qkv).view(1, -1, dim)
    q, k, v = packed.split([heads, kv_heads, kv_heads], dim=1)
    q = functional.apply_rope(functional.rms_norm(q, q_norm, eps, "hf"), cos[:, None], sin[:, None])
    k = functional.apply_rope(functional.rms_norm(k, k_norm, eps, "hf"), cos[:, None], sin[:, None])
    k_cache.index_copy_(2, position, k.transpose(0, 1)[None])
    v_cache.index_copy_(2, position, v.transpose(0, 1)[None])
    out = _ATTENTION[attention](q, k_cache, v_cache, seen, dim**-0.5)
    x = x + linear(out.reshape(1, heads * dim), o)
    gate, up = linear(functional.rms_norm(x, mlp_norm, eps, "hf"), gate_up).chunk(2, dim=-1)
    return x + linear(functional.swiglu(gate, up, "hf"), down)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    return scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=seen[None, None, None], scale=scale, enable_gqa=True
    )


def _products(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Two batched products: the query heads that share a KV head are the rows of one."""
    kv_heads = k.shape[1]
    scores = (q.view(kv_heads, -1, q.shape[-1]) @ k[0].transpose(1, 2)).float() * scale
    weights = torch.where(seen, scores, -torch.inf).softmax(-1)
    return weights.to(v.dtype) @ v[0]


_ATTENTION: dict[Attention, Callable[..., Tensor]] = {"sdpa": _sdpa, "products": _products}


def settings() -> dict[str, Any]:
    """For the results."""
    return dict(COMPILED)
