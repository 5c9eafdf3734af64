"""What this chapter promises of qk_norm_rope_cache_write, each promise a function of the backend that must keep it.

They raise AssertionError. Three kinds of callers: the tests, on every backend; the tests of the ladder, on each step;
the mutants, which at least one of them must notice. They come in the order in which the exercise fills its holes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch

from chapters.ch04_paged_kv.cache_write_runs import Setting, Written, scattered, write
from qwen_cuda.operators.qk_norm_rope_cache_write import HEAD_DIM
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import KINDS
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits

DTYPES = (torch.bfloat16, torch.float16)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
HEADS = ((1, 1), (2, 1), (5, 1), (3, 2), (4, 4), (16, 8), (33, 3))
TOKENS = (0, 1, 2, 31, 64, 65, 100, 512, 513)  # around where the kernel changes its blocks
BASE = Setting()
NO_SLOTS = replace(BASE, num_blocks=0)


def sized(backend: Backend, setting: Setting, *tokens: int) -> None:
    """Each number of tokens at random positions, in random slots if there are any."""
    for number in tokens:
        positions, slots = scattered(number, setting)
        write(backend, setting, setting.qkv(number), positions, slots if setting.num_slots else positions)


def check_norm_alone(backend: Backend) -> None:
    """One position, where the rotation turns by nothing, and a cache without blocks: what is left is the norm."""
    for dtype in DTYPES:
        for kind in KINDS:
            sized(backend, replace(NO_SLOTS, dtype=dtype, kind=kind, max_positions=1), 3, 33)
        for eps in (1e-5, 1e-3, 0.7):
            sized(backend, replace(NO_SLOTS, dtype=dtype, kind="wide", max_positions=1, eps=eps), 3, 33)


def check_rotation(backend: Backend) -> None:
    """Any positions, still without a place for K and V."""
    for dtype in DTYPES:
        for kind in ("plain", "wide", "spike"):
            sized(backend, replace(NO_SLOTS, dtype=dtype, kind=kind), 1, 5, 40)


def check_rotation_far_from_the_beginning(backend: Backend) -> None:
    """Positions around 100,000, and the last one that the table has."""
    setting = replace(BASE, max_positions=100_050)
    positions = torch.tensor([0, 1, 65_535, 65_536, 99_999, 100_000, 100_049])
    write(backend, setting, setting.qkv(7), positions, torch.arange(7))
    write(backend, setting, setting.qkv(42), positions.repeat(6), torch.arange(42))


def check_slots(backend: Backend) -> None:
    """K and V lie where the mapping says, whatever the size of a block, and in any order of blocks."""
    for size in BLOCK_SIZES:
        for wide_positions, wide_slots in ((False, False), (False, True), (True, False), (True, True)):
            setting = replace(
                BASE,
                block_size=size,
                num_blocks=-(-48 // size) + 1,
                positions_dtype=torch.int64 if wide_positions else torch.int32,
                slots_dtype=torch.int64 if wide_slots else torch.int32,
                seed=size,
            )
            sized(backend, setting, 1, 7, 41)


def check_borders_of_pages(backend: Backend) -> None:
    """The last slot of a page, the first of the next and the one after it; the first and the last of the cache."""
    for size in BLOCK_SIZES:
        setting = replace(BASE, block_size=size, num_blocks=4)
        borders = [0, *(edge + d for edge in (size, 2 * size, 3 * size) for d in (-1, 0, 1)), 4 * size - 1]
        slots = torch.tensor(borders).unique()
        for mapping in (slots, slots.flip(0)):
            write(backend, setting, setting.qkv(len(slots)), torch.arange(len(slots)), mapping)


def check_slots_outside_of_the_cache(backend: Backend) -> None:
    """−1 writes nothing, and neither does any other slot that the cache does not have; q and k are still right."""
    end = BASE.num_slots
    for dtype, outside in (
        (torch.int32, [-1, -2, -(2**31), end, end + 1, 2**31 - 1]),
        (torch.int64, [-1, -2, -(2**31), -(2**32), -(2**63), end, end + 1, 2**31, 2**32, 2**32 + 1, 2**62]),
    ):
        setting = replace(BASE, slots_dtype=dtype)
        mapping = torch.tensor([3, *outside, end - 1])
        for slots in (mapping, mapping.repeat(5).where(torch.arange(5 * len(mapping)) < len(mapping), -1)):
            write(backend, setting, setting.qkv(len(slots)), torch.arange(len(slots)), slots)


def check_positions_outside_of_the_table(backend: Backend) -> None:
    """They give NaN and write nothing; their neighbours do not notice."""
    end = BASE.max_positions
    for dtype, outside in (
        (torch.int32, [-1, -(2**31), end, 2**31 - 1]),
        (torch.int64, [-1, -(2**32), end, end + 1, 2**32, 2**40]),
    ):
        setting = replace(BASE, positions_dtype=dtype)
        positions = torch.tensor([end - 1, *outside, 0])
        for count in (len(positions), 45):
            some = positions.repeat(8)[:count]
            written = write(backend, setting, setting.qkv(count), some, torch.arange(count))
            lost = (some < 0) | (some >= end)
            assert bool(written.q[lost.to(written.q.device)].isnan().all())


def check_any_heads(backend: Backend) -> None:
    """Groups of any size, more heads than a block has, and fewer than fill a warp."""
    for num_heads, num_kv_heads in HEADS:
        for dtype in DTYPES:
            setting = replace(BASE, num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype)
            sized(backend, setting, 2, 34)


def check_any_number_of_tokens(backend: Backend) -> None:
    """None, one, and around every border of the kernel's choice."""
    for tokens in TOKENS:
        setting = replace(BASE, num_heads=2, num_kv_heads=1, num_blocks=40, seed=tokens)
        sized(backend, setting, tokens)


def check_layouts(backend: Backend) -> None:
    """Gaps between rows, and addresses that no wide load may use, of each tensor alone and of all."""
    for dtype in DTYPES:
        for layout, offset in (
            (Layout(row_padding=8), 0),
            (Layout(row_padding=128), 0),
            (Layout(row_padding=1), 0),
            (Layout(row_padding=2), 0),
            (Layout(offset=1), 0),
            (Layout(offset=2), 0),
            (Layout(), 1),
            (Layout(), 2),
            (Layout(row_padding=3, offset=5), 3),
        ):
            sized(backend, replace(BASE, dtype=dtype, layout=layout, offset=offset), 3, 35)
        for name in ("q_weight", "k_weight", "cos_sin", "k_cache", "v_cache"):
            sized(backend, replace(BASE, dtype=dtype, offset=1, displaced=name), 3, 35)
        for padding in (4, 1):
            sized(backend, replace(BASE, dtype=dtype, table_padding=padding), 3, 35)


def check_prefill_and_decode_give_the_same_bits(backend: Backend) -> None:
    """A prompt at once, in two parts, or token by token: q and both caches are the same, bit for bit."""
    # Another order of additions changes a sum by 2^-24 of it, and so one rounded element in some 10,000: the float16
    # prompt has enough of them.
    for dtype, heads, tokens in ((torch.bfloat16, 3, 37), (torch.float16, 10, 320)):
        setting = replace(BASE, dtype=dtype, num_heads=heads, num_blocks=20, kind="wide")
        qkv, (positions, slots) = setting.qkv(tokens), scattered(tokens, setting)
        whole = write(backend, setting, qkv, positions, slots)
        for borders in ((0, 4, tokens), tuple(range(38)) if tokens == 37 else tuple(range(0, tokens + 1, 32))):
            parts = [slice(*pair) for pair in pairwise(borders)]
            written = [write(backend, setting, qkv[part], positions[part], slots[part]) for part in parts]
            assert_same_bits(torch.cat([one.q for one in written]), whole.q)
            assert_same_bits(torch.cat([one.k for one in written]), whole.k)
            for part, one in zip(parts, written, strict=True):
                for name in ("k_cache", "v_cache"):
                    assert_same_bits(getattr(one, name)[slots[part]], getattr(whole, name)[slots[part]])


def check_same_bits_every_time(backend: Backend) -> None:
    """Twice the same, and however the tensors lie in memory; with and without k."""
    for dtype in DTYPES:
        for tokens in (5, 36):
            setting = replace(BASE, dtype=dtype, kind="wide")
            qkv, (positions, slots) = setting.qkv(tokens), scattered(tokens, setting)
            first = write(backend, setting, qkv, positions, slots)
            for other in (setting, replace(setting, layout=Layout(1, 1)), replace(setting, offset=1)):
                _same(write(backend, other, qkv, positions, slots), first)
            without = write(backend, replace(setting, return_k=False), qkv, positions, slots)
            _same(replace(without, k=first.k), first)


def check_nan_and_infinity_stay_in_their_head(backend: Backend) -> None:
    """A NaN in a head of Q or K spoils that head of that token alone; in V it is copied."""
    heads = BASE.num_heads + 2 * BASE.num_kv_heads
    for tokens in (3, 34):
        positions, slots = scattered(tokens, BASE)
        clean = write(backend, BASE, BASE.qkv(tokens), positions, slots)
        for head in range(heads):
            spoilt = BASE.qkv(tokens).view(tokens, heads, HEAD_DIM).clone()
            spoilt[1, head, 77] = torch.nan
            got = write(backend, BASE, spoilt.flatten(1), positions, slots)
            nan = torch.cat((got.q, got.k, got.v_cache[slots]), dim=1).isnan().cpu()
            assert int(nan[1, head].sum()) == (HEAD_DIM if head < heads - BASE.num_kv_heads else 1)
            assert int(nan.sum()) == int(nan[1, head].sum())
            others = torch.arange(tokens) != 1
            assert_same_bits(got.q[others], clean.q[others])


def _same(one: Written, other: Written) -> None:
    for name in ("q", "k", "k_cache", "v_cache"):
        assert_same_bits(getattr(one, name), getattr(other, name))


CACHE_WRITE_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_norm_alone,
    check_rotation,
    check_slots,
    check_borders_of_pages,
    check_slots_outside_of_the_cache,
    check_positions_outside_of_the_table,
    check_any_heads,
    check_layouts,
    check_any_number_of_tokens,
    check_prefill_and_decode_give_the_same_bits,
    check_same_bits_every_time,
    check_nan_and_infinity_stay_in_their_head,
    check_rotation_far_from_the_beginning,
)
# They cost more than all others together.
LARGE = frozenset((check_rotation_far_from_the_beginning, check_any_heads, check_nan_and_infinity_stay_in_their_head))
