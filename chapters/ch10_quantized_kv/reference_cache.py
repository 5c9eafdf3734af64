"""The reference model over a quantised cache: what its attention reads is what codes stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.cache_formats import HADAMARD_SCALE
from qwen3_ref.cache import KVCache
from qwen3_ref.config import Qwen3Config
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, quantize_groups
from qwen_cuda.kv_cache_format import CastArgs


class CodedKVCache(KVCache):
    """A `KVCache` that forgets what codes do not hold: all that `QuantizedPagedModel` is, but for its rounding.

    Args:
        cast: the numbers of K and V.
        hadamard: whether K is transformed before it is quantised, and here back again.
        rounded: in which K and V are when they meet their codes, as `cache_dtype` of `QuantizedPagedModel`.
        config, batch, max_len, dtype, device: as for `KVCache`.
    """

    def __init__(
        self,
        config: Qwen3Config,
        batch: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        cast: CastArgs,
        hadamard: bool = True,
        rounded: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(config, batch, max_len, dtype, device)
        self._cast, self._hadamard, self._rounded = cast, hadamard, rounded

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache`: K and V become what their codes stand for."""
        if self._hadamard:
            # Orthogonal and symmetric, so its own inverse.
            k = hadamard_transform(self._coded(hadamard_transform(k.float(), HADAMARD_SCALE)), HADAMARD_SCALE)
        else:
            k = self._coded(k)
        return super().append(layer, k.to(self.k.dtype), self._coded(v).to(self.v.dtype))

    def _coded(self, x: Tensor) -> Tensor:
        """→ float32."""
        values, group, scales = self._cast.values, self._cast.group, self._cast.scales
        codes, units = quantize_groups(x.to(self._rounded).float().contiguous(), values, group, scales)
        return dequantize_groups(codes, units, values, scales)
