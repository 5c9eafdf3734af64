"""Writes outliers.json: what the Hadamard transform does to the keys of the tiny checkpoint, and to the scores.

    PYTHONPATH=.:kernels python -m chapters.ch10_quantized_kv.figures.outliers

The lesson's pictures `outliers.svg` and `scores.svg` and its figure `hadamard` are drawn from it.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chapters.ch08_w8a16_head.quality_gate.subject import Subject, load
from chapters.ch10_quantized_kv.cache_formats import FP8, HADAMARD_SCALE, MXFP4, NVFP4
from qwen3_ref import functional
from qwen3_ref.hub import TINY_DIR, resolve_model
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, quantize_groups
from qwen3_ref.model import Qwen3
from qwen_cuda.kv_cache_format import CastArgs

FILE = Path(__file__).with_name("outliers.json")
TEXTS, TOKENS = 12, 64  # of the quality gate's held-out stories
SHOWN_LAYER = 1  # whose keys have the largest outliers
CASTS = {"FP8": FP8, "NVFP4": NVFP4, "MXFP4": MXFP4}
turned = partial(hadamard_transform, scale=HADAMARD_SCALE)


def subject() -> Subject:
    """The tiny checkpoint and its texts; `resolve_model` finds it without a network."""
    assert (TINY_DIR / "model.safetensors").exists()
    return load(resolve_model("tiny"), torch.device("cpu"), TOKENS)


def queries_and_keys(model: Qwen3, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each layer, as attention meets them: `q: [b, Hq, t, 128]` and `k: [b, Hkv, t, 128]`, normed and rotated.

    `tokens: [b, t]`.
    """
    normed: dict[tuple[int, str], Tensor] = {}

    def keep(layer: int, name: str, module: object, inputs: object, output: Tensor) -> None:
        normed[layer, name] = output.transpose(1, 2)

    layers = [layer.self_attn for layer in model.model.layers]
    hooks = [
        getattr(attention, f"{name}_norm").register_forward_hook(partial(keep, i, name))
        for i, attention in enumerate(layers)
        for name in "qk"
    ]
    with torch.inference_mode():
        model(tokens)
    for hook in hooks:
        hook.remove()
    config, positions = model.model.config, torch.arange(tokens.shape[1])
    cos, sin = functional.rope_cos_sin(positions, config.head_dim, config.rope_theta, torch.float32)
    rotated = {place: functional.apply_rope(heads, cos, sin) for place, heads in normed.items()}
    return [(rotated[i, "q"], rotated[i, "k"]) for i in range(len(layers))]


# --8<-- [start:round_trip]
def round_trip(x: Tensor, cast: CastArgs) -> Tensor:
    """What a cache gives back of `x: [..., 128]`, float32."""
    codes, scales = quantize_groups(x, cast.values, cast.group, cast.scales)
    return dequantize_groups(codes, scales, cast.values, cast.scales)


# --8<-- [end:round_trip]


def peak(x: Tensor) -> float:
    """The largest magnitude of a head over its root mean square, on average over heads: 1 to √128. `x: [..., 128]`"""
    return float((x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean())


def score_error(q: Tensor, k: Tensor, cast: CastArgs, transform: bool) -> float:
    """Root mean square of what quantised keys change in the scores of every query with the keys up to its own."""
    if transform:
        q, k = turned(q), turned(k)
    moved = (round_trip(k, cast) - k).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return rms_of_seen(q @ moved.mT) / q.shape[-1] ** 0.5


def rms_of_seen(scores: Tensor) -> float:
    """Root mean square over the pairs that a causal mask lets through. `[..., t, t]`"""
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return float(scores[..., seen].square().mean().sqrt())


def computed() -> dict[str, Any]:
    """The content of outliers.json, each number to four digits."""
    of = subject()
    tokens = torch.cat(of.prompts[:TEXTS])
    layers = queries_and_keys(of.reference(), tokens)
    keys = layers[SHOWN_LAYER][1]
    rows = keys.flatten(0, 2)
    largest = int((rows.abs().amax(-1) / rows.square().mean(-1).sqrt()).argmax())
    return {
        "schema": 1,
        "model": of.name,
        "texts": TEXTS,
        "tokens": tokens.shape[1],
        "layers": [
            {
                "peak": [_short(peak(k)), _short(peak(turned(k)))],
                "scores": _short(rms_of_seen(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT) / 128**0.5),
                "errors": {
                    name: [_short(score_error(q, k, cast, transform)) for transform in (False, True)]
                    for name, cast in CASTS.items()
                },
            }
            for q, k in layers
        ],
        "channels": {
            "layer": SHOWN_LAYER,
            "rms": [[_short(float(x)) for x in one.square().mean(0).sqrt()] for one in (rows, turned(rows))],
        },
        "key": {"layer": SHOWN_LAYER, "numbers": [_short(float(x)) for x in rows[largest]]},
    }


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def text_of(content: dict[str, Any]) -> str:
    """The file's text."""
    return json.dumps(content) + "\n"


def main() -> int:
    FILE.write_text(text_of(computed()), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
