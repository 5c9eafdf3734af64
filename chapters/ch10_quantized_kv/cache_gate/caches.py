"""The cache that is judged: bytes that our writer leaves, and what they stand for, in the reference model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.cache_formats import (
    FP8,
    HADAMARD_SCALE,
    MXFP4,
    NVFP4,
    block_wide,
    format_bytes_per_token,
)
from qwen3_ref.cache import KVCache
from qwen3_ref.config import Qwen3Config
from qwen3_ref.kv_quantization import hadamard_transform
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.operators import HadamardArgs, KVCacheOut, load_kv, norm_rope_hadamard_quant_store

FORMATS = {"fp8": FP8, "nvfp4": NVFP4, "mxfp4": MXFP4}


@dataclass(frozen=True)
class CacheKind:
    """A format of `FORMATS`, and whether keys go through the Hadamard transform before they are quantised."""

    format: str
    hadamard: bool = True

    @property
    def name(self) -> str:
        return f"{self.format}, Hadamard" if self.hadamard else self.format

    def form(self, config: Qwen3Config) -> KVCacheFormat:
        """Of one layer's keys, and of its values."""
        return block_wide(FORMATS[self.format], config)

    def token_bytes(self, config: Qwen3Config) -> float:
        """Of a token in a cache of all layers, keys and values."""
        return format_bytes_per_token(self.form(config), config)

    def new_cache(self, config: Qwen3Config, max_len: int, device: torch.device) -> KVCache:
        """For one sequence of the fp32 model."""
        return WrittenKVCache(config, max_len, self.form(config), self.hadamard, device)


class WrittenKVCache(KVCache):
    """A cache of the fp32 model for one sequence that gives back what its codes stand for.

    Keys and values are rounded to bfloat16, as an engine has them, and written by `norm_rope_hadamard_quant_store` into
    pages of `form`; what the model attends to is read from these bytes. Transformed keys are turned back, which gives
    the scores that transformed queries would have.
    """

    def __init__(
        self, config: Qwen3Config, max_len: int, form: KVCacheFormat, hadamard: bool, device: torch.device
    ) -> None:
        super().__init__(config, 1, max_len, torch.float32, device)
        blocks = -(-max_len // form.block_size)
        self.form, self.hadamard = form, HadamardArgs(HADAMARD_SCALE) if hadamard else None
        self.pages = [(form.new(blocks, device), form.new(blocks, device)) for _ in range(config.num_hidden_layers)]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self._check_sizes(k, v)
        slots = torch.arange(self.length, self.length + k.shape[2], device=k.device)
        k_pages, v_pages = self.pages[layer]
        k = self._through(k, k_pages, slots, self.hadamard)
        return super().append(layer, k, self._through(v, v_pages, slots, None))

    def _through(self, heads: Tensor, pages: Tensor, slots: Tensor, hadamard: HadamardArgs | None) -> Tensor:
        """`heads: [1, Hkv, t, D]` fp32, through the bytes in `pages`."""
        to = KVCacheOut(pages, slots, self.form)
        rows = heads[0].transpose(0, 1).bfloat16().contiguous()
        norm_rope_hadamard_quant_store(rows, hadamard=hadamard, cast=self.form.cast, out=to)
        back = load_kv(pages, slots, self.form, torch.float32)
        if hadamard is not None:
            back = hadamard_transform(back, hadamard.scale)
        return back.transpose(0, 1)[None]
