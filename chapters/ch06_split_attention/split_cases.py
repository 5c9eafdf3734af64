"""How the tests cut a context: workspaces as a call before may have left them, and who can merge."""

from __future__ import annotations

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.paged_cases import PagedCase
from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.testing.backends import Backend

Cut = tuple[int, int]  # partition_size, partitions


def layout_of(some: PagedCase, partitions: int) -> WorkspaceLayout:
    heads = some.heads
    return WorkspaceLayout(some.q.shape[0], heads.query_heads, heads.kv_heads, heads.head_dim, partitions)


def used_workspace(layout: WorkspaceLayout) -> Tensor:
    """As a call before may have left it: NaN wherever a number is yet to be written, and counters of 0."""
    workspace = torch.full((layout.size,), torch.nan)
    layout.parts(workspace).arrived.zero_()
    return workspace


def merges(backend: Backend, partitions: int) -> tuple[str, ...]:
    """Who can merge so many partitions there."""
    clusters = backend.name != "cuda" or torch.cuda.get_device_capability()[0] >= 9
    return ("last_block", "cluster") if clusters and partitions in (2, 4, 8, 16) else ("last_block",)
