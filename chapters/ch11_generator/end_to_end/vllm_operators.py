"""vLLM's operators with PyTorch's products, which are cuBLAS's, and the decode step in one CUDA graph.

Attention is FlashAttention-3 as vLLM ships it, else vLLM's paged_attention_v1. Both read a cache in pages of 16 tokens,
of just the request's size; the prompt's attention is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from chapters.ch04_paged_kv.candidates import cache_operators
from chapters.ch05_grouped_attention.candidates import run_vllm
from chapters.ch06_split_attention.paged_model import DecoderLayer
from chapters.ch06_split_attention.prefill_attention import first_chunk_attention
from chapters.ch11_generator.end_to_end.contender import Answer
from chapters.ch11_generator.end_to_end.step_graph import Counters, answering
from chapters.ch11_generator.end_to_end.subject import Request
from qwen_cuda.benchmarking.peers import Vllm, flash_attention, vllm

PAGE = 16
Attention = Literal["flash", "v1"]


def unavailable() -> str | None:
    """Why vLLM's operators cannot take part, in a sentence."""
    peer = vllm()
    return peer if isinstance(peer, str) else None


def in_one_graph(request: Request, report: Callable[[str], None]) -> Answer:
    """With FlashAttention-3 where it is there and runs. `report` gets a sentence that says what attention it is.

    Raises:
        RuntimeError: an operator refuses.
    """
    peer, flash = vllm(), flash_attention()
    assert isinstance(peer, Vllm), peer
    why = flash if isinstance(flash, str) else None
    if why is None:
        try:
            answer = answering(VllmModel(request, peer, "flash", flash), request, graph=True)
            answer(2)
            report("vllm_operators: attention by FlashAttention-3.")
            return answer
        except (RuntimeError, TypeError, AttributeError) as error:  # of a version with other arguments
            why = f"FlashAttention-3 is left out, it says: {str(error).strip().partition(chr(10))[0]}"
    report(f"vllm_operators: attention by paged_attention_v1. {why}")
    return answering(VllmModel(request, peer, "v1"), request, graph=True)


class VllmModel:
    """A `step_graph.Peer`. `flash` is FlashAttention-3's namespace."""

    def __init__(self, request: Request, peer: Vllm, attention: Attention, flash: Any = None) -> None:
        subject, config = request.subject, request.subject.config
        self._peer, self._ops, self._flash, self._attention = peer, peer.ops, flash, attention
        self._ids, self._paged, self._config = request.ids[0], subject.paged(), config
        device, dtype = subject.device, subject.model.dtype
        self._pages = -(-request.tokens // PAGE)
        heads, dim, x = config.num_key_value_heads, config.head_dim, 16 // dtype.itemsize
        flat: tuple[int, ...] = (self._pages, PAGE, heads, dim)
        shapes = [flat, flat]
        if attention == "v1":
            shapes = [(self._pages, heads, dim // x, PAGE, x), (self._pages, heads, dim, PAGE)]
        self._caches = [[torch.zeros(s, dtype=dtype, device=device) for s in shapes] for _ in self._paged.layers]
        self._table = torch.arange(self._pages, dtype=torch.int32, device=device)[None]
        self._bounds = torch.tensor([0, 1], dtype=torch.int32, device=device)
        self._one = torch.ones((), device=device)
        self.counters = Counters(request)

    def prefill(self) -> Tensor:
        scale = self._paged.scale
        positions = torch.arange(len(self._ids), device=self._ids.device)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return first_chunk_attention(q, k, v, scale)

        return self._run(self._ids, positions, attend)[0]

    def step(self) -> None:
        counters = self.counters
        lens = (counters.position + 1).int()

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self._caches[i]
            return self._decode_attention(q.contiguous(), k_cache, v_cache, lens)

        counters.advance(self._run(counters.token, counters.position, attend))

    def _run(self, ids: Tensor, positions: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """`[t]` ids at `positions` → the token after the last, `[1]`. Blocks lie in order: a slot is a position."""
        ops, paged, eps = self._ops, self._paged, self._paged.eps
        residual = paged.embedding.index_select(0, ids)
        x = torch.empty_like(residual)
        ops.rms_norm(x, residual, paged.layers[0].input_norm, eps)
        next_norms = [layer.input_norm for layer in paged.layers[1:]] + [paged.norm]
        for i, (layer, next_norm) in enumerate(zip(paged.layers, next_norms, strict=True)):
            q, k, v = self._heads(layer, linear(x, layer.qkv), positions)
            self._write(k, v, self._caches[i], positions)
            x = linear(attend(i, q, k, v).flatten(1), layer.o)
            ops.fused_add_rms_norm(x, residual, layer.mlp_norm, eps)
            gate_up = linear(x, layer.gate_up)
            hidden = torch.empty_like(gate_up[:, : gate_up.shape[1] // 2])
            ops.silu_and_mul(hidden, gate_up)
            x = linear(hidden, layer.down)
            ops.fused_add_rms_norm(x, residual, next_norm, eps)
        return linear(x[-1:], paged.head).argmax(-1)

    def _heads(self, layer: DecoderLayer, qkv: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Norm and rotation in place in qkv; → q, k and v in it, `[t, heads, D]` each."""
        heads, kv_heads, dim = self._config.num_attention_heads, self._config.num_key_value_heads, self._config.head_dim
        self._ops.fused_qk_norm_rope(
            qkv, heads, kv_heads, kv_heads, dim, self._paged.eps, layer.q_norm, layer.k_norm, self._paged.cos_sin, True,
            positions,
        )  # fmt: skip
        return qkv.view(len(qkv), -1, dim).split([heads, kv_heads, kv_heads], dim=1)

    def _write(self, k: Tensor, v: Tensor, caches: list[Tensor], slots: Tensor) -> None:
        ops = cache_operators()
        write = ops.reshape_and_cache_flash if self._attention == "flash" else ops.reshape_and_cache
        write(k, v, *caches, slots, "auto", self._one, self._one)

    def _decode_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, lens: Tensor) -> Tensor:
        out, longest, scale = torch.empty_like(q), self._pages * PAGE, self._paged.scale
        if self._attention == "v1":
            return run_vllm(self._peer, out, q, k_cache, v_cache, self._table, lens, scale, longest)
        self._flash.fwd(
            q, k_cache, v_cache, None, None, None, out, self._bounds, None, None, None, lens, 1, longest, self._table,
            None, None, None, None, None, None, None, None, scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1,
            0, None,
        )  # fmt: skip
        return out
