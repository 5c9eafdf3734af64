"""qk_norm_rope_cache_write on every backend: accuracy, pages, layouts, determinism, NaN.

`make exercise 4` runs these tests on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch04_paged_kv.cache_write_checks import BLOCK_SIZES, CACHE_WRITE_CHECKS, DTYPES
from chapters.ch04_paged_kv.cache_write_runs import Setting, write
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import KINDS
from qwen_cuda.testing.strategies import examples, layouts, seeds


@pytest.mark.parametrize("check", CACHE_WRITE_CHECKS, ids=lambda check: check.__name__)
def test_cache_write(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Setting, list[int], list[int]]:
    """A setting with positions and slots: slots inside, outside, never twice; positions inside or just outside."""
    setting = Setting(
        num_heads=draw(st.integers(1, 9)),
        num_kv_heads=draw(st.integers(1, 4)),
        block_size=draw(st.sampled_from(BLOCK_SIZES)),
        num_blocks=draw(st.integers(0, 4)),
        dtype=draw(st.sampled_from(DTYPES)),
        max_positions=draw(st.sampled_from([1, 2, 300])),
        kind=draw(st.sampled_from(KINDS)),
        seed=draw(seeds()),
        layout=draw(layouts()),
        offset=draw(st.sampled_from([0, 0, 1, 4])),
        positions_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        slots_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        return_k=draw(st.booleans()),
    )
    inside = st.integers(0, max(0, setting.num_slots - 1))
    slots = draw(st.lists(inside | st.integers(-(2**31), -1) | st.integers(setting.num_slots, 2**31 - 1),
                          max_size=40, unique=True))  # fmt: skip
    positions = [draw(st.integers(-1, setting.max_positions)) for _ in slots]
    return setting, positions, slots


@examples(100)
@given(runs())
def test_cache_write_of_anything(backend: Backend, run: tuple[Setting, list[int], list[int]]) -> None:
    setting, positions, slots = run
    qkv = setting.qkv(len(slots))
    write(backend, setting, qkv, torch.tensor(positions, dtype=torch.int64), torch.tensor(slots, dtype=torch.int64))
