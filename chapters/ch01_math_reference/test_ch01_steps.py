"""The chapter's ladder: every step draws the tokens that transformers draws, with the work that its text promises."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch01_math_reference import steps
from chapters.ch01_math_reference.model_checks import their_greedy_tokens
from chapters.ch01_math_reference.twins import SHAPES, make_twins
from qwen3_ref import Qwen3

NAMES = sorted(path.stem for path in Path(steps.__path__[0]).glob("v*.py"))


def step(name: str) -> ModuleType:
    return importlib.import_module(f"chapters.ch01_math_reference.steps.{name}")


def test_the_ladder_has_its_steps() -> None:
    assert [name[:2] for name in NAMES] == ["v1", "v2", "v3"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["group2-untied", "group4-theta1e4"])
def test_every_step_draws_the_same_tokens_as_transformers(shape: str, dtype: torch.dtype, tmp_path: Path) -> None:
    twins = make_twins(tmp_path, SHAPES[shape], dtype, seed=3)
    for prompt_length in (1, 6):
        prompt = twins.tokens(1, prompt_length, seed=prompt_length)
        want = their_greedy_tokens(twins.theirs, prompt, 24)
        assert len(set(want)) > 3
        for name in NAMES:
            assert step(name).generate(twins.ours, prompt, 24) == want, name


def test_no_new_tokens_are_no_tokens() -> None:
    model = Qwen3.random(SHAPES["group1-tied"])
    for name in NAMES:
        assert step(name).generate(model, torch.tensor([[1, 2]]), 0) == []


def test_each_step_saves_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows sent through the layers and rows of logits, counted, for a prompt of 5 and 4 new tokens."""
    model = Qwen3.random(SHAPES["group1-tied"])
    rows: list[tuple[int, int]] = []
    forward = Qwen3.forward

    def counting(self: Qwen3, token_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        logits = forward(self, token_ids, *args, **kwargs)
        rows.append((token_ids.shape[1], logits.shape[1]))
        return logits

    monkeypatch.setattr(Qwen3, "forward", counting)
    prompt = torch.tensor([[1, 2, 3, 4, 5]])
    counts = {}
    for name in NAMES:
        rows.clear()
        step(name).generate(model, prompt, 4)
        counts[name[:2]] = list(rows)
    assert counts == {
        "v1": [(5, 5), (6, 6), (7, 7), (8, 8)],
        "v2": [(5, 5), (1, 1), (1, 1), (1, 1)],
        "v3": [(5, 1), (1, 1), (1, 1), (1, 1)],
    }
