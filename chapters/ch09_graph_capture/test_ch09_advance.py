"""advance_decode on every backend, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chapters.ch09_graph_capture.advance_checks import ADVANCE_CHECKS, FOUR
from qwen_cuda.testing.backends import Backend, opened, schedule

GROUPS = [
    ("ids", lambda t: t.int(), "ids has dtype Int; it must be Long"),
    ("ids", lambda t: t[:, None], r"ids has shape \[4, 1\]; it must be \[rows\]"),
    ("embedding", lambda t: t.float(), "embedding has dtype Float; it must be bfloat16 or float16"),
    ("embedding", lambda t: t[:, ::2], r"embedding has shape \[11, 20\]; it must be a dense tensor"),
    ("block_table", lambda t: t.long(), "block_table has dtype Long; it must be Int"),
    ("block_table", lambda t: t[:3], r"block_table has shape \[3, 3\]; it must have two dimensions and 4 rows"),
    ("block_table", lambda t: t.t().contiguous().t(), "block_table has strides .*must lie side by side"),
    ("context_lens", lambda t: t[:2], r"context_lens has shape \[2\]; it must have one dimension and 4 rows"),
    ("positions", lambda t: t.repeat_interleave(2)[::2], "positions has strides .*must lie side by side"),
    ("slot_mapping", lambda t: t.long(), "slot_mapping has dtype Long; it must be Int"),
    ("draws", lambda t: t.int(), "draws has dtype Int; it must be Long"),
    ("history", lambda t: t[:1].expand(4, -1), "history has strides .*rows must not overlap"),
    ("h", lambda t: t.double(), "h has dtype Double; it must be Float"),
    ("h", lambda t: t[:, :39], r"h has shape \[4, 39\]; it must have two dimensions and 4 rows, as ids, each of 40"),
    ("h", lambda t: torch.zeros(4, 80, device=t.device)[:, :40], "h has gaps between its rows"),
]


@pytest.mark.parametrize("check", ADVANCE_CHECKS, ids=lambda check: check.__name__)
def test_advance_decode(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@pytest.mark.parametrize("seed", [1, 2])
def test_advance_decode_does_not_depend_on_the_order_of_threads(seed: int) -> None:
    with opened("sim") as backend, schedule(seed):
        for check in ADVANCE_CHECKS:
            check(backend)


@pytest.mark.parametrize(("name", "change", "sentence"), GROUPS, ids=[f"{one[0]}: {one[2][:40]}" for one in GROUPS])
def test_arguments_of_advance_decode_are_refused(
    registered_backend: Backend, name: str, change: Callable[[torch.Tensor], torch.Tensor], sentence: str
) -> None:
    tensors = dict(zip(FOUR.names, (one.to(registered_backend.device) for one in FOUR.tensors()), strict=True))
    tensors[name] = change(tensors[name]).to(registered_backend.device)
    before = {name: one.clone() for name, one in tensors.items()}
    with pytest.raises(RuntimeError, match=f"^advance_decode: {sentence}"):
        registered_backend.op("advance_decode")(*tensors.values(), 9, 8)
    for other, tensor in tensors.items():
        assert torch.equal(tensor.nan_to_num(1.5), before[other].nan_to_num(1.5)), other


@pytest.mark.parametrize(("blocks", "size"), [(0, 8), (9, 0), (2**30, 4)])
def test_a_cache_without_slots_is_refused(registered_backend: Backend, blocks: int, size: int) -> None:
    tensors = [one.to(registered_backend.device) for one in FOUR.tensors()]
    with pytest.raises(RuntimeError, match=f"^advance_decode: num_blocks is {blocks} and block_size {size}"):
        registered_backend.op("advance_decode")(*tensors, blocks, size)


def test_advance_decode_passes_opcheck(registered_backend: Backend) -> None:
    tensors = [one.to(registered_backend.device).nan_to_num(0.0) for one in FOUR.tensors()]
    torch.library.opcheck(registered_backend.namespace.advance_decode.default, (*tensors, 9, 8))
