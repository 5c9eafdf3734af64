"""Where the bytes of a quantised KV cache lie: said once, for who writes it, who reads it, tests and figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qwen3_ref.kv_quantization import Scales, Values

Layout = Literal["token_interleaved", "block_wide"]
GROUPS = (16, 32, 64, 128)
HEAD_DIMS = (128, 512)
SCALE_DTYPES = {"ue8m0": torch.float8_e8m0fnu, "e4m3": torch.float8_e4m3fn, "float32": torch.float32}
FP4_FORMATS = {(16, "e4m3"): "NVFP4", (32, "ue8m0"): "MXFP4"}


@dataclass(frozen=True)
class CastArgs:
    """Numbers of 8 or 4 bits in groups of `group` neighbours, each with a scale.

    Args:
        values: "e4m3" (FP8), or "e2m1" (FP4, two to a byte, the first in its lower half).
        group: 16, 32, 64 or 128.
        scales: "ue8m0", the smallest power of two not below amax / largest; "e4m3", the nearest to it, saturated; or
            "float32".
        cast_back: the result is what the codes stand for, in the dtype that went in.
    Raises:
        ValueError: the formats do not go together.
    """

    values: Values
    group: int
    scales: Scales
    cast_back: bool = False

    def __post_init__(self) -> None:
        if self.values not in ("e4m3", "e2m1"):
            raise ValueError(f"values is {self.values!r}; it must be 'e4m3' or 'e2m1'.")
        if self.scales not in SCALE_DTYPES:
            raise ValueError(f"scales is {self.scales!r}; it must be 'ue8m0', 'e4m3' or 'float32'.")
        if self.group not in GROUPS:
            raise ValueError(f"group is {self.group}; it must be 16, 32, 64 or 128.")
        if self.values == "e2m1" and (self.group, self.scales) not in FP4_FORMATS:
            raise ValueError(
                f"values is 'e2m1' with group {self.group} and scales {self.scales!r}; FP4 is either NVFP4, group 16 "
                "with scales 'e4m3', or MXFP4, group 32 with scales 'ue8m0'."
            )

    def data_bytes(self, head_dim: int) -> int:
        """Of the codes of a head."""
        return head_dim if self.values == "e4m3" else head_dim // 2

    def scale_bytes(self, head_dim: int) -> int:
        """Of the scales of a head."""
        return head_dim // self.group * SCALE_DTYPES[self.scales].itemsize

    @property
    def data_dtype(self) -> torch.dtype:
        """In which codes are given back: bytes of two numbers have none but uint8."""
        return torch.float8_e4m3fn if self.values == "e4m3" else torch.uint8

    @property
    def scale_dtype(self) -> torch.dtype:
        return SCALE_DTYPES[self.scales]


class Span(NamedTuple):
    """Bytes of a block: from `start`, before `stop`."""

    start: int
    stop: int


@dataclass(frozen=True)
class KVCacheFormat:
    """The bytes of a cache `[num_blocks, block_bytes]`. A row is a head of a token: its codes and its scales.

    "token_interleaved": a row is a record [codes | scales | padding], and records follow each other: a reader that
    gathers tokens finds all of one in a place. "block_wide": a block is [codes of all rows | padding | scales of all
    rows | padding]: a reader that takes whole blocks finds either in one run. In both, the rows of a token are its
    heads, and follow each other.

    Args:
        cast: what a row's numbers are; without `cast_back`.
        head_dim: 128 or 512.
        heads: of a token; 1 for a latent that all heads share.
        block_size: tokens of a block, a power of two from 8 to 256.
        alignment: records, or sections, begin at multiples of so many bytes; a power of two from 4 to 256. 16 suits the
            widest load.
    Raises:
        ValueError: an argument does not meet this.
    """

    cast: CastArgs
    head_dim: int = 128
    heads: int = 1
    block_size: int = 16
    layout: Layout = "token_interleaved"
    alignment: int = 16

    def __post_init__(self) -> None:
        if self.cast.cast_back:
            raise ValueError("cast has cast_back; a cache holds codes, so its format must be without.")
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim is {self.head_dim}; it must be 128 or 512.")
        if self.heads < 1:
            raise ValueError(f"heads is {self.heads}; it must be at least 1.")
        if not 8 <= self.block_size <= 256 or self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size is {self.block_size}; it must be a power of two from 8 to 256.")
        if self.layout not in ("token_interleaved", "block_wide"):
            raise ValueError(f"layout is {self.layout!r}; it must be 'token_interleaved' or 'block_wide'.")
        if not 4 <= self.alignment <= 256 or self.alignment & (self.alignment - 1):
            raise ValueError(f"alignment is {self.alignment}; it must be a power of two from 4 to 256.")

    # --8<-- [start:layout]
    @property
    def data_bytes(self) -> int:
        return self.cast.data_bytes(self.head_dim)

    @property
    def scale_bytes(self) -> int:
        return self.cast.scale_bytes(self.head_dim)

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.block_size * self.heads

    @property
    def data_row_stride(self) -> int:
        """Bytes from the codes of a row to those of the next."""
        if self.layout == "block_wide":
            return self.data_bytes
        return self._aligned(self.data_bytes + self.scale_bytes)

    @property
    def scale_row_stride(self) -> int:
        return self.scale_bytes if self.layout == "block_wide" else self.data_row_stride

    @property
    def scale_offset(self) -> int:
        """Bytes from the beginning of a block to its first scale."""
        if self.layout == "block_wide":
            return self._aligned(self.rows * self.data_bytes)
        return self.data_bytes

    @property
    def block_bytes(self) -> int:
        last_scale = self.scale_offset + (self.rows - 1) * self.scale_row_stride
        return self._aligned(last_scale + self.scale_bytes)

    # --8<-- [end:layout]

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """What the kernels need: block_size, data_row_stride, scale_row_stride, scale_offset."""
        return self.block_size, self.data_row_stride, self.scale_row_stride, self.scale_offset

    def spans(self, place: int, head: int = 0) -> tuple[Span, Span]:
        """Of the token at `place` of a block: the bytes of its codes and of its scales. No other byte is written."""
        row = place * self.heads + head
        data, scale = row * self.data_row_stride, self.scale_offset + row * self.scale_row_stride
        return Span(data, data + self.data_bytes), Span(scale, scale + self.scale_bytes)

    def shape(self, num_blocks: int) -> tuple[int, int]:
        return num_blocks, self.block_bytes

    def new(self, num_blocks: int, device: torch.device | str = "cpu") -> Tensor:
        """An empty cache: uint8 `[num_blocks, block_bytes]`, zeros."""
        return torch.zeros(self.shape(num_blocks), dtype=torch.uint8, device=device)

    def check(self, cache: Tensor, name: str = "cache") -> None:
        """Raises ValueError unless `cache` has the dtype and the bytes of this format."""
        if cache.dtype != torch.uint8 or cache.dim() != 2 or cache.shape[1] != self.block_bytes:
            raise ValueError(
                f"{name} has dtype {str(cache.dtype).removeprefix('torch.')} and shape {list(cache.shape)}; its format "
                f"asks for uint8 [num_blocks, {self.block_bytes}]."
            )

    def views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and scales where they lie: `[num_blocks, block_size, heads, data_bytes]` and `[…, scale_bytes]`, uint8.

        Raises:
            ValueError: as `check`.
        """
        self.check(cache)

        def rows(stride: int, size: int, offset: int) -> Tensor:
            shape = (cache.shape[0], self.block_size, self.heads, size)
            return cache.as_strided(
                shape, (cache.stride(0), self.heads * stride, stride, 1), cache.storage_offset() + offset
            )

        return (
            rows(self.data_row_stride, self.data_bytes, 0),
            rows(self.scale_row_stride, self.scale_bytes, self.scale_offset),
        )

    def _aligned(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment
