"""What chapter 6 promises of fused decode attention, each promise a function of the backend to keep it.

All of it is one sentence: to the bits what `qk_norm_rope_cache_write` and `paged_attention_split` give, one after the
other. Both are held against float64 by themselves; here the result is, too, once more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.fused_cases import HEAD_DIM, MAX_POSITIONS, fused, fused_case, one_after_the_other
from chapters.ch06_split_attention.split_cases import Cut, layout_of, merges
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

RAGGED = (1, 2, 16, 17, 129, 0, 300)
CUTS: tuple[Cut, ...] = ((16, 1), (16, 2), (32, 4), (16, 16), (48, 3), (16, 40))


def check_fused_is_both_in_turn(backend: Backend) -> None:
    """Any cut, either merge, with and without reading ahead."""
    some = fused_case(RAGGED, seed=41)
    for i, cut in enumerate(CUTS):
        expected = one_after_the_other(backend, some, cut)
        for j, merge in enumerate(merges(backend, cut[1])):
            fused(backend, some, cut, merge=merge, prefetch=(i + j) % 2 == 0).assert_same(expected)
    cut = (64, 4)
    fused(backend, some, cut, merge="auto", prefetch=True).assert_same(one_after_the_other(backend, some, cut))


def check_fused_groups_and_pages(backend: Backend) -> None:
    """Every size of group and of page, both dtypes, indices of either width."""
    for i, group in enumerate(GROUPS):
        heads = Heads(1 + i % 2, group, HEAD_DIM, BLOCK_SIZES[i % len(BLOCK_SIZES)], (BF16, FP16)[i % 2])
        some = fused_case((37, 5, 70), heads, seed=i, wide=i % 2 == 0)
        for cut, merge in (((16, 4), "auto"), ((16, 3), "last_block"), ((128, 1), "auto")):
            fused(backend, some, cut, merge=merge).assert_same(one_after_the_other(backend, some, cut))
    for size in BLOCK_SIZES:
        some = fused_case((size - 1, size, size + 1, 2 * size + 1), Heads(1, 2, HEAD_DIM, size), seed=size)
        fused(backend, some, (32, 2)).assert_same(one_after_the_other(backend, some, (32, 2)))


def check_the_new_token_in_every_lane(backend: Backend) -> None:
    """The new token falls to every stream and warp in turn, and to a later turn."""
    lens = (*range(1, 36), 63, 64, 65, 127, 128, 129, 143, 161, 257)
    some = fused_case(lens, Heads(1, 2), seed=42)
    for cut in ((512, 1), (144, 2)):
        fused(backend, some, cut).assert_same(one_after_the_other(backend, some, cut))


def check_slots_that_are_none(backend: Backend) -> None:
    """Nothing is stored there, and no other sequence is touched."""
    some = fused_case((20, 33, 64, 5), seed=43)
    size = some.stored.k_cache.shape[0] * some.heads.block_size
    kept, row, others = fused(backend, some, (16, 4)), int(some.slot_mapping[1]), [0, 2, 3]
    for bad in (-1, size, -size, 2**31 - 1, -(2**31)):
        slots = some.slot_mapping.clone()
        slots[1] = bad
        got = fused(backend, some.with_(slot_mapping=slots), (16, 4))
        assert_same_bits(got.out[others], kept.out[others])
        for name in ("k_cache", "v_cache"):
            expected = getattr(kept, name).flatten(0, 1).clone()
            expected[row] = getattr(some.stored, name).flatten(0, 1)[row]
            assert_same_bits(getattr(got, name).flatten(0, 1), expected)


def check_positions_that_are_none(backend: Backend) -> None:
    """NaN for that sequence alone, and nothing stored."""
    some = fused_case((20, 33, 64), seed=44)
    good = fused(backend, some, (16, 4))
    for bad in (-1, MAX_POSITIONS, 2**31 - 1):
        positions = some.positions.clone()
        positions[1] = bad
        got = fused(backend, some.with_(positions=positions), (16, 4))
        assert bool(got.out[1].isnan().all())
        assert_same_bits(got.out[[0, 2]], good.out[[0, 2]])
        row = int(some.slot_mapping[1])
        assert_same_bits(got.k_cache.flatten(0, 1)[row].cpu(), some.stored.k_cache.flatten(0, 1)[row])
        assert_same_bits(got.v_cache.flatten(0, 1)[row].cpu(), some.stored.v_cache.flatten(0, 1)[row])


def check_a_token_without_context(backend: Backend) -> None:
    """A context of 0 gives zeros; its token is stored where it belongs. Negative and too long contexts."""
    some = fused_case((0, 40), seed=45)
    slots = some.slot_mapping.clone()
    used = set(some.stored.block_table[1, :3].tolist())  # of 40 tokens
    slots[0] = 16 * min(page for page in range(some.stored.k_cache.shape[0]) if page not in used) + 5
    some = some.with_(slot_mapping=slots)
    for cut in ((16, 1), (16, 4)):
        got = fused(backend, some, cut)
        assert not got.out[0].any()
        got.assert_same(one_after_the_other(backend, some, cut))
    lens = torch.tensor([-5, 40], dtype=torch.int32)
    changed = some.with_(stored=some.stored.with_(context_lens=lens))
    fused(backend, changed, (16, 4)).assert_same(one_after_the_other(backend, changed, (16, 4)))


def check_bad_blocks_of_stored_tokens(backend: Backend) -> None:
    """An entry that is no block: its tokens are absent, the new one too where it is in that block."""
    some = fused_case((100, 100, 30), seed=46)
    block_table = some.stored.block_table.clone()
    block_table[0, 2:4], block_table[1, 0] = -1, some.stored.k_cache.shape[0]
    skipped = some.with_(stored=some.stored.with_(block_table=block_table))
    for cut in ((32, 4), (16, 7)):
        fused(backend, skipped, cut).assert_same(one_after_the_other(backend, skipped, cut))


def check_fused_bits_do_not_depend_on_company(backend: Backend) -> None:
    """Twice the same; alone and in a batch the same."""
    some, cut = fused_case((90, 7, 300), seed=47), (32, 8)
    batch = fused(backend, some, cut)
    batch.assert_same(fused(backend, some, cut))
    stored = some.stored
    for s in range(3):
        rows = slice(s, s + 1)
        alone = some.with_(
            stored=stored.with_(block_table=stored.block_table[rows], context_lens=stored.context_lens[rows]),
            qkv=some.qkv[rows],
            positions=some.positions[rows],
            slot_mapping=some.slot_mapping[rows],
        )
        assert_same_bits(fused(backend, alone, cut).out, batch.out[rows])


def check_a_sequence_grows(backend: Backend) -> None:
    """Token by token with one workspace, each step reading what the ones before stored."""
    heads, cut = Heads(1, 2), (16, 4)
    last = fused_case((40,), heads, seed=48)
    layout = layout_of(last.stored, cut[1])
    workspace = backend.place(layout.new("cpu"))
    k_cache, v_cache = last.stored.k_cache.clone(), last.stored.v_cache.clone()
    for length in range(14, 41):
        page = int(last.stored.block_table[0, (length - 1) // 16])
        slot = page * 16 + (length - 1) % 16
        now = last.with_(
            stored=last.stored.with_(
                k_cache=k_cache, v_cache=v_cache, context_lens=torch.tensor([length], dtype=torch.int32)
            ),
            qkv=last.qkv.roll(length),
            positions=torch.tensor([length - 1], dtype=torch.int32),
            slot_mapping=torch.tensor([slot], dtype=torch.int32),
        )
        got = fused(backend, now, cut, workspace=workspace)
        got.assert_same(one_after_the_other(backend, now, cut))
        k_cache, v_cache = got.k_cache.cpu().clone(), got.v_cache.cpu().clone()


def check_fused_strided_rows(backend: Backend) -> None:
    """Rows of qkv apart."""
    some = fused_case((20, 64, 1), seed=49).with_(qkv_padding=24)
    fused(backend, some, (16, 4)).assert_same(one_after_the_other(backend, some, (16, 4)))


# The quickest first: a mutant meets them in this order.
FUSED_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_fused_strided_rows,
    check_a_token_without_context,
    check_bad_blocks_of_stored_tokens,
    check_fused_bits_do_not_depend_on_company,
    check_positions_that_are_none,
    check_slots_that_are_none,
    check_the_new_token_in_every_lane,
    check_a_sequence_grows,
    check_fused_groups_and_pages,
    check_fused_is_both_in_turn,
)
