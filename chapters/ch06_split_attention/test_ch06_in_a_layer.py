"""What attention adds to a layer: the difference of two medians, and the refusal of a machine without a GPU."""

from __future__ import annotations

import pytest
import torch

from chapters.ch06_split_attention import in_a_layer
from chapters.ch06_split_attention.in_a_layer import Attend, Layers, check, marginal_us, plans


def results(**medians: float) -> dict[str, object]:
    return {
        "cases": [{"variant": name, "shape": {"context": 128}, "us": {"median": us}} for name, us in medians.items()]
    }


def test_the_fastest_way_counts_and_what_it_adds() -> None:
    found = marginal_us(results(**{"without attention": 11.0, "a": 14.0, "b": 13.5}), 128)
    assert found == ("b", 2.5)


@pytest.mark.parametrize("some", [results(), results(a=3.0), results(**{"without attention": 3.0})])
def test_no_margin_without_both(some: dict[str, object]) -> None:
    assert marginal_us(some, 128) is None
    assert marginal_us(results(**{"without attention": 1.0, "a": 2.0}), 1024) is None


@pytest.mark.parametrize("context", in_a_layer.CONTEXTS)
def test_plans_that_are_tried_hold_the_context_or_grow(context: int) -> None:
    for plan, merge in plans(context):
        assert plan.partition_size % 16 == 0
        assert merge != "cluster" or plan.partitions in (2, 4, 8, 16)
        assert (plan.partitions - 1) * 16 < context


def test_ways_to_attend_agree_in_each_layer_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_a_layer, "LAYERS", 2)
    layers = Layers(torch.device("cpu"))
    layers.reach(128)
    for plan, merge in plans(128):
        attend = layers.fused(plan, merge, True)

        def wrong(layer: int, qkv: torch.Tensor, right: Attend = attend) -> torch.Tensor:
            return right(layer, qkv) * 1.02

        check(layers, plan, "a plan", attend)
        with pytest.raises(RuntimeError, match="128 tokens, a plan: the fused operator differs"):
            check(layers, plan, "a plan", wrong)


def test_a_layer_is_not_measured_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_a_layer.main(["--device", "cpu"]) == 2
    assert "is measured on a GPU" in capsys.readouterr().err
