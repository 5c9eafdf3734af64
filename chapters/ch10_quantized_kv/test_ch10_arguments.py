"""Which arguments go together: each rule refuses by its sentence, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen_cuda.operators import (
    CastArgs,
    Contiguous,
    HadamardArgs,
    KVCacheFormat,
    KVCacheOut,
    NormArgs,
    RopeArgs,
    cos_sin_table,
    norm_rope_hadamard_quant_store,
    store_kv,
)
from qwen_cuda.operators.kv_arguments import Pipeline

FP8 = CastArgs("e4m3", 32, "ue8m0")
BACK = CastArgs("e4m3", 32, "ue8m0", cast_back=True)
FORM = KVCacheFormat(FP8, heads=2)
CACHE, SLOTS, X = FORM.new(2), torch.arange(3), torch.zeros(3, 2, 128)
NORM = NormArgs(torch.ones(128))
ROPE = RopeArgs(torch.arange(3), cos_sin_table(9, 1e6))
BYTES = torch.zeros(3, 2, 128, dtype=torch.uint8)

ALONE: list[tuple[Callable[[], Any], str]] = [
    (lambda: NormArgs(torch.ones(1, 128)), "weight has shape [1, 128]; it must be [head_dim]."),
    (lambda: NormArgs(torch.ones(128), -1.0), "eps is -1.0; it must be a finite number, 0 or more."),
    (lambda: NormArgs(torch.ones(128), float("nan")), "eps is nan; it must be a finite number, 0 or more."),
    (lambda: RopeArgs(SLOTS, torch.ones(9, 128), "neox"), "pairing is 'neox'; it must be 'half' or 'interleaved'."),  # type: ignore[arg-type]
    (lambda: RopeArgs(SLOTS, torch.ones(9, 12)), "cos_sin has shape [9, 12]; it must be [max_positions, rotary_dim], "),
    (lambda: RopeArgs(SLOTS, torch.ones(9, 0)), "cos_sin has shape [9, 0]; it must be [max_positions, rotary_dim], wi"),
    (lambda: RopeArgs(SLOTS[None], torch.ones(9, 64)), "positions has shape [1, 3]; it must be [tokens]."),
    (lambda: HadamardArgs(0.0), "scale is 0.0; it must be a finite number other than 0."),
    (lambda: HadamardArgs(float("inf")), "scale is inf; it must be a finite number other than 0."),
    (lambda: CastArgs("e5m2", 32, "ue8m0"), "values is 'e5m2'; it must be 'e4m3' or 'e2m1'."),  # type: ignore[arg-type]
    (lambda: CastArgs("e4m3", 32, "int8"), "scales is 'int8'; it must be 'ue8m0', 'e4m3' or 'float32'."),  # type: ignore[arg-type]
    (lambda: CastArgs("e4m3", 48, "ue8m0"), "group is 48; it must be 16, 32, 64 or 128."),
    (lambda: CastArgs("e2m1", 16, "ue8m0"), "values is 'e2m1' with group 16 and scales 'ue8m0'; FP4 is either NVFP4, "),
    (lambda: CastArgs("e2m1", 32, "e4m3"), "values is 'e2m1' with group 32 and scales 'e4m3'; FP4 is either NVFP4"),
    (lambda: CastArgs("e2m1", 32, "float32"), "values is 'e2m1' with group 32 and scales 'float32'; FP4 is either"),
    (lambda: Contiguous(data=BYTES), "Contiguous has one of data and scales; codes need their scales"),
    (lambda: KVCacheOut(CACHE[:, 1:], SLOTS, FORM), "cache has dtype uint8 and shape [2, 4607]; its format asks for"),
    (lambda: KVCacheOut(CACHE, SLOTS, FORM, CACHE.float()), "v_cache has dtype float32 and shape [2, 4608]; its forma"),
    (lambda: KVCacheOut(CACHE, SLOTS, FORM, out=X), "KVCacheOut has one of out and out_stage; a stage needs a place"),
    (lambda: KVCacheOut(CACHE, SLOTS, FORM, out_stage="norm"), "KVCacheOut has one of out and out_stage"),
    (lambda: KVCacheOut(CACHE, SLOTS, FORM, out=X, out_stage="rope"), "out_stage is 'rope'; it must be 'norm', 'trans"),  # type: ignore[arg-type]
]  # fmt: skip

TO_CACHE = KVCacheOut(CACHE, SLOTS, FORM)
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({}, "norm, rope, hadamard and cast are all None; there is nothing to do."),
    ({"head_dim": 256, "cast": FP8}, "head_dim is 256; it must be 128 or 512."),
    ({"norm": NormArgs(torch.ones(64))}, "norm.weight has 64 elements; a head has 128."),
    ({"rope": RopeArgs(SLOTS, torch.ones(9, 136))}, "rope.rotary_dim is 136; it is at most head_dim, 128."),
    ({"rope": RopeArgs(SLOTS, torch.ones(9, 64), offset=0)}, "rope.offset is 0 and rotary_dim 64; the rotated part is"),
    ({"hadamard": HadamardArgs(1.0), "head_dim": 512}, "hadamard is given with head_dim 512; the transform is of 128"),
    ({"norm": NORM, "out": Contiguous(BYTES, BYTES)}, "out has data and scales; they need a cast without cast_back."),
    ({"cast": BACK, "out": Contiguous(BYTES, BYTES)}, "out has data and scales; they need a cast without cast_back."),
    ({"cast": FP8, "out": X}, "out is one tensor and cast gives codes and scales: ask for cast_back, or for Contiguou"),
    ({"norm": NORM, "out": TO_CACHE}, "out is a cache and cast is None; a quantised cache takes codes: pass format.ca"),
    ({"cast": BACK, "out": TO_CACHE}, "out is a cache and cast has cast_back; a cache takes codes: use out_stage='cas"),
    ({"cast": CastArgs("e4m3", 64, "ue8m0"), "out": TO_CACHE}, "cast is CastArgs(values='e4m3', group=64, scales='ue8"),
    ({"cast": FP8, "out": TO_CACHE, "head_dim": 512}, "heads are of 512 elements and the format's of 128."),
    ({"cast": FP8, "out": TO_CACHE, "heads": 4}, "x has 4 heads; the format asks for 2."),
    ({"cast": FP8, "out": KVCacheOut(CACHE, SLOTS, FORM, CACHE)}, "x has 2 heads; the format asks for 4, as many of K"),
    ({"cast": FP8, "out": KVCacheOut(CACHE, SLOTS, FORM, out=X, out_stage="norm")}, "out_stage is 'norm' and norm is "),
]  # fmt: skip


@pytest.mark.parametrize(("make", "sentence"), ALONE, ids=[sentence[:40] for _, sentence in ALONE])
def test_a_constructor_refuses(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        make()


@pytest.mark.parametrize(("arguments", "sentence"), TOGETHER, ids=[sentence[:40] for _, sentence in TOGETHER])
def test_a_combination_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        Pipeline(**({"heads": 2, "head_dim": 128} | arguments))


def test_a_call_is_refused_before_it_writes() -> None:
    before = CACHE.clone()
    with pytest.raises(ValueError, match=r"^x has 2 heads; the format asks for 4"):
        store_kv(X, KVCacheOut(CACHE, SLOTS, FORM, CACHE.clone()))
    with pytest.raises(
        ValueError, match=r"^x has shape \[128\]; it must be \[tokens, heads, head_dim\] or \[tokens, h"
    ):
        norm_rope_hadamard_quant_store(X[0, 0], NORM)
    with pytest.raises(
        ValueError, match=r"^out.data has dtype torch.int32 and strides \(256, 128, 1\); it must hold co"
    ):
        norm_rope_hadamard_quant_store(X, cast=FP8, out=Contiguous(BYTES.int(), BYTES))
    assert torch.equal(CACHE, before)


def test_an_offset_that_leaves_a_tail_is_accepted() -> None:
    Pipeline(1, 128, rope=RopeArgs(SLOTS, torch.ones(9, 64), offset=64))
    Pipeline(1, 512, rope=RopeArgs(SLOTS, torch.ones(9, 64), offset=448))
    Pipeline(1, 128, rope=ROPE)
