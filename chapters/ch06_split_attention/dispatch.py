"""Into how many partitions a context is cut, and who merges them: a measured table, and a rule for unknown GPUs.

`dispatch.json` holds for each architecture and operator the fastest plan of each measured (heads, context), where heads
counts the KV heads of the whole batch: the blocks that there are without partitions. `plan_table.py` renews it.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from qwen_cuda.attention_workspace import WorkspaceLayout

TABLE = Path(__file__).with_name("dispatch.json")
# The last two: attention over a cache of FP8 or FP4 codes, chapter 10's.
Op = Literal["paged_attention", "fused_decode_attention", "paged_attention_fp8", "paged_attention_fp4"]
NEAREST: dict[Op, Op] = {"paged_attention_fp8": "paged_attention", "paged_attention_fp4": "paged_attention"}
Merge = Literal["auto", "cluster", "last_block"]
MOST_CLUSTER = 8  # blocks that every GPU with clusters runs as one; 16 is more than CUDA promises
LEAST_PARTITION = 128  # tokens: a turn of the block's 8 warps for heads of 128 in groups of up to two
# Sizes of a single partition for which fused attention has more warps and blocks: up to so many tokens in one turn.
IN_ONE_TURN = (192, 256)
BY_TURNS = 512  # of a single partition that is read as the others are
CPU_SMS = 1  # on a CPU one block a KV head is enough: there is no latency to hide


@dataclass(frozen=True)
class Plan:
    """`partitions` blocks for each KV head, of at least `partition_size` tokens. One partition: chapter 5's kernel.

    `merge` is that of `qwen_cuda.operators.paged_attention_split`.
    """

    partition_size: int
    partitions: int
    merge: Merge = "auto"

    def workspace(self, q: Tensor, kv_heads: int) -> Tensor | None:
        """What `paged_attention` needs with this plan for `q: [b, Hq, D]`; None for a plan of one partition."""
        if self.partitions == 1:
            return None
        return WorkspaceLayout(q.shape[0], q.shape[1], kv_heads, q.shape[2], self.partitions).new(q.device)


@dataclass(frozen=True)
class Row:
    """A measured choice: `heads` KV heads in the whole batch, contexts of up to `context` tokens.

    Raises:
        ValueError: there is no such operator or merge.
    """

    heads: int
    context: int
    partition_size: int
    partitions: int
    op: Op = "paged_attention"
    merge: Merge = "last_block"

    def __post_init__(self) -> None:
        for name, known in (("op", Op), ("merge", Merge)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} is {getattr(self, name)!r} and not one of {', '.join(get_args(known))}")

    @property
    def plan(self) -> Plan:
        return Plan(self.partition_size, self.partitions, self.merge)


def default_plan(heads: int, max_context: int, sms: int) -> Plan:
    """About one block for each SM, and no partition of fewer than LEAST_PARTITION tokens but the last ones.

    A cluster merges where as many blocks as it needs, 2, 4 or 8, have an SM each; elsewhere, and on a GPU without
    clusters, the last block. A long context in one partition is read by turns.
    """
    most = max(1, sms // max(heads, 1))
    useful = min(most, max(1, math.ceil(max_context / LEAST_PARTITION)))
    if useful == 1 and max_context > IN_ONE_TURN[-1]:
        return Plan(BY_TURNS, 1)
    cluster = 1 << (useful - 1).bit_length()  # the next power of two
    if cluster <= min(most, MOST_CLUSTER):
        return Plan(LEAST_PARTITION, cluster)
    return Plan(LEAST_PARTITION, useful, "last_block")


def chosen(rows: Iterable[Row], heads: int, max_context: int) -> Plan | None:
    """Of the measured rows the nearest: heads by their ratio, then the shortest context that is not too short."""
    found = list(rows)
    if not found:
        return None
    nearest = min({row.heads for row in found}, key=lambda n: (abs(math.log(n / heads)), n))
    there = sorted((row for row in found if row.heads == nearest), key=lambda row: row.context)
    return next((row for row in there if row.context >= max_context), there[-1]).plan


def plan_for(batch: int, kv_heads: int, max_context: int, device: torch.device, *, op: Op = "paged_attention") -> Plan:
    """The plan of a batch whose contexts have at most `max_context` tokens. The host knows both; nothing waits.

    Where the architecture has no rows of chapter 10's readers, they take those of paged attention.
    """
    heads = max(batch * kv_heads, 1)
    name, sms = _device(device.type, device.index)
    rows = table().get(name, ())
    mine = [row for row in rows if row.op == op] or [row for row in rows if row.op == NEAREST.get(op)]
    return chosen(mine, heads, max_context) or default_plan(heads, max_context, sms)


def architecture(device: torch.device) -> str:
    """The name of the table's rows for a device: sm_90, or cpu."""
    return _device(device.type, device.index)[0]


@functools.cache
def _device(kind: str, index: int | None) -> tuple[str, int]:
    if kind != "cuda":
        return "cpu", CPU_SMS
    properties = torch.cuda.get_device_properties(torch.device(kind, index if index is not None else 0))
    return f"sm_{10 * properties.major + properties.minor}", properties.multi_processor_count


@functools.cache
def table(path: Path = TABLE) -> dict[str, tuple[Row, ...]]:
    """The rows of each architecture; none where nothing has been measured.

    Raises:
        ValueError: the file is there and is no such table.
    """
    if not path.exists():
        return {}
    try:
        return {name: tuple(Row(**row) for row in rows) for name, rows in json.loads(path.read_text("utf-8")).items()}
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path.name} is no table of plans: {error}; python -m chapters.ch06_split_attention.plan_table writes one."
        ) from None


def write_table(architecture: str, rows: Iterable[Row], path: Path = TABLE) -> None:
    """Replaces those rows of one architecture that were measured again, and keeps all others."""
    measured = tuple(rows)
    again = {(row.op, row.heads) for row in measured}
    kept = tuple(row for row in table(path).get(architecture, ()) if (row.op, row.heads) not in again)
    all_rows = {**table(path), architecture: (*kept, *measured)}
    text = {name: [asdict(row) for row in some] for name, some in sorted(all_rows.items())}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    table.cache_clear()
