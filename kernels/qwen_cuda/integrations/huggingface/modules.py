"""Subclasses of transformers' Qwen2 and Qwen3 modules whose `forward` calls our operators.

`patch` makes a module one of them by changing its class. Each falls back to the `forward` that it inherits where ours
would not do the same: where a hook is on a module that ours does not call, where a weight needs a gradient that only
the separate products give, where somebody has replaced a weight or a module, or where dtypes differ, as under autocast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm

from qwen_cuda.integrations.huggingface.packing import pack
from qwen_cuda.operators import add_rms_norm, rms_norm, silu_mul

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ("cpu", "cuda")


class FusedRMSNorm(nn.Module):
    """RMSNorm as one operator. `x: [..., d]` → `[..., d]`."""

    weight: nn.Parameter
    variance_epsilon: float
    hf_rounding: bool

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not fits(hidden_states, self.weight):
            return super().forward(hidden_states)
        x = hidden_states.contiguous()
        return rms_norm(x, self.weight, self.variance_epsilon, hf_rounding=self.hf_rounding)


class PackedMLP(nn.Module):
    """SwiGLU by one product for gate and up, and one operator for SiLU and the multiplication. `[..., d]` → `[..., d]`.

    `gate_up_weight: [2 * m, d]` is neither parameter nor buffer: the parameters of `gate_proj` and `up_proj` are its
    halves. `packed_parameters` are those two, as they were when it was made.
    """

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: Any
    act_fn: nn.Module
    hf_rounding: bool
    gate_up_weight: Tensor | None
    packed_parameters: tuple[Tensor, Tensor]

    def pack(self) -> None:
        gate, up = self.gate_proj, self.up_proj
        self.packed_parameters = (gate.weight, up.weight)
        self.gate_up_weight = pack(gate, up) if gate.weight.device.type in DEVICES else None

    def forward(self, x: Tensor) -> Tensor:
        weight = self._valid_weight()
        if weight is None or not fits(x, weight):
            return super().forward(x)
        product: Tensor = self.down_proj(silu_mul(F.linear(x, weight), hf_rounding=self.hf_rounding))
        return product

    def _valid_weight(self) -> Tensor | None:
        """The packed weight, unless the two products or their weights are no longer what they were when it was made."""
        gate, up, packed = self.gate_proj, self.up_proj, self.gate_up_weight
        if packed is None or type(gate) is not nn.Linear or type(up) is not nn.Linear:
            return None
        if hooked(gate) or hooked(up) or hooked(self.act_fn):
            return None
        if gate.weight is not self.packed_parameters[0] or up.weight is not self.packed_parameters[1]:
            return None
        if torch.is_grad_enabled() and (gate.weight.requires_grad or up.weight.requires_grad):
            return None
        if not torch.compiler.is_compiling():  # addresses mean nothing while a graph is traced
            start, half = packed.data_ptr(), packed.nbytes // 2
            if gate.weight.data_ptr() != start or up.weight.data_ptr() != start + half:
                return None
        return packed

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What `to`, `half`, `cuda` and the like call: it gives each parameter memory of its own."""
        module = super()._apply(fn, recurse)
        self.pack()
        return module

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What copies and pickles end with: in them, too, each parameter has memory of its own."""
        super().__setstate__(state)
        self.pack()


class FusedDecoderLayer(nn.Module):
    """A decoder layer whose addition after attention and the norm after it are one operator. `[b, t, d]` → the same.

    The addition at the layer's end stays by itself. Its sum is what the layer returns, what hooks and
    `output_hidden_states` see and what gradient checkpointing keeps; the next layer's norm of it would have to travel
    beside it, and has no way there but a side channel.
    """

    input_layernorm: Any
    self_attn: Any
    post_attention_layernorm: Any
    mlp: Any
    hf_rounding: bool

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        given = {
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
            "position_embeddings": position_embeddings,
        } | kwargs
        norm = self.post_attention_layernorm
        if hooked(norm) or not fits(hidden_states, norm.weight):
            return super().forward(hidden_states, **given)
        attention, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)
        if attention.dtype != hidden_states.dtype:  # autocast computes products in another one
            total = hidden_states + attention
            return total + self.mlp(norm(total))
        normed, total = add_rms_norm(
            attention.contiguous(),
            hidden_states.contiguous(),
            norm.weight,
            norm.variance_epsilon,
            hf_rounding=self.hf_rounding,
        )
        return total + self.mlp(normed)


class FusedQwen2RMSNorm(FusedRMSNorm, Qwen2RMSNorm):
    """`Qwen2RMSNorm` by our operator."""


class FusedQwen3RMSNorm(FusedRMSNorm, Qwen3RMSNorm):
    """`Qwen3RMSNorm` by our operator."""


class PackedQwen2MLP(PackedMLP, Qwen2MLP):
    """`Qwen2MLP` by one product and our operator."""


class PackedQwen3MLP(PackedMLP, Qwen3MLP):
    """`Qwen3MLP` by one product and our operator."""


class FusedQwen2DecoderLayer(FusedDecoderLayer, Qwen2DecoderLayer):
    """`Qwen2DecoderLayer` with the fused addition and norm."""


class FusedQwen3DecoderLayer(FusedDecoderLayer, Qwen3DecoderLayer):
    """`Qwen3DecoderLayer` with the fused addition and norm."""


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether our operators take the two together."""
    return x.dtype == weight.dtype and x.dtype in DTYPES and x.device == weight.device and x.device.type in DEVICES


def hooked(module: nn.Module) -> bool:
    """Whether somebody waits for the module to be called."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
