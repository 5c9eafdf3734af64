"""Qwen3 in plain PyTorch, top to bottom as the mathematics reads.

With `attention="eager"` the logits equal Hugging Face's `Qwen3ForCausalLM` (eager attention) bit for bit on a CPU.
`attention="sdpa"` lets PyTorch fuse the attention: faster, equal up to rounding.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from qwen3_ref import functional as F
from qwen3_ref.cache import KVCache
from qwen3_ref.config import Qwen3Config
from qwen3_ref.weights import load_weights, random_weights

AttentionKind = Literal["eager", "sdpa"]


class RMSNorm(nn.Module):
    """`functional.rms_norm` with the weight that it owns, `[size]`. `[..., size]` → `[..., size]`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, self.eps)


# --8<-- [start:attention]
class Attention(nn.Module):
    """Grouped-query attention with a norm on every query and key head before RoPE. `[b, t, d]` → `[b, t, d]`."""

    def __init__(self, config: Qwen3Config, layer: int, kind: AttentionKind) -> None:
        super().__init__()
        self.layer, self.kind, self.head_dim = layer, kind, config.head_dim
        self.scale = config.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.o_proj = nn.Linear(config.q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    # --8<-- [start:attention_forward]
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None) -> Tensor:
        b, t, _ = x.shape
        heads = (b, t, -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)  # [b, Hq, t, D]
        k = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)  # [b, Hkv, t, D]
        v = self.v_proj(x).view(heads).transpose(1, 2)
        q, k = F.apply_rope(q, cos, sin), F.apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        out = self.attend(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))

    # --8<-- [end:attention_forward]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q: [b, Hq, t, D]` over the `s` keys up to its last token, `k, v: [b, Hkv, s, D]` → `[b, Hq, t, D]`."""
        t, s = q.shape[2], k.shape[2]
        if self.kind == "eager":
            mask = F.causal_mask(t, s, q.device) if t > 1 else None  # one query may read every key
            return F.attention_naive(q, k, v, self.scale, mask)
        mask = F.causal_mask(t, s, q.device) if 1 < t < s else None  # is_causal would align to the first key
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=t > 1 and t == s, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
        )


# --8<-- [end:attention]


# --8<-- [start:layer]
class MLP(nn.Module):
    """SwiGLU between projections up and down. `[b, t, d]` → `[b, t, d]`."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.swiglu(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):
    """`h = h + attention(norm(h))`, then `h = h + mlp(norm(h))`."""

    def __init__(self, config: Qwen3Config, layer: int, kind: AttentionKind) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer, kind)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    # --8<-- [start:layer_forward]
    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None) -> Tensor:
        h = h + self.self_attn(self.input_layernorm(h), cos, sin, cache)
        return h + self.mlp(self.post_attention_layernorm(h))

    # --8<-- [end:layer_forward]


# --8<-- [end:layer]


class Decoder(nn.Module):
    """Embedding, layers, last norm: everything but the head."""

    def __init__(self, config: Qwen3Config, kind: AttentionKind) -> None:
        super().__init__()
        self.config = config
        # Not drawn at random: on `from_weights`' meta device a draw would import torch._dynamo, which takes 1.3 s.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, kind) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    # --8<-- [start:decoder]
    def forward(self, token_ids: Tensor, cache: KVCache | None = None, last_only: bool = False) -> Tensor:
        """`token_ids: [b, t]` → normed hidden states `[b, t, d]`, or of the last token alone."""
        start, t = (cache.length if cache is not None else 0), token_ids.shape[1]
        positions = torch.arange(start, start + t, device=token_ids.device)
        h = self.embed_tokens(token_ids)
        cos, sin = F.rope_cos_sin(positions, self.config.head_dim, self.config.rope_theta, h.dtype)
        for layer in self.layers:
            h = layer(h, cos, sin, cache)
        if cache is not None:
            cache.advance(t)
        return self.norm(h[:, -1:] if last_only else h)

    # --8<-- [end:decoder]


def attention_kernels(tokens: Tensor, prefer_cudnn: bool = False) -> contextlib.AbstractContextManager[None]:
    """Keeps cuDNN out of `sdpa`: it plans anew for every length of the cache, which costs milliseconds a layer.

    With `prefer_cudnn` it comes first instead, where it can be used at all: for whoever has few lengths.
    """
    if not tokens.is_cuda or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    without = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if prefer_cudnn:
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *without], set_priority=True)
    return sdpa_kernel(without)


class Qwen3(nn.Module):
    """The whole model. Parameter names are those of Hugging Face checkpoints.

    Args:
        attention: `eager` writes every step out, bit-equal to Hugging Face; `sdpa` uses PyTorch's fused attention.
    """

    def __init__(self, config: Qwen3Config, attention: AttentionKind = "eager") -> None:
        super().__init__()
        if attention not in ("eager", "sdpa"):
            raise ValueError(f"attention is {attention!r}; it must be 'eager' or 'sdpa'.")
        self.config = config
        self.model = Decoder(config, attention)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @classmethod
    def from_weights(cls, config: Qwen3Config, weights: dict[str, Tensor], attention: AttentionKind = "eager") -> Qwen3:
        """A model that owns the given tensors (no copy), ready for inference.

        Raises:
            RuntimeError: their names or shapes are not those of `weights.expected_shapes(config)`.
        """
        with torch.device("meta"):  # no time is spent on initialising what is replaced at once
            model = cls(config, attention)
        model.load_state_dict(weights, assign=True)
        return model.eval().requires_grad_(False)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        attention: AttentionKind = "eager",
    ) -> Qwen3:
        """Loads a Hugging Face checkpoint directory. `dtype=None` takes the checkpoint's own.

        Raises:
            ConfigError, CheckpointError: what is missing or wrong, by name.
        """
        config = Qwen3Config.from_pretrained(directory)
        weights = load_weights(directory, config, dtype or getattr(torch, config.torch_dtype), device)
        return cls.from_weights(config, weights, attention)

    @classmethod
    def random(
        cls,
        config: Qwen3Config,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        attention: AttentionKind = "eager",
    ) -> Qwen3:
        """A model with seeded random weights, for tests and benchmarks of a true shape."""
        return cls.from_weights(config, random_weights(config, seed, dtype, device), attention)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    # --8<-- [start:forward]
    def forward(self, token_ids: Tensor, cache: KVCache | None = None, last_only: bool = False) -> Tensor:
        """Logits of the next token after each position.

        `token_ids: [b, t]` int64 → `[b, t, V]` in the model's dtype, `[b, 1, V]` with `last_only`.
        With a cache the tokens stand behind those already held, and the cache grows by `t`.
        Raises:
            ValueError: `token_ids` is not `[b, t]` with `t ≥ 1`, or the cache is full.
        """
        if token_ids.dim() != 2 or token_ids.shape[1] < 1:
            shape = list(token_ids.shape)
            raise ValueError(f"token_ids has shape {shape}; it must be [b, t] with t of at least 1.")
        with attention_kernels(token_ids):
            return F.linear(self.model(token_ids, cache, last_only), self.head_weight)

    # --8<-- [end:forward]

    @property
    def head_weight(self) -> Tensor:
        """`[V, d]`: the embedding again when the head is tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
