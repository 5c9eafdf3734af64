"""The stages of `norm_rope_hadamard_quant_store` as arguments, and which of them go together.

Each constructor refuses what its own fields rule out; `Pipeline` refuses combinations. All by a sentence, and before
anything runs. `Pipeline.flat` is the one place that turns the objects into the operator's arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qwen3_ref.functional import Pairing
from qwen_cuda.kv_cache_format import HEAD_DIMS, CastArgs, KVCacheFormat

Stage = Literal["norm", "transform", "cast_back"]
HADAMARD_DIM = 128
_BYTES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu)


@dataclass(frozen=True, eq=False)
class NormArgs:
    """RMSNorm of each head: `weight: [D]`, of the dtype of x, and eps."""

    weight: Tensor
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.weight.dim() != 1:
            raise ValueError(f"weight has shape {list(self.weight.shape)}; it must be [head_dim].")
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise ValueError(f"eps is {self.eps}; it must be a finite number, 0 or more.")


@dataclass(frozen=True, eq=False)
class RopeArgs:
    """Rotation of the last `rotary_dim` elements of each head; the others stay.

    Args:
        positions: `[t]`, int64 or int32.
        cos_sin: float32 `[max_positions, rotary_dim]`, cosines first: see `cos_sin_table`. rotary_dim is a multiple of
            8, so that four neighbours, which a lane holds, have four neighbours as partners.
        pairing: "half" (NeoX) pairs elements i and i + rotary_dim / 2, "interleaved" 2i and 2i + 1.
        offset: the first element that is rotated: head_dim − rotary_dim, which is also the default.
        conjugate: turns backwards, which undoes a rotation.
    Raises:
        ValueError: an argument does not meet this.
    """

    positions: Tensor
    cos_sin: Tensor
    pairing: Pairing = "half"
    offset: int | None = None
    conjugate: bool = False

    def __post_init__(self) -> None:
        if self.pairing not in ("half", "interleaved"):
            raise ValueError(f"pairing is {self.pairing!r}; it must be 'half' or 'interleaved'.")
        if self.cos_sin.dim() != 2 or self.rotary_dim < 8 or self.rotary_dim % 8:
            raise ValueError(
                f"cos_sin has shape {list(self.cos_sin.shape)}; it must be [max_positions, rotary_dim], with a "
                "rotary_dim that is a multiple of 8."
            )
        if self.positions.dim() != 1:
            raise ValueError(f"positions has shape {list(self.positions.shape)}; it must be [tokens].")

    @property
    def rotary_dim(self) -> int:
        return self.cos_sin.shape[-1]


@dataclass(frozen=True)
class HadamardArgs:
    """Sylvester's transform of each head, times `scale`. 1/√128 makes it orthogonal: q · k stays if both have it."""

    scale: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ValueError(f"scale is {self.scale}; it must be a finite number other than 0.")


@dataclass(frozen=True, eq=False)
class Contiguous:
    """The result in tensors of its own: with a cast codes and scales, else x's dtype. New ones, or these two.

    Args:
        data: `[t, heads, data_bytes]`, and
        scales: `[t, heads, groups]`: contiguous, in the dtypes of `CastArgs` or as bytes. Both or none.
    """

    data: Tensor | None = None
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.data is None) != (self.scales is None):
            raise ValueError("Contiguous has one of data and scales; codes need their scales: give both, or none.")


@dataclass(frozen=True, eq=False)
class QueriesOut:
    """The first heads of x are Q: normed by a weight of their own, rotated, and given back; no more is done to them.

    Args:
        out: `[t, Hq, D]`, contiguous, of the dtype of x.
        weight: `[D]`, as that of `NormArgs`; None where K has no norm either.
    """

    out: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True, eq=False)
class KVCacheOut:
    """The result in a paged cache, by slots. A token whose slot the cache does not have writes nothing.

    Args:
        cache: uint8 `[num_blocks, block_bytes]`, as `format` says.
        slot_mapping: `[t]`, int64 or int32. Slot s is place s % block_size of block s // block_size.
        format: of `cache`.
        v_cache: takes the second half of the heads, which are V: quantised as they are, without the other stages.
        out: takes one stage more, in x's dtype: contiguous, of the shape of x.
        out_stage: "norm"; "transform", after rotation and Hadamard transform; or "cast_back", what the codes stand for.
        queries: x has heads of Q before those of K.
    Raises:
        ValueError: they do not go together.
    """

    cache: Tensor
    slot_mapping: Tensor
    format: KVCacheFormat
    v_cache: Tensor | None = None
    out: Tensor | None = None
    out_stage: Stage | None = None
    queries: QueriesOut | None = None

    def __post_init__(self) -> None:
        self.format.check(self.cache)
        if self.queries and self.out is not None:
            raise ValueError("KVCacheOut has out and queries; with queries no other head is given back.")
        if self.v_cache is not None:
            self.format.check(self.v_cache, "v_cache")
        if (self.out is None) != (self.out_stage is None):
            raise ValueError("KVCacheOut has one of out and out_stage; a stage needs a place, and a place a stage.")
        if self.out_stage not in (None, "norm", "transform", "cast_back"):
            raise ValueError(f"out_stage is {self.out_stage!r}; it must be 'norm', 'transform' or 'cast_back'.")


Out = Contiguous | Tensor | KVCacheOut


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages that go together, for heads of this size.

    Raises:
        ValueError: they do not; the sentence names the rule.
    """

    heads: int
    head_dim: int
    norm: NormArgs | None = None
    rope: RopeArgs | None = None
    hadamard: HadamardArgs | None = None
    cast: CastArgs | None = None
    out: Out | None = None

    def __post_init__(self) -> None:
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim is {self.head_dim}; it must be 128 or 512.")
        if not (self.norm or self.rope or self.hadamard or self.cast):
            raise ValueError("norm, rope, hadamard and cast are all None; there is nothing to do.")
        if self.norm and self.norm.weight.shape[0] != self.head_dim:
            raise ValueError(f"norm.weight has {self.norm.weight.shape[0]} elements; a head has {self.head_dim}.")
        if self.rope:
            self._check_rope(self.rope)
        if self.hadamard and self.head_dim != HADAMARD_DIM:
            raise ValueError(f"hadamard is given with head_dim {self.head_dim}; the transform is of 128 elements.")
        if isinstance(self.out, KVCacheOut):
            self._check_cache(self.out)
        elif isinstance(self.out, Contiguous) and self.out.data is not None and not self._stores_codes:
            raise ValueError("out has data and scales; they need a cast without cast_back.")
        elif isinstance(self.out, Tensor) and self._stores_codes:
            raise ValueError("out is one tensor and cast gives codes and scales: ask for cast_back, or for Contiguous.")

    def _check_rope(self, rope: RopeArgs) -> None:
        if rope.rotary_dim > self.head_dim:
            raise ValueError(f"rope.rotary_dim is {rope.rotary_dim}; it is at most head_dim, {self.head_dim}.")
        if rope.offset is not None and rope.offset + rope.rotary_dim != self.head_dim:
            raise ValueError(
                f"rope.offset is {rope.offset} and rotary_dim {rope.rotary_dim}; the rotated part is the head's tail: "
                f"together they must be head_dim, {self.head_dim}."
            )

    def _check_cache(self, to: KVCacheOut) -> None:
        if self.cast is None:
            raise ValueError("out is a cache and cast is None; a quantised cache takes codes: pass format.cast.")
        if self.cast.cast_back:
            raise ValueError("out is a cache and cast has cast_back; a cache takes codes: use out_stage='cast_back'.")
        if self.cast != to.format.cast:
            raise ValueError(
                f"cast is {self.cast} and the format's {to.format.cast}; they must be one: pass format.cast."
            )
        if self.head_dim != to.format.head_dim:
            raise ValueError(f"heads are of {self.head_dim} elements and the format's of {to.format.head_dim}.")
        expected = to.format.heads * (1 if to.v_cache is None else 2)
        if to.queries:
            if (to.queries.weight is None) != (self.norm is None):
                raise ValueError("one of norm and queries.weight is None; Q and K are both normed, or neither.")
            if to.queries.out.dim() != 3:
                shape = list(to.queries.out.shape)
                raise ValueError(f"queries.out has shape {shape}; it must be [tokens, heads, head_dim].")
            expected += to.queries.out.shape[1]
        if self.heads != expected:
            of_v = "" if to.v_cache is None else ", as many of K as of V"
            raise ValueError(f"x has {self.heads} heads; the format asks for {expected}{of_v}.")
        if to.out_stage == "norm" and self.norm is None:
            raise ValueError("out_stage is 'norm' and norm is None; there is no such stage to give back.")

    @property
    def _stores_codes(self) -> bool:
        return self.cast is not None and not self.cast.cast_back

    def new_outputs(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What the result goes to beside a cache: a tensor of x's dtype; or codes and scales, as bytes."""
        if isinstance(self.out, KVCacheOut):
            return self.out.out, None, None
        if not self._stores_codes:
            given = self.out if isinstance(self.out, Tensor) else None
            return torch.empty_like(x, memory_format=torch.contiguous_format) if given is None else given, None, None
        if isinstance(self.out, Contiguous) and self.out.data is not None and self.out.scales is not None:
            return None, _as_bytes("out.data", self.out.data), _as_bytes("out.scales", self.out.scales)
        assert self.cast is not None
        sizes = (self.cast.data_bytes(self.head_dim), self.cast.scale_bytes(self.head_dim))
        data, scales = (x.new_empty((*x.shape[:-1], size), dtype=torch.uint8) for size in sizes)
        return None, data, scales

    def flat(self, outputs: tuple[Tensor | None, Tensor | None, Tensor | None]) -> dict[str, Any]:
        """The operator's arguments behind x."""
        out, data, scales = outputs
        flat: dict[str, Any] = {"out": out, "data": data, "scales": scales}
        if self.norm:
            flat |= {"norm_weight": self.norm.weight, "eps": self.norm.eps}
        if self.rope:
            flat |= {"cos_sin": self.rope.cos_sin, "positions": self.rope.positions}
            flat |= {"interleaved": self.rope.pairing == "interleaved", "conjugate": self.rope.conjugate}
        if self.hadamard:
            flat["hadamard_scale"] = self.hadamard.scale
        if self.cast:
            flat |= {"values": self.cast.values, "group": self.cast.group, "scale_format": self.cast.scales}
        if isinstance(self.out, KVCacheOut):
            flat |= {"k_cache": self.out.cache, "v_cache": self.out.v_cache, "slot_mapping": self.out.slot_mapping}
            flat |= {"cache_layout": list(self.out.format.strides), "stage": self.out.out_stage or ""}
            if self.out.queries:
                flat |= {"query_weight": self.out.queries.weight, "query_out": self.out.queries.out}
        elif out is not None:
            flat["stage"] = "cast_back" if self.cast else "transform"
        return flat


def _as_bytes(name: str, t: Tensor) -> Tensor:
    if t.dtype not in (*_BYTES, torch.float32) or not t.is_contiguous():
        raise ValueError(
            f"{name} has dtype {t.dtype} and strides {t.stride()}; it must hold contiguous codes or scales."
        )
    return t.view(torch.uint8)
