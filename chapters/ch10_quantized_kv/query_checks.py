"""What is promised of the queries that stand before keys: a launch with them is one without, and chapter 4's for Q."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.store_checks import DTYPES, FP8, NVFP4
from chapters.ch10_quantized_kv.store_runs import HADAMARD_SCALE, NAME, assert_same, table
from qwen_cuda.kv_cache_format import KVCacheFormat
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.numbers import norm_weight, rows_of_numbers
from qwen_cuda.testing.references import REFERENCES

EPS, MAX_POSITIONS = 1e-6, 300


def check_queries(backend: Backend) -> None:
    """Caches are those of a launch of K and V alone; Q is normed by its own weight and rotated, and not transformed."""
    for dtype, (heads, kv_heads, dim, tokens) in product(DTYPES, ((2, 1, 128, 5), (7, 5, 128, 1), (3, 1, 512, 3))):
        x = rows_of_numbers((tokens, heads + 2 * kv_heads, dim), dtype, seed=tokens, kind="wide")
        positions = torch.arange(tokens) * 37 + 5
        slots = torch.arange(tokens).flip(0) * 9
        for positions[-1], slots[0] in ((299, 3), (MAX_POSITIONS, -1)):  # and ones that are not there
            _check(backend, x, heads, positions, slots, KVCacheFormat(FP8, dim, kv_heads, layout="block_wide"))
    x = rows_of_numbers((64, 9, 128), torch.float16, seed=4)  # so many that the order of a sum shows
    _check(backend, x, 7, torch.arange(64) * 4, torch.arange(64), KVCacheFormat(FP8))
    x = rows_of_numbers((3, 8, 128), torch.bfloat16, seed=2)
    _check(backend, x, 4, torch.arange(3), torch.arange(3), KVCacheFormat(NVFP4, heads=2), normed=False)


def _check(
    backend: Backend, x: Tensor, heads: int, positions: Tensor, slots: Tensor, form: KVCacheFormat, normed: bool = True
) -> None:
    dim, cast = x.shape[2], form.cast
    weights = {"norm_weight": norm_weight(dim, x.dtype, seed=11)} if normed else {}
    query = {"query_weight": norm_weight(dim, x.dtype, seed=12)} if normed else {}
    given = {"cos_sin": table(MAX_POSITIONS, dim), "positions": positions, "slot_mapping": slots, **weights}
    options: dict[str, Any] = {"values": cast.values, "group": cast.group, "scale_format": cast.scales, "eps": EPS}
    options |= {"hadamard_scale": HADAMARD_SCALE if dim == 128 else 0.0, "cache_layout": list(form.strides)}

    def caches() -> dict[str, Guarded]:
        return {name: Guarded(form.shape(3), torch.uint8, backend.device) for name in ("k_cache", "v_cache")}

    on_device = {name: one.to(backend.device) for name, one in (given | query).items()}
    there = {name: one for name, one in on_device.items() if name in given}
    alone, beside = caches(), caches()
    q = Guarded((len(x), heads, dim), x.dtype, backend.device)
    run, placed = backend.op(NAME), x.to(backend.device)
    run(placed[:, heads:], **there, **options, **{name: one.tensor for name, one in alone.items()})
    run(placed, **on_device, **options, **{name: one.tensor for name, one in beside.items()}, query_out=q.tensor)
    for name, one in beside.items():
        one.check_guards(name)
        assert_same(name, one.tensor, alone[name].tensor)
    q.check_guards("query_out")
    wanted = torch.empty(len(x), heads, dim, dtype=x.dtype)
    turn = {name: one for name, one in given.items() if name != "slot_mapping"} | {"eps": EPS}
    turn |= {"norm_weight": query["query_weight"]} if normed else {}
    REFERENCES[NAME](x[:, :heads], **turn, out=wanted, stage="transform")
    assert_same("query_out", q.tensor, wanted)
    assert bool(q.tensor[(positions >= MAX_POSITIONS).to(backend.device)].isnan().all())
