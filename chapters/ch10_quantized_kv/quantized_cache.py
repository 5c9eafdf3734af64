"""A paged KV cache of codes and scales: blocks, sequences, forks and byte budgets are those of chapter 4."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from qwen3_ref.config import Qwen3Config
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators import load_kv


class QuantizedKVCache(PagedKVCache):
    """`PagedKVCache` whose blocks hold the bytes of a `KVCacheFormat`: more tokens in the same memory.

    Args:
        format: of K and of V. Its heads are those of the model.
        block_size: in place of the format's.
        sizes: tokens or budget_bytes, max_sequences, max_context, device: as for `PagedKVCache`.
    Raises:
        ValueError: an argument does not meet this.

    Attributes:
        k, v: for each layer uint8 `[num_blocks, block_bytes]`, as the format says.
        format: with this cache's block_size.
    """

    def __init__(
        self, config: Qwen3Config, format: KVCacheFormat, *, block_size: int | None = None, **sizes: Any
    ) -> None:
        check_heads(config, format)
        self.format = dataclasses.replace(format, block_size=block_size or format.block_size)
        super().__init__(
            config,
            block_size=self.format.block_size,
            dtype=torch.uint8,
            block_shape=(self.format.block_bytes,),
            **sizes,
        )

    def read(self, sequence: int, layer: int) -> tuple[Tensor, Tensor]:
        """What the codes of a sequence stand for: two copies `[length, Hkv, D]` float32, K as it was transformed.

        Raises:
            ValueError: the sequence is unknown.
        """
        blocks = torch.tensor(self.block_table(sequence), dtype=torch.int64, device=self.k[layer].device)
        return self.load(layer, blocks, self.length(sequence), torch.float32)

    def load(self, layer: int, blocks: Tensor, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The first tokens of a row of the block table, in 16 or 32 bits: K and V `[tokens, Hkv, D]`.

        `blocks: [max_blocks]`, each that the tokens need one of the cache. Nothing waits for the device.
        """
        places = torch.arange(self.block_size, device=blocks.device)
        needed = blocks[: -(-tokens // self.block_size), None].long()
        slots = (needed * self.block_size + places).flatten()[:tokens]
        k, v = (load_kv(cache[layer], slots, self.format, dtype) for cache in (self.k, self.v))
        return k, v


def check_heads(config: Qwen3Config, format: KVCacheFormat) -> None:
    """Raises ValueError unless a row of the format is a KV head of the model."""
    given, wanted = (format.heads, format.head_dim), (config.num_key_value_heads, config.head_dim)
    if given != wanted:
        raise ValueError(
            f"the format has {given[0]} heads of {given[1]} elements; the model has {wanted[0]} KV heads of "
            f"{wanted[1]}."
        )
