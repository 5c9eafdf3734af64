"""norm_rope_hadamard_quant_store on every backend: number formats, stages, layouts, slots, edge values, batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch10_quantized_kv.combinations import TURNS, Combination, casts
from chapters.ch10_quantized_kv.store_checks import DTYPES, KEYS, STAGES, STORE_CHECKS
from chapters.ch10_quantized_kv.store_runs import Setting, run, table, weight_of
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import KINDS
from qwen_cuda.testing.strategies import examples, seeds
from qwen_cuda.testing.ulp import assert_same_bits


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_store(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@st.composite
def stores(draw: st.DrawFn) -> tuple[Setting, list[int], list[int]]:
    """A setting that writes a cache, with positions and slots: inside, just outside, far outside, no slot twice."""
    norm = draw(st.booleans())
    head_dim = draw(st.sampled_from([128, 512]))
    how = Combination(
        head_dim,
        norm,
        draw(st.sampled_from(TURNS)),
        head_dim == 128 and draw(st.booleans()),
        draw(st.sampled_from(casts())),
        draw(st.sampled_from(["cache", "k and v"])),
        draw(st.sampled_from(["token_interleaved", "block_wide"])),
        draw(st.sampled_from([stage for stage in STAGES if norm or stage != "norm"])),
        heads=draw(st.integers(1, 3)),
        alignment=draw(st.sampled_from([4, 16, 64])),
        block_size=draw(st.sampled_from([8, 32])),
    )
    setting = Setting(
        how,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(KINDS)),
        draw(seeds()),
        num_blocks=draw(st.integers(0, 3)),
        x_padding=draw(st.sampled_from([0, 4, 128])),
        block_padding=draw(st.sampled_from([0, 4, 16])),
        slots_dtype=torch.int64,
    )
    inside = st.integers(0, max(0, setting.num_slots - 1))
    slots = draw(st.lists(inside | st.integers(-(2**40), -1) | st.integers(setting.num_slots, 2**40),
                          max_size=9, unique=True))  # fmt: skip
    return setting, [draw(st.integers(-1, setting.max_positions)) for _ in slots], slots


@examples(60)
@given(stores())
def test_store_of_anything(backend: Backend, drawn: tuple[Setting, list[int], list[int]]) -> None:
    setting, positions, slots = drawn
    where = torch.tensor(positions, dtype=torch.int64), torch.tensor(slots, dtype=torch.int64)
    run(backend, setting, setting.x(len(slots)), where[0], where[1])


def test_norm_and_rotation_have_the_bits_of_qk_norm_rope_cache_write(registered_backend: Backend) -> None:
    """The codes are those of the keys and values that chapter 4's operator writes, stored afterwards."""
    ops, heads, tokens = registered_backend.namespace, 3, 41
    for dtype in (torch.bfloat16, torch.float16):
        setting = Setting(replace(KEYS, heads=heads, hadamard=False, stage="transform"), dtype, "wide")
        x, (positions, slots) = setting.x(tokens), setting.indices(tokens)
        written = run(registered_backend, setting, x, positions, slots)
        qkv = torch.cat((x[:, :1], x), dim=1).flatten(1)
        weight, angles = weight_of(setting), table(setting.max_positions, 128)
        caches = [torch.zeros(setting.num_blocks, 16, heads, 128, dtype=dtype) for _ in "kv"]
        given = [qkv, weight, weight, angles, positions, slots, *caches]
        given = [one.to(registered_backend.device) for one in given]
        _, k = ops.qk_norm_rope_cache_write(*given, setting.eps, 1, return_k=True)
        assert_same_bits(written["out"][:, :heads], k)
        rows = torch.cat([cache.flatten(0, 1)[slots] for cache in given[-2:]], dim=1)
        stored = Setting(replace(setting.how, norm=False, rope=None, stage=None), dtype)
        assert_same_bits(run(registered_backend, stored, rows.cpu(), positions, slots)["k_cache"], written["k_cache"])
