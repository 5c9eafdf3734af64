"""What this chapter promises of norm_rope_hadamard_quant_store, each promise a function of the backend that keeps it.

They raise AssertionError. Two kinds of callers: the tests, on every backend; and the mutants, which at least one of
them must notice. `run` holds every byte against the unfused pipeline in PyTorch; what can be said without it, such as a
table of all numbers of a format, is held against that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.combinations import TURNS, Combination, Turn, casts
from chapters.ch10_quantized_kv.rounding_checks import (
    check_every_e2m1_rounding,
    check_every_e4m3_rounding,
    check_every_power_of_two,
    check_every_quotient,
)
from chapters.ch10_quantized_kv.store_runs import HADAMARD_SCALE, NAME, Setting, assert_same, run, table, weight_of
from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat, Layout
from qwen_cuda.operators.kv_arguments import Stage
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.numbers import KINDS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8, NVFP4 = CastArgs("e4m3", 32, "ue8m0"), CastArgs("e2m1", 16, "e4m3")
TURN: Turn = ("tail", "half", False)
STAGES: tuple[Stage | None, ...] = (None, *get_args(Stage))
LATENT = Combination(512, norm=True, rope=TURN, cast=CastArgs("e4m3", 64, "float32"), target="cache", heads=1)
KEYS = Combination(norm=True, rope=("whole", "half", False), hadamard=True, cast=FP8, target="k and v")


def check_edge_values(backend: Backend) -> None:
    """Groups of zeros, of −0, of subnormals; infinities and NaN; numbers that saturate: in every format and dtype."""
    for dtype, cast in product(DTYPES, casts()):
        info = torch.finfo(dtype)
        x = Setting(Combination(cast=cast), dtype, kind="wide").x(14)
        x[0], x[1], x[2], x[3] = 0.0, -0.0, info.smallest_normal / 4, info.max
        x[4, :, ::3], x[5, :, 5], x[6, :, 77], x[7, :, 127] = 0.0, torch.inf, -torch.inf, torch.nan
        x[8, :, 0:16], x[9], x[10, :, 64:] = -torch.nan, info.tiny, info.max
        x[11] *= 1e-3
        for how in (Combination(cast=cast), Combination(cast=replace(cast, cast_back=True))):
            written = run(backend, Setting(how, dtype), x)
        lost = written["out"].float().isnan().cpu().unflatten(-1, (-1, cast.group))
        spoilt = (~x.isfinite()).unflatten(-1, (-1, cast.group)).any(-1, keepdim=True)
        assert_same("groups that read as NaN", lost.to(torch.uint8), spoilt.expand_as(lost).to(torch.uint8))


def check_norm(backend: Backend) -> None:
    for dtype, head_dim in product(DTYPES, (128, 512)):
        how = Combination(head_dim, norm=True)
        for kind in KINDS:
            run(backend, Setting(how, dtype, kind))
        for eps in (1e-3, 0.7):
            run(backend, Setting(how, dtype, "wide", eps=eps))


def check_rotation(backend: Backend) -> None:
    """The whole head and a tail of every size, by either pairing, there and back."""
    for dtype, head_dim, turn in product(DTYPES, (128, 512), TURNS[1:]):
        run(backend, Setting(Combination(head_dim, rope=turn), dtype), tokens=3)
    for rotary_dim, interleaved in product((8, 24, 72, 120, 320), (False, True)):
        x = Setting(Combination(512)).x(2).to(backend.device)
        out = torch.empty_like(x)
        cos_sin, positions = table(300, rotary_dim).to(backend.device), torch.tensor([299, 7]).to(backend.device)
        turned = {"cos_sin": cos_sin, "positions": positions, "interleaved": interleaved}
        backend.op(NAME)(x, **turned, out=out, stage="transform")
        assert_same("what is not rotated", out[..., :-rotary_dim], x[..., :-rotary_dim])
        back = torch.empty_like(x.float())
        backend.op(NAME)(out.float(), **turned, conjugate=True, out=back, stage="transform")
        assert float((back - x.float()).abs().max()) <= 2**-7 * float(x.float().abs().max()), "turned back it differs"


def check_hadamard(backend: Backend) -> None:
    """The rows of the matrix by its definition, (−1)^popcount(i & j), and any numbers against the reference."""
    x = torch.eye(128, device=backend.device)[:, None]
    out = torch.empty_like(x)
    backend.op(NAME)(x, hadamard_scale=0.5, out=out, stage="transform")
    i = torch.arange(128)
    bits = (i[:, None] & i)[..., None] >> torch.arange(7) & 1
    assert_same("the matrix", out[:, 0], (1 - 2 * (bits.sum(-1) % 2)).float() / 2)
    for dtype in DTYPES:
        run(backend, Setting(Combination(hadamard=True), dtype, "wide"))


def check_formats(backend: Backend) -> None:
    """Every cast, in tensors of its own and in both layouts of a cache, and what it gives back."""
    for cast, head_dim, layout in product(casts(), (128, 512), get_args(Layout)):
        how = Combination(head_dim, cast=cast, target="cache", layout=layout, stage="cast_back")
        run(backend, Setting(how, kind="wide", block_padding=8))
        run(backend, Setting(replace(how, target="rows", stage=None), kind="wide"), tokens=2)
    for alignment, cast in product((4, 32), (FP8, NVFP4, CastArgs("e4m3", 128, "float32"))):
        for layout in get_args(Layout):
            how = Combination(cast=cast, target="cache", layout=layout, alignment=alignment, heads=3, block_size=8)
            run(backend, Setting(how, num_blocks=5))


def check_keys_and_values(backend: Backend) -> None:
    """K and V of several heads in one launch; V is quantised as it is. And each outlet, which V passes through too."""
    for layout, stage, cast in product(get_args(Layout), STAGES, (FP8, NVFP4)):
        how = replace(KEYS, cast=cast, layout=layout, stage=stage, heads=3)
        run(backend, Setting(how, kind="wide"))
        run(backend, Setting(replace(LATENT, layout=layout, stage=stage)), tokens=3)
    turns: tuple[Turn, ...] = (TURN, ("whole", "interleaved", False), ("whole", "half", True))
    for turn in turns:
        run(backend, Setting(replace(KEYS, rope=turn)), tokens=2)
    for heads, dtype in product((1, 2, 5, 8), DTYPES):
        run(backend, Setting(replace(KEYS, heads=heads), dtype), tokens=3)


def check_slots(backend: Backend) -> None:
    """Borders of pages, either end, any order; slots outside of the cache write nothing; blocks of any size."""
    for cast, block_size in product((FP8, CastArgs("e2m1", 16, "e4m3"), CastArgs("e4m3", 128, "float32")), (8, 256)):
        how = Combination(cast=cast, target="cache", heads=1, block_size=block_size, layout="block_wide")
        for dtype, outside in (
            (torch.int32, [-1, -2, -(2**31), 2**31 - 1]),
            (torch.int64, [-1, -(2**32), -(2**63), 2**31, 2**32, 2**32 + 1, 2**62]),
        ):
            setting = Setting(how, slots_dtype=dtype)
            end = setting.num_slots
            slots = [*outside, end, end + 1, 0, block_size - 1, block_size, 2 * block_size - 1, 3, end - 1]
            for mapping in (torch.tensor(slots), torch.tensor(slots).flip(0)):
                run(backend, setting, setting.x(len(slots)), None, mapping)
    run(backend, Setting(replace(LATENT, block_size=8), num_blocks=0))


def check_positions(backend: Backend) -> None:
    """Those that cos_sin does not have give NaN and write nothing to a cache, not even V; the others do not notice."""
    end = 300
    for how in (KEYS, replace(KEYS, target="rows", cast=NVFP4)):  # four heads a warp
        positions = torch.tensor([end - 1, end, 2**32 + 1, -1, 3])
        run(backend, Setting(how, max_positions=end), tokens=5, positions=positions)
    for dtype in (torch.int32, torch.int64):
        positions = torch.tensor([end - 1, -1, 7, end, 0, 2**31 - 1])
        if dtype == torch.int64:
            positions = torch.cat((positions, torch.tensor([2**32, -(2**40)])))
        for how in (replace(KEYS, stage="transform"), Combination(rope=TURN, cast=FP8)):
            setting = Setting(how, max_positions=end, positions_dtype=dtype)
            written = run(backend, setting, setting.x(len(positions)), positions)
            lost = (positions < 0) | (positions >= end)
            if "out" in written:
                assert bool(written["out"][lost.to(backend.device), : how.heads].isnan().all())
                assert not bool(written["out"][~lost.to(backend.device)].isnan().any())


def check_strides(backend: Backend) -> None:
    """Heads that are a slice of a projection, tables with gaps, blocks with gaps; many tokens; none."""
    for dtype, how in product(DTYPES, (KEYS, LATENT, Combination(norm=True, rope=TURN))):
        for padding in (132, 136):  # 8 bytes, and 16
            run(backend, Setting(how, dtype, x_padding=padding, table_padding=4, block_padding=16))
        run(backend, Setting(how, dtype), tokens=0)
    run(backend, Setting(replace(KEYS, heads=1, block_size=64)), tokens=70)


def check_same_bits_in_any_batch(backend: Backend) -> None:
    """At once, in parts or alone: the codes of a token are the same."""
    how = replace(KEYS, target="rows", cast=NVFP4)
    setting = Setting(how, torch.float16, "wide")
    x, (positions, _) = setting.x(33), setting.indices(33)
    whole = run(backend, setting, x, positions)
    for first, last in ((0, 1), (1, 20), (20, 33)):
        part = run(backend, setting, x[first:last], positions[first:last])
        for name in ("data", "scales"):
            assert_same(name, part[name], whole[name][first:last])


def check_unfused(backend: Backend) -> None:
    """The same operator stage by stage, each alone, in float32 between them: not a byte differs from one launch."""
    for dtype, how in product((torch.bfloat16, torch.float16), (replace(KEYS, target="cache"), LATENT)):
        setting = Setting(how, dtype, "wide")
        x, (positions, slots) = setting.x(17), setting.indices(17)
        fused = run(backend, setting, x, positions, slots)["k_cache"]
        alone: list[dict[str, Any]] = [{"norm_weight": weight_of(setting).float(), "eps": setting.eps}]
        alone += [{"cos_sin": table(setting.max_positions, how.rotary_dim), "positions": positions}]
        alone += [{"hadamard_scale": HADAMARD_SCALE}] if how.hadamard else []
        heads = x.float().to(backend.device)
        for stage in alone:
            there = {name: v.to(backend.device) if isinstance(v, Tensor) else v for name, v in stage.items()}
            out = torch.empty_like(heads)
            backend.op(NAME)(heads, **there, out=out, stage="transform")
            heads = out
        cast, where = how.format.cast, {"k_cache": fused.clone(), "slot_mapping": slots.to(backend.device)}
        where["k_cache"].view(-1)[:] = 0
        into = {"values": cast.values, "group": cast.group, "scale_format": cast.scales}
        backend.op(NAME)(heads.to(dtype), **into, **where, cache_layout=list(how.format.strides))
        for one, other in zip(views(how.format, where["k_cache"], slots), views(how.format, fused, slots), strict=True):
            assert_same("the cache", one, other)


def views(format: KVCacheFormat, cache: Tensor, slots: Tensor) -> list[Tensor]:
    """Codes and scales in these slots."""
    return [part.cpu()[slots // format.block_size, slots % format.block_size] for part in format.views(cache)]


STORE_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_norm,
    check_rotation,
    check_hadamard,
    check_every_e4m3_rounding,
    check_every_e2m1_rounding,
    check_every_quotient,
    check_every_power_of_two,
    check_edge_values,
    check_formats,
    check_keys_and_values,
    check_slots,
    check_positions,
    check_strides,
    check_same_bits_in_any_batch,
    check_unfused,
)
