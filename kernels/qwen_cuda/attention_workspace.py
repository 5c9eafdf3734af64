"""Where the partials of split attention lie, and how a context is cut: what kernels/cuda/include/partitions.h says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PARTITION_GRAIN = 16  # tokens: a partition_size is a multiple of it


def partition_tokens(context: int, partition_size: int, partitions: int) -> int:
    """The tokens of a partition: `partition_size`, or as many as it takes for all of them to hold the context."""
    if context <= partition_size * partitions:
        return partition_size
    share = -(-context // partitions)
    return -(-share // PARTITION_GRAIN) * PARTITION_GRAIN


class WorkspaceParts(NamedTuple):
    """Views of a workspace. `m` is the largest score times log2(e), `l` and `o` sum powers of two."""

    o: Tensor  # [b, Hq, partitions, D] float32
    m: Tensor  # [b, Hq, partitions] float32; −inf where a partition has no tokens
    l: Tensor  # noqa: E741 - [b, Hq, partitions] float32; 0 where it has none, and o is undefined there
    arrived: Tensor  # [b, Hkv] int32; 0 before and after each call


@dataclass(frozen=True)
class WorkspaceLayout:
    """The workspace of `paged_attention_split` for up to these sizes. One may serve many calls, but not two at once."""

    batch: int
    query_heads: int
    kv_heads: int
    head_dim: int
    partitions: int

    @property
    def size(self) -> int:
        """Elements of float32."""
        rows = self.batch * self.query_heads * self.partitions
        return rows * (self.head_dim + 2) + self.batch * self.kv_heads

    def new(self, device: torch.device | str) -> Tensor:
        """`[size]` float32 zeros: the counters in it must be 0 at first, and each call leaves them 0."""
        return torch.zeros(self.size, dtype=torch.float32, device=device)

    def parts(self, workspace: Tensor) -> WorkspaceParts:
        shape = (self.batch, self.query_heads, self.partitions)
        rows = self.batch * self.query_heads * self.partitions
        o, m, l, arrived = workspace[: self.size].split(  # noqa: E741
            [rows * self.head_dim, rows, rows, self.batch * self.kv_heads]
        )
        counters = arrived.view(torch.int32) if arrived.dtype == torch.float32 else arrived
        return WorkspaceParts(
            o.view(*shape, self.head_dim), m.view(shape), l.view(shape), counters.view(self.batch, self.kv_heads)
        )
