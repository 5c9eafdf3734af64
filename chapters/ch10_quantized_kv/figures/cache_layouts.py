"""Writes cache_layouts.json: where the bytes of a block lie in each format and layout of the lesson.

    PYTHONPATH=.:kernels python -m chapters.ch10_quantized_kv.figures.cache_layouts

The lesson's figure `cache-layouts` is drawn from it (docs/assets/js/figures/cache-layouts.js), and its table of bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

from chapters.ch10_quantized_kv.cache_formats import FP8, MXFP4, NVFP4
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat, Layout

FILE = Path(__file__).with_name("cache_layouts.json")
BLOCK_SIZE, KV_HEADS, HEAD_DIM = 16, QWEN3_0_6B.num_key_value_heads, QWEN3_0_6B.head_dim
CASTS = {
    "FP8": FP8,
    "FP8, one scale": CastArgs("e4m3", 128, "float32"),
    "NVFP4": NVFP4,
    "MXFP4": MXFP4,
}


def form_of(name: str, layout: Layout) -> KVCacheFormat:
    """A cache of K or V of one layer of Qwen3-0.6B."""
    return KVCacheFormat(CASTS[name], HEAD_DIM, KV_HEADS, BLOCK_SIZE, layout)


def token_bytes(form: KVCacheFormat) -> int:
    """What a token takes in a cache, K and V of all layers, padding included.

    Raises:
        ValueError: a block is no whole number of bytes for each of its tokens.
    """
    each, rest = divmod(form.block_bytes, form.block_size)
    if rest:
        raise ValueError(f"a block has {form.block_bytes} bytes for {form.block_size} tokens; that is no whole number.")
    return 2 * QWEN3_0_6B.num_hidden_layers * each


def content() -> dict[str, Any]:
    """The content of cache_layouts.json."""
    return {
        "schema": 1,
        "block_size": BLOCK_SIZE,
        "heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "bf16_token_bytes": cost.kv_bytes_per_token(QWEN3_0_6B),
        "formats": [_format(name, layout) for name in CASTS for layout in get_args(Layout)],
    }


def _format(name: str, layout: Layout) -> dict[str, Any]:
    form = form_of(name, layout)
    return {
        "name": name,
        "layout": layout,
        "values": form.cast.values,
        "scales": form.cast.scales,
        "group": form.cast.group,
        "data_bytes": form.data_bytes,
        "scale_bytes": form.scale_bytes,
        "data_row_stride": form.data_row_stride,
        "scale_row_stride": form.scale_row_stride,
        "scale_offset": form.scale_offset,
        "block_bytes": form.block_bytes,
        "token_bytes": token_bytes(form),
    }


def text_of(written: dict[str, Any]) -> str:
    """The file's text."""
    return json.dumps(written, indent=1) + "\n"


def main() -> int:
    FILE.write_text(text_of(content()), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
