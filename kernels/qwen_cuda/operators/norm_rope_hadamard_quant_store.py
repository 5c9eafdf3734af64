"""From a projection to a quantised KV cache: norm, rotation, Hadamard transform, codes and store in one launch.

Sources: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, eq. 4; Su et al., RoFormer, 2021, eq. 34;
Ashkboos et al., QuaRot, 2024 (the Hadamard transform of keys); Rouhani et al., OCP Microscaling Formats (MX)
Specification, 2023; Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention,
2023.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qwen3_ref.kv_quantization import dequantize_groups
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators.kv_arguments import (
    Contiguous,
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    Out,
    Pipeline,
    RopeArgs,
)
from qwen_cuda.operators.registration import register


def norm_rope_hadamard_quant_store(
    x: Tensor,
    norm: NormArgs | None = None,
    rope: RopeArgs | None = None,
    hadamard: HadamardArgs | None = None,
    cast: CastArgs | None = None,
    out: Out | None = None,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """Takes the heads of x through the stages that are given, in one launch.

    Norm, rotation and Hadamard transform run in float32 and are rounded once, to the dtype of x: without a Hadamard
    transform to the bits of `qk_norm_rope_cache_write`'s kernel. The cast begins from that rounded form and rounds a
    second time. So a head gives the same codes here and when its rounded form, kept elsewhere, is stored by `store_kv`.

    Args:
        x: `[t, heads, D]`, or `[t, D]` for one head, in bfloat16, float16 or float32; D is 128 or 512. The elements of
            a head lie side by side and heads begin at multiples of 4 elements: a slice of a projection will do.
        norm, rope, hadamard, cast: the stages, in this order; None leaves one out.
        out: where the result goes. `KVCacheOut` for a cache, which takes codes alone, and perhaps for the queries that
            stand before its keys; a tensor of the shape and dtype of x, without a cast or with `cast_back`;
            `Contiguous`, or None for new tensors.
    Returns:
        Without a cast, or with `cast_back`, a tensor as x. With a cast codes `[t, heads, D]` (FP4: uint8
        `[t, heads, D/2]`) and scales `[t, heads, D/group]`, each in its dtype. For a cache its `out`, or None.
    Raises:
        ValueError: the stages do not go together; the sentence names the rule.
        RuntimeError: a tensor does not meet this, or requires a gradient; the sentence says which.

    A group with a NaN or an infinity has the scale NaN, and so reads as NaN. A position that `cos_sin` does not have
    gives NaN, and writes nothing to a cache; neither does a slot that the cache does not have, such as −1.
    """
    if x.dim() not in (2, 3):
        raise ValueError(f"x has shape {list(x.shape)}; it must be [tokens, heads, head_dim] or [tokens, head_dim].")
    heads = x if x.dim() == 3 else x[:, None]
    pipeline = Pipeline(heads.shape[1], heads.shape[2], norm, rope, hadamard, cast, out)
    outputs = pipeline.new_outputs(x)
    shaped = tuple(one[:, None] if one is not None and x.dim() == 2 else one for one in outputs)
    torch.ops.qwen_cuda.norm_rope_hadamard_quant_store(heads, **pipeline.flat((shaped[0], shaped[1], shaped[2])))
    result, data, scales = outputs
    if data is None or scales is None:
        return result
    assert cast is not None
    if isinstance(out, Contiguous) and out.data is not None and out.scales is not None:
        return out.data, out.scales
    return data.view(cast.data_dtype), scales.view(cast.scale_dtype)


def store_kv(rows: Tensor, out: KVCacheOut) -> Tensor | None:
    """Quantises and stores heads that are normed, rotated and transformed already, such as a prefix that was kept.

    `rows: [t, heads, D]` or `[t, D]`. To the bytes that `norm_rope_hadamard_quant_store` writes where these rows are
    its stage "transform". Returns and raises as that.
    """
    result = norm_rope_hadamard_quant_store(rows, cast=out.format.cast, out=out)
    assert not isinstance(result, tuple)
    return result


def load_kv(cache: Tensor, slots: Tensor, format: KVCacheFormat, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """What a cache holds in these slots: code times scale, in float32 and rounded once to `dtype`.

    Args:
        cache: uint8 `[num_blocks, block_bytes]`.
        slots: `[n]`, int64 or int32; one that the cache does not have gives NaN.
    Returns:
        `[n, heads, D]` of `dtype`, on the device of `cache`.
    Raises:
        ValueError: the cache is not of this format, or slots is no list of integers.
    """
    if slots.dim() != 1 or slots.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"slots has dtype {slots.dtype} and shape {list(slots.shape)}; it must be [n], int64 or int32."
        )
    data, scales = format.views(cache)
    there = (slots >= 0) & (slots < cache.shape[0] * format.block_size)
    shape = (len(slots), format.heads, format.head_dim)
    if cache.shape[0] == 0:
        return torch.full(shape, torch.nan, dtype=dtype, device=cache.device)
    place = torch.where(there, slots, 0).long()
    block, place = place // format.block_size, place % format.block_size
    rows = dequantize_groups(data[block, place], scales[block, place], format.cast.values, format.cast.scales)
    return torch.where(there[:, None, None], rows, torch.nan).to(dtype)


def _fake(x: Tensor, **stages: Any) -> None:
    return None


register("norm_rope_hadamard_quant_store", fake=_fake)
