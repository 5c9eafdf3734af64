"""Plans: the rule for unknown GPUs, the measured table and its file, and that a call follows them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch05_grouped_attention.paged_cases import Heads, paged_case
from chapters.ch06_split_attention import backends, dispatch
from chapters.ch06_split_attention.attention import paged_attention, plan_for
from chapters.ch06_split_attention.dispatch import LEAST_PARTITION, Plan, Row, chosen, default_plan, table, write_table
from qwen_cuda.testing.strategies import examples
from qwen_cuda.testing.ulp import assert_same_bits

SOME = paged_case((0, 1, 37, 130), Heads(kv_heads=2, group=2), seed=1)


def test_a_plan_of_one_partition_is_chapter_5s_kernel() -> None:
    one = Plan(LEAST_PARTITION, 1)
    assert one.workspace(SOME.q, 2) is None
    assert_same_bits(paged_attention(*SOME.arguments, plan=one), paged_attention(*SOME.arguments, backend="grouped"))


def test_the_merge_of_a_plan_reaches_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(backends, "paged_attention_split", lambda *given, merge: asked.append(merge))
    for plan in (Plan(16, 4), Plan(16, 4, "cluster"), Plan(16, 5, "last_block")):
        paged_attention(*SOME.arguments, plan=plan)
    assert asked == ["auto", "cluster", "last_block"]


def test_a_callers_workspace_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(16, 5)
    workspace = plan.workspace(SOME.q, 2)
    assert workspace is not None
    paged_attention(*SOME.arguments, plan=plan, workspace=workspace)
    assert workspace.any()
    given = paged_attention(*SOME.arguments, plan=plan, workspace=workspace)
    assert_same_bits(paged_attention(*SOME.arguments, plan=plan), given)


@examples(200)
@given(st.integers(1, 512), st.integers(0, 131072), st.sampled_from([1, 16, 84, 108, 132, 170]))
def test_the_default_plan_fills_the_gpu_once(heads: int, context: int, sms: int) -> None:
    plan = default_plan(heads, context, sms)
    assert plan.partitions >= 1
    assert plan.partitions == 1 or plan.partitions * heads <= sms
    needed = -(-max(context, 1) // LEAST_PARTITION)
    assert plan.partitions < 2 * needed, "no cluster is twice as large as it must be"
    fits = plan.partitions in (1, 2, 4, 8)
    assert fits or plan.merge == "last_block"
    assert plan.partitions == needed or plan.merge == "auto" or 2 * plan.partitions * heads > sms


def test_the_default_plan_takes_clusters_of_at_most_eight_where_all_blocks_run_at_once() -> None:
    assert default_plan(8, 32768, 132) == Plan(LEAST_PARTITION, 16, "last_block")
    assert default_plan(8, 600, 132) == Plan(LEAST_PARTITION, 8), "five have tokens"
    assert default_plan(16, 32768, 132) == Plan(LEAST_PARTITION, 8)
    assert default_plan(20, 32768, 132) == Plan(LEAST_PARTITION, 6, "last_block"), "a cluster of 8 is too many"
    assert default_plan(8, 128, 132) == default_plan(256, 256, 132) == Plan(LEAST_PARTITION, 1)
    assert default_plan(256, 32768, 132) == Plan(512, 1), "no kernel for short contexts"


def test_the_nearest_measured_row_is_chosen() -> None:
    rows = [
        Row(8, 128, 128, 1, merge="auto"),
        Row(8, 1024, 64, 16),
        Row(8, 8192, 128, 16, merge="cluster"),
        Row(64, 8192, 256, 4),
    ]
    assert chosen(rows, 8, 1) == chosen(rows, 8, 128) == Plan(128, 1)
    assert chosen(rows, 8, 129) == Plan(64, 16, "last_block"), "a row that does not say who merges"
    assert chosen(rows, 10, 5000) == Plan(128, 16, "cluster")
    assert chosen(rows, 8, 10**6) == Plan(128, 16, "cluster"), "the longest that was measured"
    assert chosen(rows, 32, 128) == Plan(256, 4, "last_block"), "32 is nearer to 64 than to 8, by their ratio"
    assert chosen((), 8, 128) is None


def test_the_table_is_written_one_architecture_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    assert table(path) == {}
    table.cache_clear()
    write_table("sm_90", [Row(8, 128, 128, 1)], path)
    write_table("sm_120", [Row(8, 128, 64, 2), Row(8, 128, 64, 4, "fused_decode_attention", "cluster")], path)
    write_table("sm_90", [Row(8, 256, 128, 2)], path)
    assert table(path) == {
        "sm_90": (Row(8, 256, 128, 2),),
        "sm_120": (Row(8, 128, 64, 2), Row(8, 128, 64, 4, "fused_decode_attention", "cluster")),
    }
    assert [file.name for file in tmp_path.iterdir()] == ["dispatch.json"]


ROW = '"heads": 8, "context": 128, "partition_size": 64, "partitions": 2'


def test_a_row_without_operator_and_merge_is_one_of_paged_attention_by_the_last_block(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    path.write_text('{"sm_90": [{' + ROW + "}]}")
    assert table(path)["sm_90"] == (Row(8, 128, 64, 2, "paged_attention", "last_block"),)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"sm_90": [{"heads": 8}]}',
        '{"sm_90": 3}',
        '{"sm_90": [{' + ROW + ', "merge": "blocks"}]}',
        '{"sm_90": [{' + ROW + ', "op": "attention"}]}',
    ],
)
def test_a_broken_table_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dispatch.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^dispatch\.json is no table of plans: .* writes one\.$"):
        table(path)


def test_the_committed_table_holds_plans_that_the_kernel_takes() -> None:
    for rows in table().values():
        assert rows
        for row in rows:
            assert row.partition_size % 16 == 0
            assert 1 <= row.partitions <= 65535
            assert row.merge != "cluster" or row.partitions in (2, 4, 8, 16)


def test_the_choice_follows_the_table_of_the_devices_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Row(8, 4096, 64, 7), Row(8, 4096, 64, 8, "fused_decode_attention", "cluster")
    monkeypatch.setattr(dispatch, "table", lambda: {"sm_90": both, "sm_89": both[:1]})
    monkeypatch.setattr(dispatch, "_device", lambda kind, index: ("sm_90", 132))
    gpu = torch.device("cuda")
    assert plan_for(1, 8, 1000, gpu) == plan_for(1, 8, 1000, gpu, op="paged_attention") == Plan(64, 7, "last_block")
    assert plan_for(1, 8, 1000, gpu, op="fused_decode_attention") == Plan(64, 8, "cluster")
    monkeypatch.setattr(dispatch, "_device", lambda kind, index: ("sm_89", 128))
    assert plan_for(1, 8, 32768, gpu, op="fused_decode_attention") == Plan(LEAST_PARTITION, 16, "last_block")
    assert plan_for(1, 8, 1000, gpu, op="paged_attention_fp8") == Plan(64, 7, "last_block"), "until it is measured"
    fp8 = Row(8, 4096, 64, 9, "paged_attention_fp8")
    monkeypatch.setattr(dispatch, "table", lambda: {"sm_89": (*both, fp8)})
    assert plan_for(1, 8, 1000, gpu, op="paged_attention_fp8") == Plan(64, 9, "last_block")
    monkeypatch.setattr(dispatch, "_device", lambda kind, index: ("sm_80", 108))
    assert plan_for(1, 8, 32768, gpu) == Plan(LEAST_PARTITION, 13, "last_block")
    assert plan_for(0, 8, 32768, gpu).partitions == 108
