"""transformers' Qwen3 on the very tensors of one of our models: the peer that chapter 1 measures itself against."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM, StaticCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from qwen3_ref import KVCache, Qwen3
from qwen3_ref.model import attention_kernels


class TransformersPeer:
    """`Qwen3ForCausalLM` with the weights of `model`, shared and not copied, and PyTorch's fused attention.

    Args:
        cudnn: False keeps cuDNN's attention out, as our model does; True lets PyTorch choose, as transformers does.
    """

    def __init__(self, model: Qwen3, cudnn: bool = True) -> None:
        self._cudnn = cudnn
        config = Qwen3Config(**model.config.to_dict())
        config._attn_implementation = "sdpa"
        with torch.device("meta"):  # no memory is taken for weights that are replaced at once
            theirs = Qwen3ForCausalLM(config)
        # The RoPE frequencies are no weights; made on the CPU in float32, as from_pretrained does.
        theirs.model.rotary_emb = Qwen3RotaryEmbedding(config).to(model.device)
        theirs.load_state_dict(model.state_dict(), strict=False, assign=True)
        theirs.tie_weights()
        self._model = theirs.eval().requires_grad_(False)
        self._model.generation_config.eos_token_id = None  # our steps don't look at stop tokens either
        self._config = config
        self._cache = DynamicCache(config=config)

    def static_cache(self, tokens: int) -> StaticCache:
        """A cache of fixed size, for `generate(…, past_key_values=…)`; on a GPU its decode steps are compiled then."""
        return StaticCache(config=self._config, max_cache_len=tokens)

    def prefill(self, token_ids: Tensor) -> Tensor:
        """Logits `[1, V]` after the prompt `token_ids: [1, t]`, from an empty cache."""
        self._cache = DynamicCache(config=self._config)
        return self.decode(token_ids)

    def decode(self, token_ids: Tensor) -> Tensor:
        """Appends `token_ids: [1, t]` to the cache; logits `[1, V]` after the last."""
        with contextlib.nullcontext() if self._cudnn else attention_kernels(token_ids):
            out = self._model(input_ids=token_ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1]

    def fill(self, cache: KVCache) -> None:
        """Takes over the keys and values that one of our caches holds."""
        self._cache = DynamicCache(config=self._config)
        for layer in range(cache.k.shape[0]):
            k, v = (tensor[layer, :, :, : cache.length].clone() for tensor in (cache.k, cache.v))
            self._cache.update(k, v, layer)

    def generate(self, prompt_ids: Tensor, new_tokens: int, **options: Any) -> list[int]:
        """Greedy continuation by `generate` itself, of exactly `new_tokens` ids. `prompt_ids: [1, t]`.

        `options` are more arguments of it.
        """
        mask = torch.ones_like(prompt_ids)
        out = self._model.generate(
            prompt_ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, **options
        )
        return out[0, prompt_ids.shape[1] :].tolist()
