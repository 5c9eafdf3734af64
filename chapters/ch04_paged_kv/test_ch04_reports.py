"""The lesson's quotations are what simulator, operator, cache and exercise really say, and its counts are right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chapters.ch04_paged_kv import candidates, faults
from chapters.ch04_paged_kv.paged_cache import PagedKVCache
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda.building import Library
from qwen_cuda.testing.quotations import filled

CONTIGUOUS, SCATTERED = list(range(20)), [*range(48, 64), *range(16, 20)]


def lesson() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


def test_simulator_reports_the_slot_that_is_none() -> None:
    said = faults.minus_one()
    assert "before the start of v_cache" in said
    assert re.search(r"v3_warp_per_head\.cu:\d+", said)


@pytest.mark.parametrize("planted", [False, True])
def test_positions_taken_for_slots_show_on_scattered_blocks_alone_and_in_no_report(planted: bool) -> None:
    library = faults.broken("position") if planted else Library("sim", (faults.STEP,), "checked")
    for slots, right in ((CONTIGUOUS, True), (SCATTERED, not planted)):
        of = faults.arguments(slots)
        v = of["qkv"][:, -128:].clone()
        _, v_cache = faults.run(library, of)
        assert torch.equal(v_cache.view(-1, 128)[slots], v) == right


def test_lesson_of_pages_quotes_every_report_word_for_word() -> None:
    text, reports = faults.LESSON.read_text(encoding="utf-8"), faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", text)) == set(reports)
    assert filled(text, reports) == text, "run `python -m chapters.ch04_paged_kv.faults sync`"
    for name, said in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", said), name


class _Counted(TorchDispatchMode):
    """Counts the operations that are no views, each of them a launch on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            self.operations.append(str(func))
        return func(*args, **kwargs or {})


def test_lesson_of_pages_counts_the_operations_of_pytorch() -> None:
    of = candidates.operands(3, torch.bfloat16, torch.device("cpu"))(0)
    eager = next(variant for variant in candidates.peers(None) if variant.name == "torch_eager")
    with _Counted() as counted:
        eager.run(of)
    angles = counted.operations[:2]  # one row of the table for all layers
    assert [name.partition(".")[2].partition(".")[0] for name in angles] == ["index", "_to_copy"]
    layer = len(counted.operations) - len(angles)
    layers = f"the look-up of the angles not counted, in each of 28 layers: {28 * layer:,} launches for a token"
    assert f"PyTorch does it in {layer} operations, {layers}" in lesson()
    assert f"PyTorch runs {layer} operations a layer" in lesson()


def test_lesson_of_pages_counts_as_the_cost_model_does() -> None:
    text, per_token = lesson(), cost.kv_bytes_per_token(QWEN3_0_6B)
    longest, gib = QWEN3_0_6B.max_position_embeddings, cost.GIB
    copied = sum(range(1024, 2048)) * per_token / gib
    weights = 1024 * 2 * cost.parameters(QWEN3_0_6B) / gib
    assert (
        f"{copied:.0f} GiB are read and written again, while the weights for as many tokens are {weights:,.0f}" in text
    )
    assert f"allows {longest:,} tokens, which are {longest * per_token / gib:.1f} GiB" in text
    assert f"uses {1000 / longest:.1%}".replace("%", " % of them") in text
    assert f"hold {16 * longest * per_token / gib:.0f} GiB and use {16_000 * per_token / gib:.1f}" in text
    assert f"One block at most is copied for a fork, {16 * per_token / cost.MIB} MiB" in text


def test_lesson_of_pages_counts_the_traffic_of_the_benchmark() -> None:
    bandwidth = 4.8e6  # bytes in a µs
    ns, some, many = (candidates.work(tokens, torch.bfloat16).bytes / bandwidth for tokens in (1, 128, 8192))
    assert f"{1e3 * ns:.1f} ns | {some:.2f} µs | {many:.1f} µs" in lesson()
    assert candidates.work(5, torch.bfloat16).bytes == 16912 * 5 + 512


def test_the_cache_that_the_figure_begins_with_is_the_caches() -> None:
    """What the lesson says of figure 4 in words."""
    cache = PagedKVCache(QWEN3_0_6B, tokens=96, block_size=8, max_context=96)
    first, second = cache.allocate(), cache.allocate()
    steps: tuple[Callable[[], object], ...] = (
        lambda: cache.append([first], [11]),
        lambda: cache.append([second], [6]),
    )
    for step in steps:
        step()
    batch = cache.append([first], [8])
    assert cache.block_table(first) == (0, 1, 3)
    assert f"its block table is {list(cache.block_table(first))}" in lesson()
    assert f"Token 18 is at place 2 of block 3: slot {int(batch.slot_mapping[-1])}" in lesson()
