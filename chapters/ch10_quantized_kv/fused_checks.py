"""What this chapter promises of fused decode attention over codes, each promise a function of the backend to keep it.

All of it is one sentence: to the bits what `norm_rope_hadamard_quant_store` and `paged_attention_quantized` give, one
after the other. Both are held against float64 by themselves; here the result is, too, once more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import get_args

import torch

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.fused_cases import MAX_POSITIONS
from chapters.ch06_split_attention.split_cases import Cut, layout_of, merges
from chapters.ch10_quantized_kv.attention_checks import FP8, FP8_WIDE, MXFP4, NVFP4
from chapters.ch10_quantized_kv.combinations import casts
from chapters.ch10_quantized_kv.fused_cases import (
    ORTHOGONAL,
    check_same,
    first_token,
    free_slot,
    in_turn,
    new_tokens,
    rows_of,
    run,
)
from qwen_cuda.kv_cache_format import Layout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import rows_of_numbers
from qwen_cuda.testing.ulp import assert_same_bits

TWO_HEADS = Heads(kv_heads=2, group=2)
RAGGED = (1, 2, 15, 16, 17, 129, 0, 300)
CUTS: tuple[Cut, ...] = ((16, 1), (16, 2), (32, 4), (16, 16), (48, 3), (16, 40))


def check_fused_is_both_in_turn(backend: Backend) -> None:
    """Any cut, either merge, with and without reading ahead."""
    for cast in (FP8, NVFP4):
        some = new_tokens(RAGGED, cast, seed=41)
        for i, cut in enumerate(CUTS):
            expected = in_turn(backend, some, cut)
            for j, merge in enumerate(merges(backend, cut[1])):
                run(backend, some, cut, merge=merge, prefetch=(i + j) % 2 == 0).assert_same(expected)


def check_formats_and_groups(backend: Backend) -> None:
    """Each cast in both layouts and dtypes, for 1 to 8 query heads a KV head; the transform with any scale, or none."""
    for i, (cast, layout) in enumerate(product(casts(), get_args(Layout))):
        heads = Heads(1 + i % 2, GROUPS[i % len(GROUPS)], dtype=(BF16, FP16)[i // 2 % 2])
        some = new_tokens((37, 5), cast, heads, layout, hadamard_scale=(ORTHOGONAL, 0.0, 0.5)[i % 3], seed=i)
        check_same(backend, some, (16, 2), prefetch=i % 2 == 0)
    for group, cast, dtype in product((1, 2, 4, 8), (FP8, NVFP4, MXFP4), (BF16, FP16)):
        some = new_tokens((37,), cast, Heads(1, group, dtype=dtype), seed=group, wide=True)
        check_same(backend, some, (64, 1))


def check_pages_of_new_tokens(backend: Backend) -> None:
    """Pages of any size, the new token at each end of one; blocks with gaps between them."""
    for size, cast in product(BLOCK_SIZES, (FP8_WIDE, MXFP4)):
        lens = (size - 1, size, size + 1, 2 * size + 1)
        some = new_tokens(lens, cast, Heads(1, 2, block_size=size), "block_wide", block_padding=32, seed=size)
        check_same(backend, some, (32, 2))


def check_the_new_token_in_every_lane(backend: Backend) -> None:
    """It falls to every place of a turn, to every warp, and to a later turn."""
    lens = (*range(1, 36), 63, 64, 65, 127, 128, 129, 143, 161, 257, 385)
    for cast, group in ((FP8, 2), (NVFP4, 4)):
        some = new_tokens(lens, cast, Heads(1, group), seed=42)
        for cut in ((512, 1), (144, 2)):
            check_same(backend, some, cut, prefetch=True)


def check_numbers_of_any_size(backend: Backend) -> None:
    """Heads of zeros, and from 1e-3 to 1e4; an infinity in V is the same NaN to both."""
    for i, (cast, dtype) in enumerate(product((FP8, FP8_WIDE, NVFP4, MXFP4), (BF16, FP16))):
        some = new_tokens((20, 33, 5), cast, Heads(2, 2, dtype=dtype), seed=i)
        for kind in ("wide", "spike", "zeros", "huge"):
            qkv = rows_of_numbers((3, 8, 128), dtype, seed=i, kind=kind).flatten(1)
            check_same(backend, some.with_(qkv=qkv), (16, 2))
        qkv = some.fused.qkv.clone()
        qkv[1, -5] = torch.inf
        spoilt = some.with_(qkv=qkv)
        run(backend, spoilt, (16, 2)).assert_same(in_turn(backend, spoilt, (16, 2), numbers=False))


def check_slots_that_are_none(backend: Backend) -> None:
    """Nothing is stored there, and no other sequence is touched."""
    for cast in (FP8, NVFP4):
        some = new_tokens((20, 33, 64, 5), cast, TWO_HEADS, seed=43)
        size = len(some.codes.k_cache) * some.heads.block_size
        kept, row, others = run(backend, some, (16, 4)), int(some.fused.slot_mapping[1]), [0, 2, 3]
        for bad in (-1, size, -size, 2**31 - 1, -(2**31)):
            slots = some.fused.slot_mapping.clone()
            slots[1] = bad
            got = run(backend, some.with_(slot_mapping=slots), (16, 4))
            assert_same_bits(got.out[others], kept.out[others])
            for name in ("k_cache", "v_cache"):
                before = rows_of(getattr(some.codes, name), some.form)
                parts = rows_of(getattr(got, name), some.form), rows_of(getattr(kept, name), some.form), before
                for now, after, then in zip(*parts, strict=True):
                    expected = after.clone()
                    expected[row] = then[row]
                    assert_same_bits(now, expected)


def check_positions_that_are_none(backend: Backend) -> None:
    """NaN for that sequence alone, and nothing stored."""
    for cast in (FP8, NVFP4):
        some = new_tokens((20, 33, 64), cast, TWO_HEADS, seed=44)
        good, row = run(backend, some, (16, 4)), int(some.fused.slot_mapping[1])
        for bad in (-1, MAX_POSITIONS, 2**31 - 1):
            positions = some.fused.positions.clone()
            positions[1] = bad
            got = run(backend, some.with_(positions=positions), (16, 4))
            assert bool(got.out[1].isnan().all())
            assert_same_bits(got.out[[0, 2]], good.out[[0, 2]])
            for name in ("k_cache", "v_cache"):
                before, now = rows_of(getattr(some.codes, name), some.form), rows_of(getattr(got, name), some.form)
                for then, part in zip(before, now, strict=True):
                    assert_same_bits(part[row], then[row])


def check_a_token_without_context(backend: Backend) -> None:
    """A context of 0 gives zeros; its token is stored where it belongs. Negative and too long contexts."""
    some = new_tokens((0, 40), FP8, TWO_HEADS, seed=45)
    slots = some.fused.slot_mapping.clone()
    slots[0] = free_slot(some, 1, 40)
    some = some.with_(slot_mapping=slots)
    for cut in ((16, 1), (16, 4)):
        assert not run(backend, some, cut).out[0].any()
        check_same(backend, some, cut)
    check_same(backend, some.over(context_lens=torch.tensor([-5, 40], dtype=torch.int32)), (16, 4))
    some = new_tokens((32,), NVFP4, seed=45)
    whole = some.over(block_table=some.fused.stored.block_table[:, :2])
    longer = whole.over(context_lens=torch.tensor([2**31 - 1], dtype=torch.int32))
    run(backend, longer, (16, 3)).assert_same(run(backend, whole, (16, 3)))


def check_bad_blocks_of_stored_tokens(backend: Backend) -> None:
    """An entry that is no block: its tokens are absent, the new one too where it is in that block."""
    for cast, size in ((FP8, 16), (NVFP4, 8)):
        some = new_tokens((100, 100, 30, 45, 150), cast, Heads(1, 2, block_size=size), seed=46)
        block_table = some.fused.stored.block_table.clone()
        block_table[0, 2:4], block_table[1, 0] = -1, len(some.codes.k_cache)
        block_table[2, 29 // size], block_table[3] = 2**31 - 1, -1
        block_table[4, 149 // size] = -1  # of a second turn
        qkv = some.fused.qkv.clone()
        qkv[2:, -5] = torch.inf  # of V; nobody is to meet it
        for cut in ((32, 4), (16, 7), (256, 1)):
            check_same(backend, some.with_(qkv=qkv).over(block_table=block_table), cut)


def check_fused_bits_do_not_depend_on_company(backend: Backend) -> None:
    """Twice the same; alone and in a batch the same."""
    for cast in (FP8, MXFP4):
        some, cut = new_tokens((90, 7, 300), cast, TWO_HEADS, seed=47), (32, 8)
        batch, fused = run(backend, some, cut), some.fused
        batch.assert_same(run(backend, some, cut, prefetch=True))
        for s in range(3):
            rows = slice(s, s + 1)
            alone = some.over(block_table=fused.stored.block_table[rows], context_lens=fused.stored.context_lens[rows])
            token = {name: getattr(fused, name)[rows] for name in ("qkv", "positions", "slot_mapping")}
            assert_same_bits(run(backend, alone.with_(**token), cut).out, batch.out[rows])


def check_a_sequence_grows(backend: Backend) -> None:
    """Token by token with one workspace, each step reading what the ones before stored."""
    for cast in (FP8, NVFP4):
        last, cut = new_tokens((40,), cast, seed=48), (16, 4)
        layout = layout_of(last.fused.stored, cut[1])
        workspace = backend.place(layout.new("cpu"))
        caches = {"k_cache": last.codes.k_cache, "v_cache": last.codes.v_cache}
        for length in range(14, 41):
            now = last.over(**caches, context_lens=torch.tensor([length], dtype=torch.int32)).with_(
                qkv=last.fused.qkv.roll(length),
                positions=torch.tensor([length - 1], dtype=torch.int32),
                slot_mapping=first_token(length, last),
            )
            got = run(backend, now, cut, workspace=workspace)
            got.assert_same(in_turn(backend, now, cut))
            caches = {name: getattr(got, name).cpu().clone() for name in caches}


def check_fused_strided_rows(backend: Backend) -> None:
    """Rows of qkv apart."""
    for cast in (FP8, FP8_WIDE, NVFP4, MXFP4):
        check_same(backend, new_tokens((20, 64, 1), cast, TWO_HEADS, seed=49).with_(qkv_padding=24), (16, 4))


# The quickest first: a mutant meets them in this order.
FUSED_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_fused_strided_rows,
    check_a_token_without_context,
    check_bad_blocks_of_stored_tokens,
    check_positions_that_are_none,
    check_fused_bits_do_not_depend_on_company,
    check_slots_that_are_none,
    check_numbers_of_any_size,
    check_formats_and_groups,
    check_pages_of_new_tokens,
    check_a_sequence_grows,
    check_the_new_token_in_every_lane,
    check_fused_is_both_in_turn,
)
