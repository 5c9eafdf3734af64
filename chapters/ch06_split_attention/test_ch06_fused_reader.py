"""The fused kernel's reader as its tuning changes it, and as Turing runs it: in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from chapters.ch05_grouped_attention.grouped_checks import GROUPS
from chapters.ch05_grouped_attention.paged_cases import FP16, Heads
from chapters.ch06_split_attention import fused_tuning
from chapters.ch06_split_attention.fused_cases import NAME, fused, fused_case
from chapters.ch06_split_attention.fused_checks import check_cuts
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import Backend, opened

LENS, CUT = (333, 17, 0, 400), (160, 3)


def edited(*edits: Edit) -> Library:
    return replace(default_library(NAME, "sim"), edits=edits, quick=True)


AS_IT_IS = edited()
ONE_AHEAD = edited(*fused_tuning.EDITS["one turn ahead"])
BY_SHUFFLES = edited(Edit("tile_reader.cuh", "mma_m16n8k16<T>(", "mma_of_bf16_by_shuffles(", 3))


@pytest.fixture(scope="module")
def as_it_is() -> Iterator[Backend]:
    build(AS_IT_IS, ONE_AHEAD, BY_SHUFFLES)
    with opened("sim", AS_IT_IS) as backend:
        yield backend


@pytest.mark.parametrize("heads", [Heads(1, 2), Heads(1, 1, dtype=FP16), Heads(1, 8)], ids=str)
def test_one_turn_ahead_or_two_give_the_same_bits(as_it_is: Backend, heads: Heads) -> None:
    some = fused_case(LENS, heads, seed=52)
    expected = fused(as_it_is, some, CUT)
    with opened("sim", ONE_AHEAD) as one_ahead:
        fused(one_ahead, some, CUT).assert_same(expected)


@pytest.mark.usefixtures("as_it_is")
def test_bfloat16_is_right_where_no_instruction_multiplies_its_tiles() -> None:
    """As compute capability 7.5 computes it."""
    with opened("sim", BY_SHUFFLES) as turing:
        for group in GROUPS:
            check_cuts(turing, fused_case((37, 5, 290), Heads(1, group), seed=group), (16, 4), (512, 1))


def test_the_fused_kernel_is_tuned_on_short_and_long_contexts() -> None:
    trials = list(fused_tuning.trials(torch.device("cpu")))
    assert [trial.work.shape["context"] for trial in trials] == list(fused_tuning.CONTEXTS)
    assert {trial.work.op for trial in trials} == {NAME}


def test_the_tuning_of_the_fused_kernel_names_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    monkeypatch.setattr(fused_tuning, "tune", lambda results, about, argv, libraries, trials: named.extend(libraries))
    fused_tuning.main([])
    assert named == ["as it is", "one turn ahead", "without programmatic dependent launch"]
