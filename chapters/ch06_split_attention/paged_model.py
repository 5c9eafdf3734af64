"""Qwen3 on the operators of chapters 2 to 6: the reference model's weights, keys and values in pages.

    model = PagedModel(Qwen3.from_pretrained(directory))
    cache = model.new_cache(tokens=4096)
    sequence = cache.allocate()
    logits = model.prefill(cache, sequence, prompt)       # [V]
    logits = model.decode(cache, [sequence], [token])     # [b, V]: one more token of each sequence

Linear layers are PyTorch's. Norms, residual adds and SiLU·mul are chapters 2 and 3, each rounded once. Q, K and V are
of the cache's dtype; all else is of the weights'.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chapters.ch04_paged_kv.paged_cache import Batch, PagedKVCache
from chapters.ch06_split_attention.attention import paged_attention, plan_for, unavailable
from chapters.ch06_split_attention.backends import BACKENDS
from chapters.ch06_split_attention.dispatch import Op, Plan
from chapters.ch06_split_attention.prefill_attention import first_chunk_attention, later_chunk_attention
from qwen3_ref.model import Qwen3, attention_kernels
from qwen_cuda import loading
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.operators import cos_sin_table
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM

FUSED = "fused"
CACHE_DTYPES = (torch.bfloat16, torch.float16)
CHUNK = 8192  # tokens of a prompt that are computed at once: attention over a prefix in pages is the slower one

Plans = Callable[[int, int, int, torch.device], Plan]
Attend = Callable[[int, Tensor], Tensor]  # layer, qkv [t, (Hq + 2 Hkv) · D] → [t, Hq, D]


class PagedModel:
    """Any number of caches and sequences on one set of weights.

    Args:
        model: its weights are used as they lie. Those of q, k and v, and of gate and up, become parts of one tensor.
        attention: of a decode step: `fused`, all in one launch, or a name of `attention.backend_names()`, after a
            launch that writes the cache.
        cache_dtype: bfloat16 or float16; by default the weights', and bfloat16 for float32 weights.
        simulated: the CUDA kernels run in the simulator, on a model on the CPU. With `fused` only.
        plans: how a batch's contexts are cut; by default `dispatch.plan_for` for the operator.
    Attributes:
        config, dtype, device: of the model; `eps` and `scale` of its norms and of attention.
        embedding, layers, norm, head: its weights; `head` is `embedding` where the two are tied.
        cos_sin: of every position, as `qk_norm_rope_cache_write` wants it.
        ops: the operators that it runs.
        cache_dtype, plans: as given.
    Raises:
        ValueError: an argument does not meet this, or the model's heads are not of 128.
        BuildError: the operators, or the simulator, cannot be built.
    """

    def __init__(
        self,
        model: Qwen3,
        *,
        attention: str = FUSED,
        cache_dtype: torch.dtype | None = None,
        simulated: bool = False,
        plans: Plans | None = None,
    ) -> None:
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        if cache_dtype is None:
            cache_dtype = self.dtype if self.dtype in CACHE_DTYPES else torch.bfloat16
        _check(model, attention, cache_dtype, simulated)
        op: Op = "fused_decode_attention" if attention == FUSED else "paged_attention"
        self.attention, self.cache_dtype = attention, cache_dtype
        self.plans: Plans = plans or functools.partial(plan_for, op=op)
        if simulated:
            loading.backend("sim")
        self.ops: Any = torch.ops.qwen_sim if simulated else torch.ops.qwen_cuda
        self.eps, self.scale = self.config.rms_norm_eps, self.config.head_dim**-0.5
        self.embedding, self.head = model.model.embed_tokens.weight, model.head_weight
        self.cos_sin = cos_sin_table(self.config.max_position_embeddings, self.config.rope_theta, self.device)
        self.layers = [DecoderLayer(layer, cache_dtype) for layer in model.model.layers]
        self.norm = model.model.norm.weight
        self._workspaces: dict[tuple[int, int], Tensor] = {}

    def new_cache(self, **sizes: Any) -> PagedKVCache:
        """A cache for this model on its device. Arguments and errors: those of `PagedKVCache` behind `config`."""
        return PagedKVCache(self.config, dtype=self.cache_dtype, device=self.device, **sizes)

    @torch.inference_mode()
    def prefill(self, cache: PagedKVCache, sequence: int, token_ids: Sequence[int], chunk: int = CHUNK) -> Tensor:
        """Appends tokens to one sequence, `chunk` at a time, and returns the logits after the last: `[V]` float32.

        Raises:
            OutOfBlocks: the cache has not enough free blocks for all of them.
            ValueError: there is no token, an unknown one, or more than the sequence may hold; chunk is below 1.
        After an error the cache holds what it held.
        """
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; it must be at least 1.")
        tokens = self.checked(token_ids).to(self.device, non_blocking=True)
        with appended(cache, [sequence], [len(token_ids)]) as batch, attention_kernels(tokens):
            before = cache.length(sequence) - len(token_ids)
            for start in range(0, len(token_ids), chunk):
                part = slice(start, min(start + chunk, len(token_ids)))
                h = self._run(tokens[part], self._prefill_attention(cache, batch, part, before))
            return linear(h[-1], self.head).float()

    def first_chunk(self, cache: PagedKVCache, tokens: Tensor, batch: Batch, last: Tensor) -> Tensor:
        """Enqueues a prompt that nothing precedes, and copies nothing from the host: a CUDA graph may hold it.

        Args:
            tokens: int64 `[t]`. Behind the prompt's own there may be others, whose slots in `batch` are −1: nobody
                attends to them, and of them nothing is kept.
            batch: where they go; of its tensors only `positions` and `slot_mapping` are read, `[t]`.
            last: int64 `[1]`, the index of the prompt's last token.
        Returns:
            The logits after it: `[V]` float32.
        """
        h = self._run(tokens, self._prefill_attention(cache, batch, slice(0, len(tokens)), 0))
        return linear(h.index_select(0, last)[0], self.head).float()

    @torch.inference_mode()
    def decode(self, cache: PagedKVCache, sequences: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Appends one token to each sequence and returns the logits after it: `[b, V]` float32.

        Raises:
            OutOfBlocks: the cache has not enough free blocks.
            ValueError: a sequence is unknown, named twice or full, a token is unknown, or there is not one for each.
        After an error the cache holds what it held.
        """
        if len(token_ids) != len(sequences):
            raise ValueError(f"token_ids has {len(token_ids)} tokens for {len(sequences)} sequences; each needs one.")
        tokens = self.checked(token_ids).to(self.device, non_blocking=True)
        with appended(cache, sequences, [1] * len(sequences)) as batch:
            longest = max(cache.length(sequence) for sequence in sequences)
            return linear(self._run(tokens, self._decode_attention(cache, batch, longest)), self.head).float()

    def checked(self, token_ids: Sequence[int]) -> Tensor:
        """The same as int64 `[t]` in memory of the host. Raises ValueError if a token is unknown."""
        vocab = self.config.vocab_size
        with suppress(OverflowError):  # of a number that takes more than 64 bits: the loop below names it
            tokens = torch.from_numpy(np.fromiter(token_ids, np.int64, len(token_ids)))
            if bool(((tokens >= 0) & (tokens < vocab)).all()):
                return tokens
        unknown = next(token for token in token_ids if not 0 <= token < vocab)
        raise ValueError(f"token_ids holds {unknown}; the model has tokens 0 to {vocab - 1}.")

    # --8<-- [start:run]
    def _run(self, tokens: Tensor, attend: Attend) -> Tensor:
        """`[t]` token ids → hidden states after the last norm, `[t, d]`."""
        ops, eps = self.ops, self.eps
        h = self.embedding[tokens]  # the residual stream
        x = ops.rms_norm(h, self.layers[0].input_norm, eps)
        next_norms = [layer.input_norm for layer in self.layers[1:]] + [self.norm]
        for i, (layer, next_norm) in enumerate(zip(self.layers, next_norms, strict=True)):
            out = attend(i, linear(x, layer.qkv).to(self.cache_dtype))
            x = linear(out.flatten(1).to(self.dtype), layer.o)
            ops.add_rms_norm_(x, h, layer.mlp_norm, eps)  # h += x; x = norm(h)
            x = linear(ops.silu_mul(linear(x, layer.gate_up)), layer.down)
            ops.add_rms_norm_(x, h, next_norm, eps)
        return x

    # --8<-- [end:run]

    def _prefill_attention(self, cache: PagedKVCache, batch: Batch, part: slice, before: int) -> Attend:
        """For tokens `part` of a batch of one sequence that held `before` tokens ahead of it."""
        where = batch.positions[part], batch.slot_mapping[part]
        context = before + part.stop

        def attend(i: int, qkv: Tensor) -> Tensor:
            first = before + part.start == 0
            q, k = self._write(i, qkv, cache, *where, return_k=first)
            if not first:
                return later_chunk_attention(
                    q.to(self.dtype), cache.k[i], cache.v[i], batch.block_table[0], context, self.scale
                )
            v = qkv[:, -self.config.kv_size :].unflatten(1, (-1, HEAD_DIM))
            return first_chunk_attention(q.to(self.dtype), k.to(self.dtype), v.to(self.dtype), self.scale)

        return attend

    def _decode_attention(self, cache: PagedKVCache, batch: Batch, longest: int) -> Attend:
        """For one token of each sequence, whose contexts have at most `longest` tokens."""
        rows = len(batch.positions)
        plan = self.plans(rows, self.config.num_key_value_heads, longest, self.device)
        workspace = self.workspace(rows, plan.partitions)
        return lambda i, qkv: self.decode_attention(i, qkv, cache, batch, plan, workspace)

    def decode_attention(
        self, i: int, qkv: Tensor, cache: PagedKVCache, batch: Batch, plan: Plan, workspace: Tensor, *,
        prefetch: bool = False,
    ) -> Tensor:  # fmt: skip
        """Layer `i` of a decode step: writes the newest token of each sequence and attends to all of them.

        Args:
            qkv: `[b, (Hq + 2 Hkv) · D]` of `cache_dtype`.
            batch: one token of each sequence.
            workspace: of `workspace(b, plan.partitions)`.
            prefetch: that of `fused_decode_attention`; other ways do without.
        Returns:
            `[b, Hq, D]`.
        """
        layer, caches = self.layers[i], (cache.k[i], cache.v[i])
        where, context = (batch.positions, batch.slot_mapping), (batch.block_table, batch.context_lens)
        if self.attention != FUSED:
            q, _ = self._write(i, qkv, cache, *where)
            return paged_attention(
                q, *caches, *context, self.scale, backend=self.attention, plan=plan, workspace=workspace
            )
        return self.ops.fused_decode_attention(
            qkv, layer.q_norm, layer.k_norm, self.cos_sin, *where, *caches, *context, self.eps, self.scale,
            self.config.num_attention_heads, plan.partition_size, plan.partitions, workspace,
            merge=plan.merge, prefetch=prefetch,
        )  # fmt: skip

    def _write(
        self, i: int, qkv: Tensor, cache: PagedKVCache, positions: Tensor, slots: Tensor, return_k: bool = False
    ) -> tuple[Tensor, Tensor]:
        layer, heads = self.layers[i], self.config.num_attention_heads
        where = (positions, slots, cache.k[i], cache.v[i])
        q, k = self.ops.qk_norm_rope_cache_write(
            qkv, layer.q_norm, layer.k_norm, self.cos_sin, *where, self.eps, heads, return_k=return_k
        )
        return q, k

    def workspace(self, batch: int, partitions: int) -> Tensor:
        """Of attention. One for each cut that has come up: its counters must be 0 and lie where the cut puts them."""
        if (batch, partitions) not in self._workspaces:
            config = self.config
            sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim, partitions
            self._workspaces[batch, partitions] = WorkspaceLayout(batch, *sizes).new(self.device)
        return self._workspaces[batch, partitions]


class DecoderLayer:
    """The weights of a decoder layer as the operators want them: packed `qkv`, `o`, packed `gate_up`, `down`, norms.

    `q_norm` and `k_norm` are of the cache's dtype, all else of the model's.
    """

    def __init__(self, layer: Any, cache_dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.mlp_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        # Copies, even of the same dtype: a checkpoint that is mapped into memory need not begin at 16 bytes.
        norms = attention.q_norm, attention.k_norm
        self.q_norm, self.k_norm = (norm.weight.detach().to(cache_dtype, copy=True) for norm in norms)
        self.qkv, self.o = _packed(attention.q_proj, attention.k_proj, attention.v_proj), attention.o_proj.weight
        self.gate_up, self.down = _packed(mlp.gate_proj, mlp.up_proj), mlp.down_proj.weight


def _packed(*linears: nn.Linear) -> Tensor:
    """The weights one below the other. Each layer's own becomes a view of that, so that none is held twice.

    Where another `PagedModel` has made them such views, that is theirs again.
    """
    weights = [one.weight for one in linears]
    first, rows = weights[0], sum(len(weight) for weight in weights)
    ends = itertools.accumulate((weight.nbytes for weight in weights), initial=first.data_ptr())
    together = {weight.untyped_storage().data_ptr() for weight in weights} == {first.untyped_storage().data_ptr()}
    if together and all(weight.data_ptr() == end for weight, end in zip(weights, ends, strict=False)):
        return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1))
    packed = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, packed.split([len(weight) for weight in weights]), strict=True):
        weight.data = part
    return packed


def _check(model: Qwen3, attention: str, cache_dtype: torch.dtype, simulated: bool) -> None:
    if model.config.head_dim != HEAD_DIM:
        raise ValueError(f"head_dim of the model is {model.config.head_dim}; the kernels of chapter 4 take {HEAD_DIM}.")
    if attention not in (FUSED, *BACKENDS):
        raise ValueError(f"attention is {attention!r}; it must be one of {', '.join((FUSED, *BACKENDS))}.")
    if attention != FUSED and (reason := unavailable(attention)):
        raise ValueError(reason)
    if cache_dtype not in CACHE_DTYPES:
        raise ValueError(f"cache_dtype is {cache_dtype}; it must be torch.bfloat16 or torch.float16.")
    if simulated and (attention, model.device.type) != (FUSED, "cpu"):
        raise ValueError(
            f"simulated is given for attention {attention!r} on {model.device}; the simulator runs {FUSED!r} on a CPU."
        )


@contextmanager
def appended(cache: PagedKVCache, sequences: Sequence[int], counts: Sequence[int]) -> Iterator[Batch]:
    """Room for new tokens; when what computes them fails, the sequences are as long as before."""
    batch = cache.append(sequences, counts)
    try:
        yield batch
    except BaseException:
        for sequence, count in zip(sequences, counts, strict=True):
            cache.truncate(sequence, cache.length(sequence) - count)
        raise
