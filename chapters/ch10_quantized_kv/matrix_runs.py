"""The matrix of all legal combinations against the unfused pipeline, whose stages neighbours in the matrix share."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from chapters.ch10_quantized_kv.combinations import Combination, Turn
from chapters.ch10_quantized_kv.store_runs import HADAMARD_SCALE, Setting, assert_same, poisoned, table, weight_of
from qwen3_ref.kv_quantization import dequantize_groups, hadamard_transform, norm_head, quantize_groups, rotate_tail
from qwen_cuda.kv_cache_format import CastArgs
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case

Slots = Literal["contiguous", "crossing pages", "invalid", "permuted"]
SLOTS: tuple[Slots, ...] = get_args(Slots)
EPS, MAX_POSITIONS = 1e-6, 300


def slots_of(kind: Slots, tokens: int, block_size: int, num_slots: int) -> Tensor:
    """No two alike but for invalid ones: before the cache, behind it, and far from it."""
    if kind == "contiguous":
        return torch.arange(tokens)
    if kind == "crossing pages":
        return torch.arange(tokens) + block_size - 1
    slots = torch.randperm(num_slots, generator=torch.Generator().manual_seed(tokens))[:tokens]
    if kind == "invalid":
        slots[::2] = -1
        slots[::5] = num_slots
        slots[::7] = 2**40
    return slots


class Stages:
    """x, and what it becomes in stages that are switched by hand: `[tokens, heads, head_dim]`, as x."""

    def __init__(self, head_dim: int, norm: bool, rope: Turn | None, hadamard: bool, heads: int, keys: int, n: int):
        how = Combination(head_dim, norm, rope, hadamard, heads=heads)
        setting = Setting(how, kind="wide", seed=n)
        self.x = setting.x(n)
        self.weight, (self.positions, _) = weight_of(setting), setting.indices(n)
        self.cos_sin = table(MAX_POSITIONS, how.rotary_dim) if rope else torch.empty(0)
        k, v = self.x.float().split((keys, heads - keys), dim=1)
        if norm:
            k = norm_head(k, self.weight, EPS)
        self.normed = torch.cat((k, v), dim=1).to(self.x.dtype)
        if rope:
            cos, sin = self.cos_sin[self.positions][:, None].chunk(2, dim=-1)
            k = rotate_tail(k, cos, sin, rope[1], rope[2])
        if hadamard:
            k = hadamard_transform(k, HADAMARD_SCALE)
        self.transformed = torch.cat((k, v), dim=1).to(self.x.dtype)


# One after the other in the order of the matrix: few are kept.
stages_of = functools.lru_cache(4)(Stages)


@functools.lru_cache(4)
def codes_of(stages: Stages, cast: CastArgs) -> tuple[Tensor, Tensor, Tensor]:
    """Codes and scales as bytes, and what they stand for, as x."""
    data, scales = quantize_groups(stages.transformed.float(), cast.values, cast.group, cast.scales)
    return data, scales, dequantize_groups(data, scales, cast.values, cast.scales).to(stages.x.dtype)


def check_combination(backend: Backend, how: Combination, tokens: int, slots_kind: Slots) -> None:
    """Every byte that the operator writes, or may write, is that of the unfused pipeline.

    Raises:
        AssertionError: one is not.
    """
    keyed = how.target == "k and v"
    stages = stages_of(how.head_dim, how.norm, how.rope, how.hadamard, how.x_heads, how.heads, tokens)
    codes = codes_of(stages, replace(how.cast, cast_back=False)) if how.cast else None
    expected: dict[str, Tensor] = {}
    if how.stage or not how.cast or how.cast.cast_back:
        stage = how.stage or ("cast_back" if how.cast else "transform")
        given_back = {"norm": stages.normed, "transform": stages.transformed}
        expected["out"] = codes[2] if codes and stage == "cast_back" else given_back[stage]
    slots = torch.empty(0)
    if codes and how.target in ("cache", "k and v"):
        num_blocks = (tokens + 2 * how.block_size) // how.block_size
        slots = slots_of(slots_kind, tokens, how.block_size, num_blocks * how.block_size)
        kept = (slots >= 0) & (slots < num_blocks * how.block_size)
        there = slots[kept]
        for name, heads in (("k_cache", slice(0, how.heads)), ("v_cache", slice(how.heads, None)))[: 1 + keyed]:
            expected[name] = poisoned(how.format.shape(num_blocks))
            for rows, bytes_ in zip(how.format.views(expected[name]), codes, strict=False):
                rows[there // how.block_size, there % how.block_size] = bytes_[kept, heads]
    elif codes and "out" not in expected:
        expected |= {"data": codes[0], "scales": codes[1]}
    written = {name: _blank(one).to(backend.device) for name, one in expected.items()}
    given = {"weight": stages.weight, "positions": stages.positions, "cos_sin": stages.cos_sin, "slot_mapping": slots}
    tensors = {name: one.to(backend.device) for name, one in given.items()} | written
    outputs = (written.get("out"), written.get("data"), written.get("scales"))
    with case("norm_rope_hadamard_quant_store", how=how, tokens=tokens, slots=slots_kind):
        flat = how.pipeline(_needed(how, tensors), EPS, HADAMARD_SCALE).flat(outputs)
        backend.namespace.norm_rope_hadamard_quant_store(stages.x.to(backend.device), **flat)
        for name, one in expected.items():
            if not torch.equal(written[name].cpu().view(torch.uint8), one.view(torch.uint8)):
                assert_same(name, written[name], one)


def _needed(how: Combination, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With outputs that the combination does not have, and that its target names, left empty."""
    return {**dict.fromkeys(("out", "data", "scales"), torch.empty(0)), **tensors} if how.target == "new" else tensors


def _blank(like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return poisoned((size,)).view(like.dtype).view(like.shape)
