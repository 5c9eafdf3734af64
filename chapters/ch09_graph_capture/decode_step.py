"""One decode step: every row's newest token through the whole model, and on to the next token, on the device alone.

Five launches a layer, each fused with what stands before and after it; then the head, which draws, and the step's end,
which makes the drawn token the next step's input. Between two steps the host has nothing to do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chapters.ch04_paged_kv.paged_cache import Batch, PagedKVCache
from chapters.ch06_split_attention.dispatch import Plan
from chapters.ch06_split_attention.paged_model import CACHE_DTYPES, PagedModel
from chapters.ch08_w8a16_head.quantize import W8Head
from chapters.ch09_graph_capture.decode_rows import DecodeRows
from qwen3_ref.sampling import finite_argmax
from qwen_cuda.operators import argmax_workspace


class StepKind(NamedTuple):
    """What kernels a step launches, with which grids. Steps of one kind differ in the contents of memory alone.

    `greedy`: no row draws at random or penalises, so that the head need not write its logits. `steps`: so many follow
    each other in one graph.
    """

    rows: int
    plan: Plan
    greedy: bool
    steps: int = 1


class DecodeStep:
    """The kernels of a step, for one model and one cache.

    Args:
        rows: what the step works on, in memory that never moves.
        w8_head: in place of the model's own head.
    Raises:
        ValueError: the model is of another dtype than bfloat16 or float16, or its cache is of another than the model.
    """

    def __init__(self, model: PagedModel, cache: PagedKVCache, rows: DecodeRows, w8_head: W8Head | None = None) -> None:
        if model.dtype not in CACHE_DTYPES or model.cache_dtype != model.dtype:
            raise ValueError(
                f"the model is {model.dtype} and its cache {model.cache_dtype}; the kernels of a decode step take "
                "bfloat16 or float16, both the same."
            )
        self.model, self.cache, self.rows, self.w8_head = model, cache, rows, w8_head
        self._argmax_workspace = argmax_workspace(model.device)

    # --8<-- [start:step]
    def __call__(self, kind: StepKind) -> None:
        """Enqueues one step of the first `kind.rows` rows. The host copies nothing."""
        model, ops = self.model, self.model.ops
        rows = self.rows.part(slice(kind.rows))
        workspace = model.workspace(kind.rows, kind.plan.partitions)
        h = rows.h  # the residual stream, in float32
        for i, layer in enumerate(model.layers):
            qkv = ops.decode_linear(
                h, layer.qkv, norm_weight=layer.input_norm, eps=model.eps, prefetch=True,
            )  # fmt: skip
            out = self._attention(i, qkv, rows, kind.plan, workspace)
            h = ops.decode_linear(
                out.flatten(1), layer.o, residual=h, out_dtype=torch.float32, prefetch=True,
            )  # fmt: skip
            hidden = ops.decode_linear(
                h, layer.gate_up, norm_weight=layer.mlp_norm, eps=model.eps,
                silu_mul=True, prefetch=True,
            )  # fmt: skip
            h = ops.decode_linear(
                hidden, layer.down, residual=h, out_dtype=torch.float32, prefetch=True,
            )  # fmt: skip
        ids = self._largest(h) if kind.greedy else self._drawn(self._logits(h), rows)
        self._advance(ids, rows)

    # --8<-- [end:step]

    def begin(self, row: int, logits: Tensor, greedy: bool) -> None:
        """Enqueues the draw of a row's first token from `logits: [V]` float32, those of its prompt."""
        one = self.rows.part(slice(row, row + 1))
        self._advance(finite_argmax(logits[None]) if greedy else self._drawn(logits[None].contiguous(), one), one)

    def _attention(self, i: int, qkv: Tensor, rows: DecodeRows, plan: Plan, workspace: Tensor) -> Tensor:
        """→ `[b, Hq, D]`, by the model's way: in one launch, if nobody has asked for another."""
        batch = Batch(rows.positions, rows.slot_mapping, rows.block_table, rows.context_lens)
        # The step before may still be writing where layer 0 reads: its end is two launches ahead.
        return self.model.decode_attention(i, qkv, self.cache, batch, plan, workspace, prefetch=i > 0)

    def _largest(self, h: Tensor) -> Tensor:
        model, common = self.model, {"workspace": self._argmax_workspace, "prefetch": True}
        norm = {"norm_weight": model.norm, "eps": model.eps}
        if self.w8_head is not None:
            return model.ops.w8a16_argmax(h, self.w8_head.qweight, self.w8_head.scales, **norm, **common)
        return model.ops.head_argmax(h, model.head, **norm, **common)

    def _logits(self, h: Tensor) -> Tensor:
        model = self.model
        options = {"norm_weight": model.norm, "eps": model.eps, "out_dtype": torch.float32, "prefetch": True}
        if self.w8_head is not None:
            return model.ops.w8a16_linear(h, self.w8_head.qweight, self.w8_head.scales, **options)
        return model.ops.decode_linear(h, model.head, **options)

    def _drawn(self, logits: Tensor, rows: DecodeRows) -> Tensor:
        return self.model.ops.sample_tokens(
            logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.repetition_penalty, rows.seeds,
            rows.draws, rows.seen,
        )  # fmt: skip

    def _advance(self, ids: Tensor, rows: DecodeRows) -> None:
        self.model.ops.advance_decode(
            ids, self.model.embedding, rows.block_table, rows.context_lens, rows.positions, rows.slot_mapping,
            rows.draws, rows.history, rows.h, self.cache.num_blocks, self.cache.block_size,
        )  # fmt: skip
