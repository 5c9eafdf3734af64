"""The KV cache of the reference model: one contiguous tensor for K and one for V, filled from the left."""

from __future__ import annotations

import torch
from torch import Tensor

from qwen3_ref.config import Qwen3Config


class KVCache:
    """Keys (after RoPE) and values of every layer, `[L, b, Hkv, max_len, D]` each.

    Args:
        batch: sequences, all of the same length.
        max_len: tokens that fit; storage is taken at once and never moves.
    """

    def __init__(
        self, config: Qwen3Config, batch: int, max_len: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if batch < 1 or max_len < 1:
            raise ValueError(f"batch is {batch} and max_len is {max_len}; both must be at least 1.")
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, max_len, config.head_dim)
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        self.max_len = max_len
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of storage, used or not."""
        return self.k.nbytes + self.v.nbytes

    # --8<-- [start:append]
    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes `k, v: [b, Hkv, t, D]` behind the tokens held.

        Returns views of all, `[b, Hkv, length + t, D]`. `length` moves only with `advance`,
        once every layer has appended.
        Raises:
            ValueError: the tokens do not fit, or differ in sizes or dtype; nothing is written.
        """
        self._check_sizes(k, v)
        end = self.length + k.shape[2]
        if end > self.max_len:
            held = f"the KV cache holds {self.length} of {self.max_len} tokens"
            raise ValueError(f"{held}; {k.shape[2]} more don't fit.")
        self.k[layer, :, :, self.length : end] = k
        self.v[layer, :, :, self.length : end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    # --8<-- [end:append]

    def advance(self, tokens: int) -> None:
        """Counts `tokens` as held, after all layers have appended them.

        Raises:
            ValueError: `tokens` is negative or more than fit.
        """
        if not 0 <= tokens <= self.max_len - self.length:
            raise ValueError(f"tokens is {tokens}; it must be from 0 to {self.max_len - self.length}, the room left.")
        self.length += tokens

    def clear(self) -> None:
        """Forgets all tokens; the storage stays."""
        self.length = 0

    def _check_sizes(self, k: Tensor, v: Tensor) -> None:
        """PyTorch alone would copy one sequence into every row of a larger batch, and round to the cache's dtype."""
        _, batch, heads, _, dim = self.k.shape
        if k.shape != (batch, heads, k.shape[2], dim) or v.shape != k.shape or {k.dtype, v.dtype} != {self.k.dtype}:
            raise ValueError(
                f"k is {list(k.shape)} {k.dtype} and v is {list(v.shape)} {v.dtype}; this KV cache takes "
                f"[{batch}, {heads}, t, {dim}] {self.k.dtype}: make one for this batch, model and dtype."
            )
