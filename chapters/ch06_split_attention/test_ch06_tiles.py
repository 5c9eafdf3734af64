"""The candidate with its products on Tensor Cores keeps what chapters 5 and 6 promise, in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from chapters.ch05_grouped_attention import grouped_checks
from chapters.ch05_grouped_attention.paged_cases import BF16, FP16, Heads, paged_case
from chapters.ch06_split_attention import fused_checks, fused_tuning, split_checks, tiles
from chapters.ch06_split_attention.split_cases import layout_of, used_workspace
from qwen_cuda.building import Edit, Library, build
from qwen_cuda.loading import default_library
from qwen_cuda.testing.backends import Backend, opened
from qwen_cuda.testing.ulp import assert_same_bits


def edited(kernel: str, edits: tuple[Edit, ...]) -> Library:
    return replace(default_library(kernel, "sim"), edits=edits, quick=True)


@pytest.fixture(scope="module")
def candidates() -> Iterator[Backend]:
    libraries = [
        edited("paged_attention_grouped", tiles.GROUPED),
        edited("paged_attention_split", tiles.SPLIT),
        edited("fused_decode_attention", tiles.FUSED),
    ]
    build(*libraries)
    with opened("sim", *libraries) as backend:
        yield backend


@pytest.mark.parametrize(
    "check",
    [
        *(c for c in grouped_checks.GROUPED_CHECKS if c not in grouped_checks.LARGE),
        *(c for c in split_checks.SPLIT_CHECKS if c is not split_checks.check_merge_of_any_partials),
        *fused_checks.FUSED_CHECKS,
    ],
    ids=lambda check: check.__name__,
)
def test_products_on_tensor_cores(candidates: Backend, check: Callable[[Backend], None]) -> None:
    check(candidates)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_no_bit_of_a_weight_is_lost(candidates: Backend, dtype: torch.dtype) -> None:
    """Two tokens, with values of 0 and 1: o is the weight of the second, l the sum of both, one of which is 1."""
    some = paged_case((2,), Heads(kv_heads=16, group=8, dtype=dtype), seed=51)
    for token in range(2):
        some.v_cache[some.block_table[0, 0], token] = token
    layout = layout_of(some, 1)
    workspace = used_workspace(layout)
    candidates.op("paged_attention_partials")(*some.arguments, 16, 1, workspace)
    parts = layout.parts(workspace)
    weight, total = parts.o[..., 0].double(), parts.l.double()
    first_is_larger = weight < 1
    assert 32 < int(first_is_larger.sum()) < 96
    assert float((weight - (total - 1))[first_is_larger].abs().max()) <= 2.0**-24  # of a sum that is rounded once


def test_two_turns_ahead_give_the_same_bits(candidates: Backend) -> None:
    name = f"{tiles.NAME}, two turns ahead"
    some, cut = paged_case((333, 17, 0, 400), Heads(kv_heads=1, group=2), seed=52), (32, 2)
    expected = split_checks.split(candidates, some, cut)
    with opened("sim", edited("paged_attention_split", tiles.by_name(tiles.SPLIT)[name])) as ahead:
        assert_same_bits(split_checks.split(ahead, some, cut), expected)


def test_a_gpu_without_tiles_of_bfloat16_has_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, names in (((7, 5), 0), ((8, 0), 2)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda it=capability: it)
        assert len(tiles.by_name(tiles.SPLIT)) == names


def test_the_fused_kernel_is_tuned_on_short_and_long_contexts() -> None:
    trials = list(fused_tuning.trials(torch.device("cpu")))
    assert [trial.work.shape["context"] for trial in trials] == list(fused_tuning.CONTEXTS)
    assert {trial.work.op for trial in trials} == {"fused_decode_attention"}


def test_the_tuning_of_the_fused_kernel_names_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_tuning, "tune", lambda results, about, argv, libraries, trials: len(libraries))
    assert fused_tuning.main([]) == 4, "as it is, two candidates, and without dependent launches"
