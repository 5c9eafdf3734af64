"""Qwen3 over a quantised cache: `PagedModel`, with what it writes and reads in codes.

    model = QuantizedPagedModel(weights, cache_format("fp8", weights.config))
    cache = model.new_cache(tokens=4096)

All else is as there: sequences, chunks, batches, and the steps and graphs of chapter 9.

Every token attends to what the cache holds, a prompt's own tokens too: to what codes stand for, never to the numbers
before. So a text is read alike in one chunk, in many, and a token at a time.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import Batch, PagedKVCache
from chapters.ch06_split_attention.dispatch import Plan, plan_for
from chapters.ch06_split_attention.paged_model import Attend, PagedModel, Plans
from chapters.ch06_split_attention.prefill_attention import attention_of_last, first_chunk_attention
from chapters.ch06_split_attention.targets import FUSED_OP
from chapters.ch10_quantized_kv.cache_formats import HADAMARD_SCALE
from chapters.ch10_quantized_kv.quantized_cache import QuantizedKVCache, check_heads
from qwen3_ref.model import Qwen3
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators import HadamardArgs, KVCacheOut, NormArgs, RopeArgs
from qwen_cuda.operators.kv_arguments import Out, Pipeline, Stage
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM

ALIGNMENT = 16  # bytes: the reader's widest load
HADAMARD = HadamardArgs(HADAMARD_SCALE)


class QuantizedPagedModel(PagedModel):
    """`PagedModel` on caches of one format.

    Args:
        format: of its caches; `new_cache` may choose another block_size.
        hadamard: the transform that keys go through before they are quantised, and queries before they meet them; None
            for none.
        cache_dtype: of Q, K and V before K and V are quantised; as for `PagedModel`.
        simulated, plans: as for `PagedModel`; by default the plans of `fused_decode_attention`.
    Raises:
        ValueError, BuildError: as `PagedModel`; or the format is not for this model, or its alignment is below 16.
    """

    def __init__(
        self,
        model: Qwen3,
        format: KVCacheFormat,
        *,
        hadamard: HadamardArgs | None = HADAMARD,
        cache_dtype: torch.dtype | None = None,
        simulated: bool = False,
        plans: Plans | None = None,
    ) -> None:
        plans = plans or functools.partial(plan_for, op=FUSED_OP)
        super().__init__(model, cache_dtype=cache_dtype, simulated=simulated, plans=plans)
        if format.alignment < ALIGNMENT:
            raise ValueError(f"format.alignment is {format.alignment}; it must be 16 or more, for loads of 16 bytes.")
        check_heads(self.config, format)
        self.format, self.hadamard = format, hadamard

    def new_cache(self, **sizes: Any) -> QuantizedKVCache:
        """A cache for this model on its device. Arguments and errors: those of `QuantizedKVCache` behind `format`."""
        return QuantizedKVCache(self.config, self.format, device=self.device, **sizes)

    # --8<-- [start:decode]
    def decode_attention(
        self, i: int, qkv: Tensor, cache: PagedKVCache, batch: Batch, plan: Plan,
        workspace: Tensor, *, prefetch: bool = False,
    ) -> Tensor:  # fmt: skip
        """See `PagedModel`. One launch, from qkv to attention: K and V go into the cache as codes."""
        layer, form = self.layers[i], self._of(cache).format
        cast = form.cast
        return self.ops.fused_decode_attention_quantized(
            qkv, layer.q_norm, layer.k_norm, self.cos_sin, batch.positions, batch.slot_mapping,
            cache.k[i], cache.v[i], batch.block_table, batch.context_lens, self.eps, self.scale,
            self.config.num_attention_heads, form.heads, cast.values, cast.group, cast.scales,
            form.strides, plan.partition_size, plan.partitions, workspace,
            hadamard_scale=self.hadamard.scale if self.hadamard else 0.0,
            merge=plan.merge, prefetch=prefetch,
        )  # fmt: skip

    # --8<-- [end:decode]

    # --8<-- [start:prefill]
    def _prefill_attention(
        self, cache: PagedKVCache, batch: Batch, part: slice, before: int
    ) -> Attend:  # fmt: skip
        where = batch.positions[part], batch.slot_mapping[part]
        context, codes = before + part.stop, self._of(cache)
        alone = before + part.start == 0

        def attend(i: int, qkv: Tensor) -> Tensor:
            stored = self._store(i, qkv, codes, *where, cast_back=alone)
            q = self._queries(i, qkv, where[0]).to(self.dtype)
            if stored is not None:  # what codes stand for, without a way through the cache
                k, v = stored.to(self.dtype).chunk(2, dim=1)
                return first_chunk_attention(q, k, v, self.scale)
            k, v = codes.load(i, batch.block_table[0], context, self.cache_dtype)
            return attention_of_last(q, k, v, self.scale)

        return attend

    # --8<-- [end:prefill]

    def _store(
        self, i: int, qkv: Tensor, cache: QuantizedKVCache, positions: Tensor, slots: Tensor, cast_back: bool = False
    ) -> Tensor | None:
        """Writes K and V of new tokens. With `cast_back` → what their codes stand for, `[t, 2 Hkv, D]` as qkv."""
        heads = qkv.unflatten(1, (-1, HEAD_DIM))[:, self.config.num_attention_heads :]
        back = torch.empty_like(heads, memory_format=torch.contiguous_format) if cast_back else None
        stage: Stage | None = "cast_back" if cast_back else None
        to = KVCacheOut(cache.k[i], slots, cache.format, cache.v[i], back, stage)
        self._transform(heads, self.layers[i].k_norm, positions, cache.format.cast, to)
        return back

    def _queries(self, i: int, qkv: Tensor, positions: Tensor) -> Tensor:
        """Normed, turned, and transformed as keys are: `[t, Hq, D]`."""
        heads = qkv.unflatten(1, (-1, HEAD_DIM))[:, : self.config.num_attention_heads]
        q = torch.empty_like(heads, memory_format=torch.contiguous_format)
        self._transform(heads, self.layers[i].q_norm, positions, None, q)
        return q

    def _transform(self, heads: Tensor, norm: Tensor, positions: Tensor, cast: CastArgs | None, out: Out) -> None:
        """`norm_rope_hadamard_quant_store`, from whichever namespace this model runs."""
        stages = NormArgs(norm, self.eps), RopeArgs(positions, self.cos_sin), self.hadamard, cast, out
        pipeline = Pipeline(heads.shape[1], HEAD_DIM, *stages)
        self.ops.norm_rope_hadamard_quant_store(heads, **pipeline.flat(pipeline.new_outputs(heads)))

    @staticmethod
    def _of(cache: PagedKVCache) -> QuantizedKVCache:
        if not isinstance(cache, QuantizedKVCache):
            raise ValueError("the cache is not quantised; this model takes those of its own new_cache.")
        return cache
