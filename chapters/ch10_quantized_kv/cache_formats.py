"""The caches that the generator offers by name, and what a token costs in each.

FP8 is MXFP8: codes of e4m3, and for every 32 a scale that is a power of two. e4m3 is a float itself, so a power of two
costs it no accuracy, and four such scales take the room of one float32 for all 128. FP4 is NVFP4: a number has one bit
behind its leading one, so groups are small and scales have a significand. Blocks are block-wide: a record of 132 bytes
would be padded to 144, for loads of 16 bytes.
"""

from __future__ import annotations

from qwen3_ref.config import Qwen3Config
from qwen3_ref.cost import kv_bytes_per_token
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat

PLAIN = "bf16"  # numbers as the model computes them, in 16 bits
FP8, NVFP4, MXFP4 = CastArgs("e4m3", 32, "ue8m0"), CastArgs("e2m1", 16, "e4m3"), CastArgs("e2m1", 32, "ue8m0")
CASTS = {"fp8": FP8, "fp4": NVFP4}
KV_CACHES = (PLAIN, *CASTS)
HADAMARD_SCALE = 128**-0.5  # of the orthogonal transform that keys go through before they are quantised


def cache_format(name: str, config: Qwen3Config, block_size: int = 16) -> KVCacheFormat:
    """The format `name`, one of `CASTS`, for the heads of a model.

    Raises:
        ValueError: there is none of that name, or it does not take heads of this size.
    """
    if name not in CASTS:
        raise ValueError(f"the format of the cache is {name!r}; it must be one of {', '.join(CASTS)}.")
    return block_wide(CASTS[name], config, block_size)


def block_wide(cast: CastArgs, config: Qwen3Config, block_size: int = 16) -> KVCacheFormat:
    """Of one layer's keys, and of its values."""
    return KVCacheFormat(cast, config.head_dim, config.num_key_value_heads, block_size, layout="block_wide")


def cache_bytes_per_token(config: Qwen3Config, name: str) -> float:
    """Bytes that a token takes, K and V of all layers, scales and padding included; `name` is one of `KV_CACHES`.

    Of Qwen3-0.6B: bf16 114,688, fp8 59,136, fp4 32,256.
    """
    if name == PLAIN:
        return kv_bytes_per_token(config)
    return format_bytes_per_token(cache_format(name, config), config)


def format_bytes_per_token(form: KVCacheFormat, config: Qwen3Config) -> float:
    """The same for a format."""
    return 2 * config.num_hidden_layers * form.block_bytes / form.block_size


def cost_sentence(config: Qwen3Config, chosen: str) -> str:
    """What a token takes in the cache that was chosen, and in the others."""
    costs = {name: f"{cache_bytes_per_token(config, name):,.0f}" for name in KV_CACHES}
    others = ", ".join(f"{name} {cost}" for name, cost in costs.items() if name != chosen)
    return f"KV cache: {chosen}, {costs[chosen]} bytes a token ({others})."
