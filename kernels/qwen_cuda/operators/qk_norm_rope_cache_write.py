"""From packed QKV to attention: QK-norm, RoPE and the write into the paged KV cache in one launch (chapter 4).

Sources: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, eq. 4; Su et al., RoFormer, 2021, eq. 34, with
pairs (i, i + 64); Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from qwen3_ref.functional import rope_cos_sin
from qwen_cuda.operators.registration import register

HEAD_DIM = 128
CHECK = "QWEN_CHECK_INDICES"


def qk_norm_rope_cache_write(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    num_heads: int,
    *,
    return_k: bool = False,
) -> tuple[Tensor, Tensor]:
    """Norms and rotates the heads of Q and K; K and V go to their slots of the cache. In fp32, rounded once.

    Args:
        qkv: `[t, (Hq + 2 Hkv) · 128]` in float16 or bfloat16: a token's heads of Q, of K and of V. The rows lie at one
            distance: a slice of columns will do.
        q_weight, k_weight: `[128]`, the weights of the two norms, of the dtype and device of `qkv`, as the caches.
        cos_sin: float32 `[max_positions, 128]`: see `cos_sin_table`.
        positions, slot_mapping: `[t]`, int64 or int32, on the device of `qkv`. A token with slot −1 writes nothing. No
            two tokens may have one slot.
        k_cache, v_cache: `[num_blocks, block_size, Hkv, 128]`, contiguous; a block holds 8 to 256 tokens, a power of
            two. Slot `s` is place `s % block_size` of block `s // block_size`. Written.
        num_heads: Hq. Hkv is that of the cache.
        return_k: the rotated K is returned too, for attention within a prompt.
    Returns:
        Rotated q `[t, Hq, 128]`, and rotated k `[t, Hkv, 128]`, which is `[0, Hkv, 128]` without `return_k`.
    Raises:
        RuntimeError: an argument does not meet this, or requires a gradient; the sentence says which.
        IndexError: in a run with QWEN_CHECK_INDICES=1, as `check_indices`.

    Indices are read on the device, so they are not checked here. One that is out of range does no harm: a token with
    such a slot writes nothing, one with such a position writes nothing and gives NaN.
    """
    if not torch.compiler.is_compiling() and os.environ.get(CHECK) == "1":
        check_indices(positions, slot_mapping, cos_sin.shape[0], k_cache.shape[0] * k_cache.shape[1])
    return torch.ops.qwen_cuda.qk_norm_rope_cache_write(
        qkv, q_weight, k_weight, cos_sin, positions, slot_mapping, k_cache, v_cache, eps, num_heads, return_k=return_k
    )


def cos_sin_table(max_positions: int, theta: float, device: torch.device | str = "cpu") -> Tensor:
    """The argument `cos_sin` for positions `0 … max_positions − 1`: float32 `[max_positions, 128]`, cosines first.

    The values are those of `qwen3_ref.functional.rope_cos_sin` in float32, which the reference model uses.
    """
    positions = torch.arange(max_positions, device=device)
    return torch.cat(rope_cos_sin(positions, HEAD_DIM, theta, torch.float32), dim=-1)


def check_indices(positions: Tensor, slot_mapping: Tensor, max_positions: int, num_slots: int) -> None:
    """For debugging: says which index `qk_norm_rope_cache_write` would pass over. Waits for the device.

    Raises:
        IndexError: a position that `cos_sin` does not hold, a slot other than −1 that the cache does not have, or two
            tokens with one slot; the sentence names the first of them.
    """
    at: dict[int, int] = {}
    for token, (position, slot) in enumerate(zip(positions.tolist(), slot_mapping.tolist(), strict=True)):
        if not 0 <= position < max_positions:
            raise IndexError(
                f"positions[{token}] is {position}; it must be from 0 to {max_positions - 1}, the rows of cos_sin."
            )
        if not -1 <= slot < num_slots:
            raise IndexError(
                f"slot_mapping[{token}] is {slot}; it must be from 0 to {num_slots - 1}, the slots of the cache, "
                "or -1 to write nothing."
            )
        if slot >= 0 and (first := at.setdefault(slot, token)) != token:
            raise IndexError(
                f"slot_mapping[{token}] is {slot}, and so is slot_mapping[{first}]; each token needs a slot of its own."
            )


def _fake(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
    num_heads: int,
    *,
    return_k: bool = False,
) -> tuple[Tensor, Tensor]:
    tokens = qkv.shape[0]
    q = qkv.new_empty((tokens, num_heads, HEAD_DIM))
    return q, qkv.new_empty((tokens if return_k else 0, k_cache.shape[2], HEAD_DIM))


register("qk_norm_rope_cache_write", fake=_fake)
