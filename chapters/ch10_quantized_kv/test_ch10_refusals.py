"""What the operator itself refuses, each by its sentence, and before it writes: it trusts no Python above it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators import cos_sin_table
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed
from qwen_cuda.testing.ulp import assert_same_bits

NAME = "norm_rope_hadamard_quant_store"
BF16 = torch.bfloat16
FORM = KVCacheFormat(CastArgs("e4m3", 32, "float32"), heads=2)


def good() -> dict[str, Any]:
    """Arguments that are accepted, K and V among them."""
    return {
        "x": torch.randn(4, 4, 128, generator=torch.Generator().manual_seed(1)).to(BF16),
        "norm_weight": torch.ones(128, dtype=BF16),
        "eps": 1e-6,
        "cos_sin": cos_sin_table(50, 1e6),
        "positions": torch.arange(4),
        "hadamard_scale": 0.1,
        "values": "e4m3",
        "group": 32,
        "scale_format": "float32",
        "out": torch.zeros(4, 4, 128, dtype=BF16),
        "stage": "transform",
        "k_cache": FORM.new(3),
        "v_cache": FORM.new(3),
        "slot_mapping": torch.arange(4, dtype=torch.int32),
        "cache_layout": list(FORM.strides),
    }


def call(backend: Backend, arguments: dict[str, Any]) -> None:
    """On the backend's device, with the strides and the shared memory that the arguments have."""
    names = [name for name, value in arguments.items() if isinstance(value, Tensor)]
    there = dict(zip(names, placed([arguments[name] for name in names], backend.device), strict=True))
    flat = arguments | there
    getattr(backend.namespace, NAME)(flat.pop("x"), **flat)


X = good()["x"]
WIDE = torch.zeros(4, 4, 256, dtype=BF16)
CACHE = good()["k_cache"]
BYTES = torch.zeros(4, 4, 128, dtype=torch.uint8)
TO_ROWS = {"k_cache": None, "v_cache": None, "slot_mapping": None, "data": BYTES, "scales": BYTES[..., :16].clone()}
LAYOUT = list(FORM.strides)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("integers", {"x": X.to(torch.int16)}, "x has dtype Short; it must be float32, float16 or bfloat16."),
    ("two dimensions", {"x": X[0]}, "x has shape [4, 128]; it must be [tokens, heads, head_dim] with a head_dim of 12"),
    ("heads of 64", {"x": X[..., :64]}, "x has shape [4, 4, 64]; it must be [tokens, heads, head_dim] with a head_dim"),
    ("no heads", {"x": X[:, :0]}, "x has shape [4, 0, 128]; it must have from 1 to 2147483643 heads, over all tokens."),
    ("gaps", {"x": WIDE[..., ::2]}, "x has strides [1024, 256, 2]; the elements of a head must lie side by side"),
    ("odd distances", {"x": torch.zeros(4, 4, 130, dtype=BF16)[..., :128]}, "x has strides [520, 130, 1]; the element"),
    ("odd address", {"x": WIDE[..., 1:129]}, "x begins at an address that is no multiple of 8 bytes; pass x.contiguou"),
    ("short weight", {"norm_weight": torch.ones(64, dtype=BF16)}, "norm_weight has shape [64] and strides [1]; it mus"),
    ("wide weight", {"norm_weight": torch.ones(128)}, "norm_weight has dtype Float and x BFloat16; they must have one"),
    ("negative eps", {"eps": -1.0}, "eps is -1; it must be a finite number, 0 or more."),
    ("no positions", {"positions": None}, "positions is missing; with cos_sin each token needs one."),
    ("narrow table", {"cos_sin": cos_sin_table(50, 1e6).to(BF16)}, "cos_sin has dtype BFloat16; it must be float32."),
    ("odd rotary_dim", {"cos_sin": torch.ones(9, 12)}, "cos_sin has shape [9, 12]; it must be [max_positions, rotary_"),
    ("wide rotary_dim", {"cos_sin": torch.ones(9, 136)}, "cos_sin has shape [9, 136]; it must be [max_positions, rota"),
    ("table rows", {"cos_sin": torch.ones(9, 129)[:, :128]}, "cos_sin has strides [129, 1]; its rows must lie a multi"),
    ("floats", {"positions": torch.ones(4)}, "positions has dtype Float; it must be int64 or int32."),
    ("few slots", {"slot_mapping": torch.arange(3)}, "slot_mapping has shape [3]; it must be [4], one for each row of"),
    ("no slots", {"slot_mapping": None}, "slot_mapping is missing; with k_cache each token needs a slot."),
    ("infinite", {"hadamard_scale": float("inf")}, "hadamard_scale is inf and head_dim 128; it must be finite, and 0 "),
    ("values", {"values": "fp8"}, 'values is "fp8"; it must be one of "", "e4m3", "e2m1".'),
    ("scales", {"scale_format": "fp32"}, 'scale_format is "fp32"; it must be one of "ue8m0", "e4m3", "float32".'),
    ("stage", {"stage": "rope"}, 'stage is "rope"; it must be one of "", "norm", "transform", "cast_back".'),
    ("group", {"group": 8}, "group is 8; it must be 16, 32, 64 or 128."),
    ("out without stage", {"stage": ""}, 'out is given and stage is ""; it says what out is to hold.'),
    ("stage without out", {"out": None}, 'stage is "transform" and out is missing; it is where that goes.'),
    ("nothing to cast", {"values": "", "stage": "cast_back"}, 'stage is "cast_back" and values is ""; without codes t'),
    ("out's shape", {"out": torch.zeros(4, 2, 128, dtype=BF16)}, "out has shape [4, 2, 128] and strides [256, 128, 1]"),
    ("out's dtype", {"out": torch.zeros(4, 4, 128)}, "out has dtype Float and x BFloat16; they must have one dtype."),
    ("nowhere", {**dict.fromkeys(TO_ROWS), "out": None, "stage": ""}, "out, data and k_cache are missing; the result "),
    ("two targets", {"data": BYTES}, "data and k_cache are given; codes go to one of them."),
    ("no cast", {"values": ""}, 'values is "", and codes are to be stored; it must be "e4m3" or "e2m1".'),
    ("codes alone", {**TO_ROWS, "scales": None}, "scales is missing; codes without them say nothing."),
    ("scales alone", {"scales": BYTES}, "scales is given without data."),
    ("cache alone", {"k_cache": None}, "v_cache or slot_mapping is given without k_cache."),
    ("short codes", {**TO_ROWS, "data": BYTES[..., :64]}, "data has shape [4, 4, 64] and strides [512, 128, 1]; it mu"),
    ("no bytes", {**TO_ROWS, "data": BYTES.float()}, "data has dtype Float; it must be uint8."),
    ("few scales", {**TO_ROWS, "scales": BYTES[..., :4].clone()}, "scales has shape [4, 4, 4] and strides [16, 4, 1];"),
    ("odd heads", {"x": X[:, :3], "out": torch.zeros(4, 3, 128, dtype=BF16)}, "x has 3 heads; with v_cache it must ha"),
    ("short layout", {"cache_layout": [16, 144]}, "cache_layout has 2 numbers; it must be block_size, the strides of "),
    ("blocks of 12", {"cache_layout": [12, *LAYOUT[1:]]}, "cache_layout has blocks of 12 tokens; block_size must be a"),
    ("overlapping rows", {"cache_layout": [16, 140, 140, 128]}, "cache_layout is [16, 140, 140, 128]; with 128 bytes "),
    ("negative offset", {"cache_layout": [16, 144, 144, -16]}, "cache_layout is [16, 144, 144, -16]; with 128 bytes o"),
    ("unaligned scales", {"cache_layout": [16, 146, 146, 130]}, "cache_layout is [16, 146, 146, 130]; with 128 bytes"),
    ("beyond the block", {"cache_layout": [16, 160, 160, 128]}, "k_cache has shape [3, 4608] and strides [4608, 1]; i"),
    ("cache of floats", {"k_cache": CACHE.float()}, "k_cache has dtype Float; it must be uint8."),
    ("fewer blocks", {"v_cache": CACHE[:2].clone()}, "v_cache has shape [2, 4608] and k_cache [3, 4608]; they must ha"),
    ("odd blocks", {"k_cache": torch.zeros(3, 4610, dtype=torch.uint8)}, "k_cache has shape [3, 4610] and strides [46"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_arguments_of_the_store_are_refused(registered_backend: Backend, change: dict[str, Any], sentence: str) -> None:
    arguments = good() | change
    before = {name: one.clone() for name, one in arguments.items() if isinstance(one, Tensor)}
    with pytest.raises(RuntimeError) as failure:
        call(registered_backend, arguments)
    assert str(failure.value).startswith(f"{NAME}: {sentence}"), str(failure.value)
    for name, one in before.items():
        assert_same_bits(arguments[name].contiguous().view(torch.uint8), one.contiguous().view(torch.uint8))


def test_the_arguments_that_were_changed_are_good(registered_backend: Backend) -> None:
    call(registered_backend, good())
    call(registered_backend, good() | TO_ROWS | {"out": None, "stage": ""})


@pytest.mark.parametrize("written", ["out", "k_cache", "v_cache"])
@pytest.mark.parametrize("name", ["x", "norm_weight", "cos_sin", "positions", "slot_mapping", "out", "k_cache"])
def test_what_is_written_shares_memory_with_nothing(registered_backend: Backend, written: str, name: str) -> None:
    arguments = good()
    if written == name:
        return
    shared = torch.zeros(3 * FORM.block_bytes + 64, dtype=torch.uint8)
    for one in (written, name):
        like = arguments[one][:20] if one == "cos_sin" else arguments[one]
        arguments[one] = shared[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)
    with pytest.raises(RuntimeError, match=re.escape(f"{NAME}: ") + r"\w+ and \w+ share memory; \w+ is written"):
        call(registered_backend, arguments)
