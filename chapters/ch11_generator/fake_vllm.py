"""vLLM's operators and FlashAttention-3 in PyTorch, with their arguments: enough to run a peer without them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qwen3_ref import functional
from qwen3_ref.paged import paged_attention


class Operators:
    """`torch.ops._C`."""

    @staticmethod
    def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        out.copy_(functional.rms_norm(x, weight, eps, "fused"))

    @staticmethod
    def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        residual += x
        x.copy_(functional.rms_norm(residual, weight, eps, "fused"))

    @staticmethod
    def silu_and_mul(out: Tensor, gate_up: Tensor) -> None:
        gate, up = gate_up.chunk(2, dim=-1)
        out.copy_(functional.swiglu(gate, up, "fused"))

    @staticmethod
    def fused_qk_norm_rope(
        qkv: Tensor, heads: int, kv_heads: int, v_heads: int, dim: int, eps: float, q_weight: Tensor, k_weight: Tensor,
        cos_sin: Tensor, neox: bool, positions: Tensor,
    ) -> None:  # fmt: skip
        assert neox
        assert v_heads == kv_heads
        q, k, _ = qkv.view(len(qkv), -1, dim).split([heads, kv_heads, kv_heads], dim=1)
        cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
        for part, weight in ((q, q_weight), (k, k_weight)):
            normed = functional.rms_norm(part, weight, eps, "fused").float()
            part.copy_(functional.apply_rope(normed, cos, sin))

    @staticmethod
    def paged_attention_v1(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
        _, scale, table, lens, block_size, longest = rest[:6]
        assert int(lens.max()) <= longest
        assert block_size == k.shape[3]
        flat = k.permute(0, 3, 1, 2, 4).flatten(3), v.permute(0, 3, 1, 2)
        out.copy_(paged_attention(q, *flat, table, lens, scale))


class Caches:
    """`torch.ops._C_cache_ops`."""

    @staticmethod
    def reshape_and_cache_flash(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *rest: Any
    ) -> None:
        k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots] = k, v

    @staticmethod
    def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *rest: Any) -> None:
        page, x = k_cache.shape[3], k_cache.shape[4]
        for i, slot in enumerate(slots.tolist()):
            k_cache[slot // page, :, :, slot % page] = k[i].unflatten(-1, (-1, x))
            v_cache[slot // page, :, :, slot % page] = v[i]


class Flash:
    """`torch.ops._vllm_fa3_C`."""

    @staticmethod
    def fwd(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> None:
        out, bounds, lens, most, longest, table, scale = (rest[i] for i in (3, 4, 8, 9, 10, 11, 20))
        assert len(rest) == 34
        assert torch.equal(bounds, torch.tensor([0, 1], dtype=torch.int32))
        assert most == 1
        assert int(lens.max()) <= longest
        out.copy_(paged_attention(q, k_cache, v_cache, table, lens, scale))
