"""The lesson's quotations are what the simulator, the operators and the exercise really say; its counts are traced."""

from __future__ import annotations

import re

import pytest
import torch

from chapters.ch05_grouped_attention import faults
from chapters.ch05_grouped_attention.paged_cases import Heads, paged_case
from qwen3_ref import QWEN3_0_6B, cost
from qwen_cuda import simulator
from qwen_cuda.building import ROOT, Library, build
from qwen_cuda.testing.quotations import filled

TOKENS, KV_HEADS = 256, 2
VERSIONS = {path.name[:2]: path for path in sorted(faults.STEPS.glob("v*.cu"))}
VERSIONS["engine"] = ROOT / "kernels" / "cuda" / "paged_attention_grouped.cu"


def words() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """All that these tests run, in one parallel build."""
    build(*faults.FAULTS.values(), *(Library("sim", (path,), "checked") for path in VERSIONS.values()))


@pytest.mark.parametrize(("order", "right"), [("falling", True), ("rising", False)])
def test_a_forgotten_rescale_shows_only_where_the_maximum_rises(order: str, right: bool) -> None:
    scores = torch.linspace(4, -4, 40).bfloat16().float()
    scores = scores if order == "falling" else scores.flip(0)
    values = torch.rand(40, 128, generator=torch.Generator().manual_seed(0)) + 0.5
    out = faults.run(faults.FAULTS["rescale"], faults.of_scores(scores, values))[0, 0].double()
    truth = torch.softmax(scores.double(), 0) @ values.bfloat16().double()
    assert bool(((out - truth).abs() <= truth * 2**-8).all()) == right
    if not right:
        assert float((out / truth).min()) > 2


def test_a_maximum_of_minus_infinity_spoils_short_contexts_alone() -> None:
    spoilt = [
        tokens
        for tokens in range(1, 13)
        if faults.run(faults.FAULTS["infinity"], faults.of_scores(torch.zeros(tokens), torch.ones(tokens, 128)))
        .isnan()
        .any()
    ]
    assert spoilt == [1, 2, 3, 4]


def test_the_simulator_sees_the_race_of_two_heads_and_none_of_one() -> None:
    said = faults.barrier()
    assert "a race with" in said
    assert re.search(r"v4_several_warps\.cu:\d+", said)
    alone = faults.run(faults.FAULTS["barrier"], faults.of_scores(torch.zeros(64), torch.ones(64, 128)))
    assert bool((alone == 1).all())


def test_lesson_of_grouped_attention_quotes_every_report_word_for_word() -> None:
    lesson = faults.LESSON.read_text(encoding="utf-8")
    reports = faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", lesson)) == set(reports)
    assert filled(lesson, reports) == lesson, "run `python -m chapters.ch05_grouped_attention.faults sync`"
    for name, text in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", text), name


def row(name: str) -> list[str]:
    """Of the lesson's table of counts."""
    lines = faults.LESSON.read_text(encoding="utf-8").splitlines()
    return [cell.strip() for cell in next(line for line in lines if line.startswith(f"| {name} |")).split("|")[2:-1]]


def number(text: str) -> float:
    over, _, under = text.replace(",", "").partition("/")
    return float(over) / float(under or 1)


def test_loads_and_looks_in_the_lesson_are_those_that_are_traced() -> None:
    some = paged_case((TOKENS,), Heads(kv_heads=KV_HEADS, group=2))
    loads, moved, looks = [], [], []
    for path in VERSIONS.values():
        with simulator.trace(Library("sim", (path,), "checked")) as trace:
            torch.ops.qwen_sim.paged_attention_grouped(*some.arguments)
        cached = [r for r in trace.where(space="global", kind="load") if r.target in ("k_cache", "v_cache")]
        loads.append(len(cached) / (TOKENS * KV_HEADS))
        moved.append(32 * sum(r.transactions.sectors for r in cached) / (TOKENS * KV_HEADS))
        looks.append(len(trace.where(target="block_table")) / (TOKENS * KV_HEADS))
    assert [number(cell) for cell in row("load instructions of a warp, K and V")] == loads
    assert [number(cell) for cell in row("bytes of K and V")] == moved
    assert [number(cell) for cell in row("looks into the block table")] == looks


def test_shuffles_and_exponentials_in_the_lesson_follow_from_the_mapping() -> None:
    """Streams of `lanes` lanes that take `run` tokens a turn, in a block of `warps` warps; a group of two."""
    mappings = {"v1": (32, 1, 1), "v2": (32, 1, 1), "v3": (16, 4, 1), "v4": (16, 4, 8), "engine": (8, 4, 8)}
    for name, (lanes, run, _) in mappings.items():
        source = VERSIONS[name].read_text(encoding="utf-8") + (
            (ROOT / "kernels/cuda/include/paged_attention.cuh").read_text(encoding="utf-8") if name == "engine" else ""
        )
        assert run == 1 or re.search(rf"kRun = (kGroup <= 4 \? )?{run}\b", source), name
        assert lanes == 32 or re.search(r"kLanes = kHeadDim / 8|kDims = kGroup <= 2 \? 16 : 8", source), name
    shuffles, exponentials, on_the_way = [], [], []
    for lanes, run, warps in mappings.values():
        tokens = 32 // lanes * run  # of a warp's turn
        shuffles.append(2 * run * (lanes.bit_length() - 1) / tokens)
        exponentials.append(2 * (run + 1) / tokens)
        on_the_way.append(warps * tokens * 512)
    assert [number(cell) for cell in row("shuffles for scores")] == shuffles
    assert [number(cell) for cell in row("exponentials of a warp")] == exponentials
    assert [number(cell) for cell in row("bytes that a block has on their way")] == on_the_way


def test_lesson_of_grouped_attention_counts_as_the_model_does() -> None:
    text, mebi = words(), 2**20
    weights = cost.layer_weight_bytes(QWEN3_0_6B) + cost.head_weight_bytes(QWEN3_0_6B)
    a_token = cost.kv_bytes_per_token(QWEN3_0_6B)
    assert f"{weights / mebi:,.0f} MiB of weights, and {a_token // 1024} KiB of keys and values" in text
    assert f"From {weights / a_token:,.0f} tokens on, the cache is more than the model." in text
    assert f"that point comes at {weights / a_token / QWEN3_0_6B.group_size:,.0f} tokens" in text
    layers = QWEN3_0_6B.num_hidden_layers
    a_layer = a_token // layers
    assert rf"= {a_layer}\, t$ bytes of keys and values" in text
    assert rf"= {4 * QWEN3_0_6B.q_size}\, t$ floating-point operations" in text
    for context in (128, 1024, 8192, 32768):
        us = a_layer * context / 4.8e6
        size = f"{a_layer * context / mebi:g} MiB"
        assert f"| {context:,} | {size} | {us:.2f} µs | {2 * us:.2f} µs | {layers * us:.1f} µs |" in text
