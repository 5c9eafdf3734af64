"""Attention of a prompt's chunk: over itself alone at first, then over what the chunks before it left in the cache too.

It is PyTorch's scaled_dot_product_attention. A prompt gives it many queries a key, so it is no longer bound by reads.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from qwen3_ref.functional import causal_mask, repeat_kv


def first_chunk_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of tokens that nothing precedes. `q: [t, Hq, D]`, `k, v: [t, Hkv, D]` → `[t, Hq, D]`."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return _tokens_first(
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    )


def later_chunk_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, context: int, scale: float
) -> Tensor:
    """Attention of the last tokens of a sequence, each over all up to itself, with keys and values from their pages.

    Args:
        q: `[t, Hq, D]`. Of its dtype the result is, and the arithmetic.
        k_cache, v_cache: `[num_blocks, block_size, Hkv, D]`; they hold the chunk's own tokens already.
        blocks: `[max_blocks]`, the sequence's row of the block table. Each that the context needs is one of the cache.
        context: its tokens, those of the chunk among them; at least t.
    Returns:
        `[t, Hq, D]`.
    """
    k, v = (_first_tokens(cache, blocks, context) for cache in (k_cache, v_cache))
    return attention_of_last(q, k, v, scale)


def attention_of_last(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The same once keys and values are gathered: `q: [t, Hq, D]`, `k, v: [context, Hkv, D]` → `[t, Hq, D]`."""
    group_size = q.shape[1] // k.shape[1]
    # The heads are written out: with a mask and grouped heads PyTorch would keep all scores in memory.
    k, v = (repeat_kv(x.transpose(0, 1)[None].to(q.dtype), group_size) for x in (k, v))
    mask = causal_mask(q.shape[0], k.shape[2], q.device) if q.shape[0] > 1 else None
    return _tokens_first(scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, mask, scale=scale))


def _first_tokens(cache: Tensor, blocks: Tensor, context: int) -> Tensor:
    """`[context, Hkv, D]`. The host knows how many blocks that are, so nothing waits for the device."""
    needed = -(-context // cache.shape[1])
    return cache[blocks[:needed].long()].flatten(0, 1)[:context]


def _tokens_first(out: Tensor) -> Tensor:
    """`[1, Hq, t, D]` → `[t, Hq, D]`."""
    return out[0].transpose(0, 1)
