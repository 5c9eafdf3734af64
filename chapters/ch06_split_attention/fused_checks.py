"""What chapter 6 promises of fused decode attention, each promise a function of the backend to keep it.

Both caches have the bits of `qk_norm_rope_cache_write`. The result lies within the bound of split attention from
float64, and has the same bits by either merge, with and without reading ahead, in any company and in pages of any size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from chapters.ch05_grouped_attention.grouped_checks import BLOCK_SIZES, GROUPS
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.fused_cases import (
    HEAD_DIM,
    MAX_POSITIONS,
    FusedCase,
    Result,
    expected_of,
    fused,
    fused_case,
    operands,
    write,
)
from chapters.ch06_split_attention.split_cases import Cut, layout_of, merges, used_workspace
from chapters.ch06_split_attention.split_checks import check_parts
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

RAGGED = (1, 2, 16, 17, 129, 0, 300)
CUTS: tuple[Cut, ...] = ((16, 1), (16, 2), (32, 4), (16, 16), (48, 3), (16, 40))


def check_cuts(backend: Backend, some: FusedCase, *cuts: Cut) -> list[Result]:
    """By each merge that there is, with and without reading ahead: one result for each cut, and the right one."""
    expected, results = expected_of(backend, some), []
    for cut in cuts:
        ways = [("auto", True), *((merge, i % 2 == 0) for i, merge in enumerate(merges(backend, cut[1])))]
        first, *others = (fused(backend, some, cut, merge=merge, prefetch=prefetch) for merge, prefetch in ways)
        expected.assert_met(first)
        for other in others:
            other.assert_same(first)
        results.append(first)
    return results


def check_any_cut_of_the_fused(backend: Backend) -> None:
    """Any cut; where all partitions have their least size, more of them change nothing."""
    some = fused_case(RAGGED, seed=41)
    check_cuts(backend, some, *CUTS)
    enough, more = check_cuts(backend, some, (64, 5), (64, 8))
    more.assert_same(enough)


def check_partials_of_the_fused(backend: Backend) -> None:
    """m, l and o of each partition, where kernels leave them in the workspace."""
    if backend.name not in ("sim", "cuda"):
        return
    for heads, cut in ((Heads(2, 2), (16, 4)), (Heads(1, 5, dtype=FP16), (48, 2)), (Heads(1, 8), (64, 3))):
        some = fused_case([cut[0] * (cut[1] - 1) + more for more in (1, 7, 16)], heads, seed=50)
        layout = layout_of(some.stored, cut[1])
        workspace = backend.place(used_workspace(layout))
        fused(backend, some, cut, merge="last_block", workspace=workspace)
        check_parts(layout.parts(workspace.tensor.cpu()), expected_of(backend, some).written, cut)


def check_no_bit_of_a_weight_is_lost(backend: Backend) -> None:
    """The last partition has two tokens, the second the new one. Their values are one-hot, so o has their weights: one
    is 1, and the other what l, the sum of both, has beyond 1."""
    if backend.name not in ("sim", "cuda"):
        return
    for group, dtype in ((8, BF16), (8, FP16), (2, BF16), (2, FP16), (1, BF16), (1, FP16)):
        heads = Heads(kv_heads=16, group=group, dtype=dtype)
        some, half = fused_case((18,), heads, seed=51), heads.query_heads // 2
        some = some.with_(stored=some.stored.with_(scale=0.02))
        old, new = some.stored.v_cache[some.stored.block_table[0, 1], 0], some.qkv[0].view(-1, HEAD_DIM)
        new[:half] *= -1  # of half of the heads the other token has the larger score
        for place, values in enumerate((old, new[-16:])):
            values.zero_()[:, place] = 1
        layout = layout_of(some.stored, 2)
        workspace = backend.place(used_workspace(layout))
        fused(backend, some, (16, 2), merge="last_block", workspace=workspace)
        parts = layout.parts(workspace.tensor.cpu())
        weights, total = parts.o[0, :, 1, :2].double(), parts.l[0, :, 1].double()
        assert weights.argmax(1).tolist() == [0] * half + [1] * half
        assert bool((weights.amax(1) == 1).all())
        assert float((weights.amin(1) - (total - 1)).abs().max()) <= 2.0**-24, "more than l's one rounding"


def check_fused_groups_and_pages(backend: Backend) -> None:
    """Every size of group and of page, both dtypes, indices of either width; the page is nothing to the bits."""
    for i, group in enumerate(GROUPS):
        heads = Heads(1 + i % 2, group, HEAD_DIM, BLOCK_SIZES[i % len(BLOCK_SIZES)], (BF16, FP16)[i % 2])
        check_cuts(backend, fused_case((37, 5, 70), heads, seed=i, wide=i % 2 == 0), (16, 4), (16, 3), (128, 1))
    outs = []
    for size in BLOCK_SIZES:
        some = fused_case((size - 1, size, size + 1, 2 * size + 1), Heads(1, 2, HEAD_DIM, size), seed=size)
        check_cuts(backend, some, (32, 2))
        outs.append(fused(backend, fused_case((37, 5, 70), Heads(1, 2, HEAD_DIM, size), seed=40), (16, 4)).out)
    for out in outs[1:]:
        assert_same_bits(out, outs[0])


def check_the_new_token_in_every_lane(backend: Backend) -> None:
    """The new token falls to every place of a turn and every warp in turn, and to a later turn."""
    lens = (*range(1, 36), 63, 64, 65, 127, 128, 129, 143, 161, 257)
    check_cuts(backend, fused_case(lens, Heads(1, 2), seed=42), (512, 1), (144, 2))


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
    for got in check_cuts(backend, some, (16, 1), (16, 4)):
        assert not got.out[0].any()
    lens = torch.tensor([-5, 40], dtype=torch.int32)
    changed = some.with_(stored=some.stored.with_(context_lens=lens))
    check_cuts(backend, changed, (16, 4))


def check_bad_blocks_of_stored_tokens(backend: Backend) -> None:
    """An entry that is no block: its tokens are absent, the new one too where it is in that block."""
    some = fused_case((100, 100, 30), seed=46)
    block_table = some.stored.block_table.clone()
    block_table[0, 2:4], block_table[1, 0] = -1, some.stored.k_cache.shape[0]
    skipped = some.with_(stored=some.stored.with_(block_table=block_table))
    check_cuts(backend, skipped, (32, 4), (16, 7))


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


def check_fused_nan_stays_with_its_head(backend: Backend) -> None:
    """A NaN in a stored key or value, or in the new token's, reaches the heads that read it, and nobody else."""
    some, cut = fused_case((40, 150), seed=52), (16, 10)
    clean = fused(backend, some, cut)
    page, cases = int(some.stored.block_table[1, 5]), []
    for name, spoilt in (("k_cache", HEAD_DIM), ("v_cache", 1)):
        cache = getattr(some.stored, name).clone()
        cache[page, 3, 1, 70] = torch.nan
        cases.append((some.with_(stored=some.stored.with_(**{name: cache})), spoilt))
    for head, spoilt in ((5, HEAD_DIM), (7, 1)):  # K and V of KV head 1, behind four heads of q
        qkv = some.qkv.clone()
        qkv[1, head * HEAD_DIM + 70] = torch.nan
        cases.append((some.with_(qkv=qkv), spoilt))
    for changed, spoilt in cases:
        out = fused(backend, changed, cut).out
        assert int(out[1, 2:].isnan().sum()) == int(out.isnan().sum()) == 2 * spoilt
        whole = ~out.isnan()
        whole[1, 2:] = False
        assert_same_bits(out[whole], clean.out[whole])


def check_a_sequence_grows(backend: Backend) -> None:
    """Token by token with one workspace, each step reading what the ones before stored. The cache ends as one write of
    all tokens leaves it, and the last step has the bits of a first one on that cache."""
    heads, cut, begin = Heads(1, 2), (16, 4), 13
    last = fused_case((40,), heads, seed=48)
    lengths = range(begin + 1, 41)
    rows = torch.cat([last.qkv.roll(length) for length in lengths])
    positions = torch.arange(begin, 40, dtype=torch.int32)
    slots = last.stored.block_table[0, positions // 16] * 16 + positions % 16
    layout = layout_of(last.stored, cut[1])
    workspace = backend.place(layout.new("cpu"))
    k_cache, v_cache = last.stored.k_cache.clone(), last.stored.v_cache.clone()
    for i, length in enumerate(lengths):
        row = slice(i, i + 1)
        now = last.with_(
            stored=last.stored.with_(
                k_cache=k_cache, v_cache=v_cache, context_lens=torch.tensor([length], dtype=torch.int32)
            ),
            qkv=rows[row],
            positions=positions[row],
            slot_mapping=slots[row],
        )
        got = fused(backend, now, cut, workspace=workspace)
        expected_of(backend, now).assert_met(got)
        k_cache, v_cache = got.k_cache.cpu().clone(), got.v_cache.cpu().clone()
    placed = {name: buffer.tensor for name, buffer in operands(backend, last).items()}
    caches = placed["k_cache"], placed["v_cache"]
    token = rows, *last.weights, placed["cos_sin"], positions, slots
    write(backend, [tensor.to(backend.device) for tensor in token], caches, heads.query_heads)
    assert_same_bits(k_cache, caches[0].cpu())
    assert_same_bits(v_cache, caches[1].cpu())
    at_once = now.with_(stored=now.stored.with_(k_cache=k_cache, v_cache=v_cache))
    fused(backend, at_once, cut).assert_same(got)


def check_many_turns_of_a_warp(backend: Backend) -> None:
    """Turns that come through shared memory and those that do not; more of them than pages are looked up at once."""
    some = fused_case((2200, 530), Heads(1, 2), seed=53)
    staged, direct, *_ = check_cuts(backend, some, (256, 2), (128, 2), (512, 1), (192, 1))
    direct.assert_same(staged)


def check_contexts_in_one_piece(backend: Backend) -> None:
    """Two blocks share the dimensions of the values; one turn has all tokens, or not."""
    for heads in (Heads(2, 2), Heads(1, 1, dtype=FP16)):
        some = fused_case((1, 17, 0, 192, 193, 257), heads, seed=54)
        check_cuts(backend, some, (192, 1), (256, 1))


def check_fused_strided_rows(backend: Backend) -> None:
    """Rows of qkv apart."""
    some = fused_case((20, 64, 1), seed=49).with_(qkv_padding=24)
    check_cuts(backend, some, (16, 4))


# The quickest first: a mutant meets them in this order.
FUSED_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_fused_strided_rows,
    check_a_token_without_context,
    check_bad_blocks_of_stored_tokens,
    check_fused_bits_do_not_depend_on_company,
    check_positions_that_are_none,
    check_slots_that_are_none,
    check_the_new_token_in_every_lane,
    check_contexts_in_one_piece,
    check_many_turns_of_a_warp,
    check_a_sequence_grows,
    check_partials_of_the_fused,
    check_no_bit_of_a_weight_is_lost,
    check_fused_nan_stays_with_its_head,
    check_fused_groups_and_pages,
    check_any_cut_of_the_fused,
)
