"""What this chapter promises of paged_attention_quantized, each promise a function of the backend that keeps it.

They raise AssertionError. The tests run them on every backend, and each mutant must fail one of them. The truth is
attention in float64 over the dequantised caches: what quantisation itself costs is no error of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads
from chapters.ch06_split_attention.split_cases import layout_of
from chapters.ch10_quantized_kv.attention_cases import QuantizedCase, attend, place, quantized_case
from chapters.ch10_quantized_kv.combinations import casts
from qwen3_ref.kv_quantization import dequantize_groups
from qwen_cuda.kv_cache_format import CastArgs, Layout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.ulp import assert_same_bits

FP8, NVFP4, MXFP4 = CastArgs("e4m3", 32, "ue8m0"), CastArgs("e2m1", 16, "e4m3"), CastArgs("e2m1", 32, "ue8m0")
FP8_WIDE = CastArgs("e4m3", 128, "float32")
ORTHOGONAL = 128**-0.5
ONE_HEAD = Heads(kv_heads=1, group=2)


def check_every_format(backend: Backend) -> None:
    """Each cast in both layouts, with one query head a KV head and with two, and with gaps between blocks."""
    for cast, layout, group in product(casts(), get_args(Layout), (1, 4)):
        heads = Heads(kv_heads=2, group=group, dtype=(BF16, FP16)[group % 2])
        attend(backend, quantized_case((21, 0, 3), cast, heads, layout, seed=cast.group, block_padding=32))
    for cast, layout in product((FP8_WIDE, NVFP4), get_args(Layout)):
        attend(backend, quantized_case((21,), cast, Heads(kv_heads=3, group=1), layout, alignment=64))


def single_tokens(cast: CastArgs, data: Tensor, scales: Tensor, heads: Heads) -> tuple[QuantizedCase, Tensor]:
    """A sequence of one token for each row of codes and scales, and what it must give: that row, rounded once."""
    some = quantized_case((1,) * len(data), cast, heads, seed=3)
    v_cache = some.v_cache.clone()
    views = some.form.views(v_cache)
    for s, block in enumerate(some.plain.block_table[:, 0].tolist()):
        views[0][block, 0], views[1][block, 0] = data[s], scales[s]
    rows = (dequantize_groups(data, scales, cast.values, cast.scales) + 0.0).to(heads.dtype)  # a sum has no −0
    return replace(some, v_cache=v_cache), rows[:, None].expand(-1, heads.group, -1)


def check_every_code(backend: Backend) -> None:
    """A context of one token gives that token's value, bit for bit: each number of each format, in each place."""
    for cast, group in product((FP8, FP8_WIDE, NVFP4, MXFP4), (1, 8)):
        heads = Heads(kv_heads=1, group=group, dtype=BF16 if group == 1 else FP16)
        size, unit = cast.data_bytes(128), {"ue8m0": 127, "e4m3": 0x38, "float32": 0}[cast.scales]
        codes = torch.arange(256, dtype=torch.uint8)
        codes = torch.where((codes & 0x7F == 0x7F) & (cast.values == "e4m3"), 0, codes)
        data = torch.stack([codes.roll(37 * s)[:size] for s in range(8)])
        scales = torch.full((8, 128 // cast.group), unit, dtype=torch.uint8)
        if cast.scales == "float32":
            scales = torch.tensor([1.0]).view(torch.uint8).repeat(8, 1)
        some, rows = single_tokens(cast, data, scales, heads)
        assert_same_bits(attend(backend, some).cpu(), rows)


def check_every_scale(backend: Backend) -> None:
    """Each scale of a format gives its number, the smallest and the largest too, and to its own group alone.

    E4M3's negative ones, which nobody writes, as well.
    """
    for cast, codes in ((FP8, [*range(240)]), (MXFP4, [*range(240)]), (NVFP4, [*range(127), *range(128, 255)])):
        groups = 128 // cast.group
        some_more = -len(codes) % groups
        scales = torch.tensor(codes + codes[:some_more]).to(torch.uint8).view(-1, groups)
        data = torch.full((len(scales), cast.data_bytes(128)), 0x38 if cast.values == "e4m3" else 0xA2)
        some, rows = single_tokens(cast, data.to(torch.uint8), scales, Heads(kv_heads=1, group=1))
        call, out_of = place(backend, some), layout_of(some.plain, 1)
        out = call(backend, (16, 1), out_of.new(backend.device), "last_block")
        assert_same_bits(out.cpu(), rows)


def check_every_group(backend: Backend) -> None:
    """From 1 to 8 query heads a KV head, of several KV heads, transformed or not."""
    for group, cast in product(range(1, 9), (FP8, NVFP4)):
        heads = Heads(kv_heads=2 if group < 5 else 1, group=group, dtype=(BF16, FP16)[group % 2])
        transform = ORTHOGONAL if group % 3 else 0.0
        attend(backend, quantized_case((37, 0, 5), cast, heads, hadamard_scale=transform, seed=group), (16, 2))


def check_transform_of_queries(backend: Backend) -> None:
    """Queries meet transformed keys, with any scale; V is as it is."""
    for cast, scale in product((FP8, MXFP4), (ORTHOGONAL, 0.5)):
        attend(backend, quantized_case((50, 7), cast, ONE_HEAD, hadamard_scale=scale, seed=6, scale=0.01))


def check_any_cut(backend: Backend) -> None:
    """Partitions of any size and number, contexts beyond the grid: right, and by each merge to the same bits."""
    for cast, layout in ((FP8, "token_interleaved"), (NVFP4, "block_wide")):
        some = quantized_case((0, 1, 15, 16, 17, 33, 333), cast, ONE_HEAD, layout, seed=21)  # type: ignore[arg-type]
        for cut in ((16, 1), (16, 2), (48, 5), (256, 17), (16, 40)):
            attend(backend, some, cut)


def check_contexts_of_nothing(backend: Backend) -> None:
    """A context of 0 or less gives zeros; one that is longer than the table ends with it."""
    some = quantized_case((20, 64, 1, 9), FP8, Heads(kv_heads=2, group=2), seed=30, spare=0)
    table = some.plain.block_table.clone()
    table[2:, 1:] = -1
    lens = torch.tensor([-3, 2**31 - 1, 1, 0], dtype=torch.int32)
    for cut in ((16, 3), (64, 1)):
        out = attend(backend, some.with_(context_lens=lens, block_table=table), cut)
        assert not out[0].any()
        assert not out[3].any()
        assert attend(backend, some, cut)[0].any()


def check_blocks_of_none(backend: Backend) -> None:
    """An entry outside the cache is skipped with its tokens; nothing is read there."""
    for cast in (FP8, NVFP4):
        some = quantized_case((70, 70, 40, 20), cast, Heads(kv_heads=2, group=2), "block_wide", seed=5)
        table, count = some.plain.block_table.clone(), len(some.k_cache)
        table[0, 0], table[0, 3], table[1, 4], table[1, 1] = -1, count, 2**31 - 1, -(2**31)
        table[2] = count + 5
        for cut in ((16, 1), (16, 5)):
            assert not attend(backend, some.with_(block_table=table), cut)[2].any()


def check_blocks_of_any_size(backend: Backend) -> None:
    for size, layout in product((8, 64, 256), get_args(Layout)):
        heads = Heads(kv_heads=2, group=2, block_size=size)
        attend(backend, quantized_case((size - 1, size + 1, 100), FP8_WIDE, heads, layout, seed=size), (64, 2))


def check_scores_of_any_size(backend: Backend) -> None:
    """Scores of ±1000 and a negative scale; packed queries."""
    for cast, spread, scale in ((FP8, 30.0, None), (NVFP4, 100.0, None), (MXFP4, 1.0, -0.3)):
        some = quantized_case((5, 150), cast, ONE_HEAD, spread=spread, scale=scale, seed=2)
        attend(backend, some.with_(q_padding=64), (64, 2))


def with_scales(some: QuantizedCase, name: str, codes: Tensor) -> QuantizedCase:
    """The same with other UE8M0 scales: `codes[i]` for all groups of token i of each sequence."""
    cache, size = getattr(some, name).clone(), some.form.block_size
    scales = some.form.views(cache)[1]
    for table in some.plain.block_table:
        for token, code in enumerate(codes.tolist()):
            scales[table[token // size], token % size] = code
    return replace(some, **{name: cache})


def check_values_and_queries_of_any_size(backend: Backend) -> None:
    """Values that grow and shrink by 2^60 along the context; large queries meet small keys; scores that rise."""
    tokens = torch.arange(300)
    for cast, group in ((FP8, 2), (MXFP4, 3)):
        some = quantized_case((300, 300), cast, Heads(kv_heads=1, group=group), seed=8, scale=0.02)
        grow = 127 + tokens // 16 * 7 - 60
        for codes in (grow, grow.flip(0), 127 + tokens * 37 % 120 - 60):
            attend(backend, with_scales(some, "v_cache", codes), (304, 1))
        large = with_scales(some, "k_cache", torch.full((300,), 127 - 20)).with_(q=some.plain.q * 2.0**22)
        attend(backend, large, (64, 2))
        rising = with_scales(some.with_(scale=1.0), "k_cache", 110 + tokens // 20)
        attend(backend, with_scales(rising, "v_cache", 187 - tokens * 2 // 5), (304, 1))


def check_bits_do_not_depend_on_company(backend: Backend) -> None:
    """Twice, alone, elsewhere in the cache, with partitions to spare: the same bits. One partition is the whole."""
    lens, heads = (90, 7, 200), Heads(kv_heads=2, group=2)
    for cast, transform in ((FP8, ORTHOGONAL), (NVFP4, 0.0)):
        some = quantized_case(lens, cast, heads, hadamard_scale=transform, seed=28)
        batch = attend(backend, some, (32, 7))
        assert_same_bits(attend(backend, some, (32, 7)), batch)
        elsewhere = quantized_case(lens, cast, heads, hadamard_scale=transform, seed=28, shuffle=3, spare=5)
        assert_same_bits(attend(backend, elsewhere, (32, 50)), batch)
        assert_same_bits(attend(backend, some, (256, 1)), attend(backend, some, (256, 3)))
        for s in range(3):
            rows = slice(s, s + 1)
            alone = some.with_(
                q=some.plain.q[rows],
                block_table=some.plain.block_table[rows],
                context_lens=some.plain.context_lens[rows],
            )
            assert_same_bits(attend(backend, alone, (32, 7)), batch[rows])


def check_nan_stays_where_it_is(backend: Backend) -> None:
    """A NaN scale of a key spoils the heads that read it, one of a value its group, a NaN code its dimension."""
    for cast in (FP8, NVFP4):
        some = quantized_case((40, 150), cast, Heads(kv_heads=2, group=2), seed=29)
        clean = attend(backend, some, (16, 10))
        for name, part, spoilt in (("k_cache", 1, 128), ("v_cache", 1, cast.group), ("v_cache", 0, 1)):
            if part == 0 and cast.values == "e2m1":
                continue  # which has no NaN
            cache = getattr(some, name).clone()
            some.form.views(cache)[part][some.plain.block_table[1, 5], 3, 1, 2] = 255
            call = place(backend, replace(some, **{name: cache}))
            out = call(backend, (16, 10), layout_of(some.plain, 10).new(backend.device), "auto")
            assert int(out[1, 2:].isnan().sum()) == int(out.isnan().sum()) == 2 * spoilt
            whole = ~out.isnan()
            whole[1, 2:] = False
            assert_same_bits(out[whole], clean[whole])


def check_a_workspace_serves_many(backend: Backend) -> None:
    """Contexts that grow and shrink: what a call leaves does not reach the next, nor the next format."""
    heads = Heads(kv_heads=2, group=2)
    workspace = backend.place(layout_of(quantized_case((1, 1), FP8, heads).plain, 4).new("cpu"))
    for seed, lens in enumerate(((5, 60), (64, 0), (200, 33), (0, 0), (16, 17))):
        attend(backend, quantized_case(lens, (FP8, NVFP4)[seed % 2], heads, seed=seed), (16, 4), workspace)


ATTENTION_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_every_code,
    check_every_scale,
    check_every_group,
    check_every_format,
    check_transform_of_queries,
    check_contexts_of_nothing,
    check_any_cut,
    check_blocks_of_none,
    check_scores_of_any_size,
    check_values_and_queries_of_any_size,
    check_nan_stays_where_it_is,
    check_a_workspace_serves_many,
    check_bits_do_not_depend_on_company,
    check_blocks_of_any_size,
)
