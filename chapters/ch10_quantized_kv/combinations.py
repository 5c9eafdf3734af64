"""Every legal combination of stages, formats and outputs: all that can be asked for, less what the rules refuse.

The values that an argument can have are listed here once; which of them go together is said by the constructors of
`qwen_cuda.operators.kv_arguments` alone. A rule that is added or dropped changes the matrix by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from qwen3_ref.functional import Pairing
from qwen3_ref.kv_quantization import Scales, Values
from qwen_cuda.kv_cache_format import GROUPS, CastArgs, KVCacheFormat, Layout
from qwen_cuda.operators.kv_arguments import (
    Contiguous,
    HadamardArgs,
    KVCacheOut,
    NormArgs,
    Out,
    Pipeline,
    RopeArgs,
    Stage,
)

Target = Literal["new", "tensor", "rows", "cache", "k and v"]
Part = Literal["tail", "whole"]
Turn = tuple[Part, Pairing, bool]
TURNS: tuple[Turn | None, ...] = (None, *product(get_args(Part), get_args(Pairing), (False, True)))


@dataclass(frozen=True)
class Combination:
    """One way to call the operator, without its tensors.

    `rope`: which part of a head is rotated, by which pairs, and whether backwards.
    """

    head_dim: int = 128
    norm: bool = False
    rope: Turn | None = None
    hadamard: bool = False
    cast: CastArgs | None = None
    target: Target = "new"
    layout: Layout = "token_interleaved"
    stage: Stage | None = None
    heads: int = 2  # of K
    alignment: int = 16
    block_size: int = 16

    @property
    def rotary_dim(self) -> int:
        return 0 if self.rope is None else 64 if self.rope[0] == "tail" else self.head_dim

    @property
    def x_heads(self) -> int:
        return self.heads * (2 if self.target == "k and v" else 1)

    @property
    def format(self) -> KVCacheFormat:
        assert self.cast is not None
        return KVCacheFormat(
            self.cast, self.head_dim, self.heads, self.block_size, layout=self.layout, alignment=self.alignment
        )

    def pipeline(self, tensors: dict[str, Tensor], eps: float, scale: float) -> Pipeline:
        """With its tensors: weight, positions, cos_sin, slot_mapping, k_cache, v_cache, out, data, scales, by need.

        Raises:
            ValueError: the combination is illegal.
        """
        norm = NormArgs(tensors["weight"], eps) if self.norm else None
        rope = None
        if self.rope:
            _, pairing, conjugate = self.rope
            rope = RopeArgs(tensors["positions"], tensors["cos_sin"], pairing, None, conjugate)
        hadamard = HadamardArgs(scale) if self.hadamard else None
        stages: dict[str, Any] = {"norm": norm, "rope": rope, "hadamard": hadamard, "cast": self.cast}
        return Pipeline(self.x_heads, self.head_dim, **stages, out=self._out(tensors))

    def _out(self, tensors: dict[str, Tensor]) -> Out | None:
        if self.target == "new":
            return None
        if self.target == "tensor":
            return tensors["out"]
        if self.target == "rows":
            return Contiguous(tensors["data"], tensors["scales"])
        if self.cast is None:
            raise ValueError("A cache has no format without a cast.")
        v_cache = tensors["v_cache"] if self.target == "k and v" else None
        out = tensors["out"] if self.stage else None
        where = tensors["k_cache"], tensors["slot_mapping"], self.format
        return KVCacheOut(*where, v_cache=v_cache, out=out, out_stage=self.stage)


@functools.cache
def casts(cast_back: bool = False) -> tuple[CastArgs, ...]:
    """All that the constructor lets through."""
    return tuple(_legal_casts(cast_back))


def _legal_casts(cast_back: bool) -> Iterator[CastArgs]:
    for values, group, scales in product(get_args(Values), GROUPS, get_args(Scales)):
        try:
            yield CastArgs(values, group, scales, cast_back)
        except ValueError:
            continue


def is_legal(one: Combination) -> bool:
    """Asked of the constructors, with tensors of no size that matters."""
    bytes_ = one.format.new(1) if one.cast and not one.cast.cast_back else torch.empty(0, 0, dtype=torch.uint8)
    tensors = {
        "weight": torch.empty(one.head_dim),
        "positions": torch.empty(1, dtype=torch.int64),
        "cos_sin": torch.empty(1, one.rotary_dim),
        "slot_mapping": torch.empty(1, dtype=torch.int64),
        "k_cache": bytes_,
        "v_cache": bytes_,
        **dict.fromkeys(("out", "data", "scales"), torch.empty(0)),
    }
    try:
        one.pipeline(tensors, 1e-6, 1.0)
    except ValueError:
        return False
    return True


def combinations_of(head_dim: int, rope: Turn | None) -> Iterator[Combination]:
    """The legal ones with heads of this size and this rotation. Neighbours share their stages, then their cast."""
    casts_ = (None, *casts(), *casts(cast_back=True))
    outputs: list[tuple[Target, Layout, Stage | None]] = [
        (target, "token_interleaved", None) for target in get_args(Target)[:3]
    ]
    outputs += product(get_args(Target)[3:], get_args(Layout), (None, *get_args(Stage)))
    for norm, hadamard, cast, output in product((False, True), (False, True), casts_, outputs):
        one = Combination(head_dim, norm, rope, hadamard, cast, *output)
        if is_legal(one):
            yield one
