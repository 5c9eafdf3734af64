"""The ladder of the decode step: every version draws the tokens of every other, and begins again when it is told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chapters.ch06_split_attention.tiny_story import BF16, PROMPT, TOKENIZER, few_plans, paged
from chapters.ch09_graph_capture.benchmark import LADDER
from chapters.ch09_graph_capture.starting_batch import StartingBatch
from chapters.ch09_graph_capture.steps.v4_dependent_launch import FORBIDDEN, one_after_the_other
from qwen_cuda.building.library import KERNELS
from qwen_cuda.building.sources import Reader, gather
from qwen_cuda.testing.backends import opened

STEPS = 24


@pytest.fixture(scope="module")
def start() -> Iterator[StartingBatch]:
    """Two rows of different lengths; their pages end at different steps."""
    with opened("cpu") as backend:
        yield StartingBatch.of_prompts(
            paged(backend, BF16, plans=few_plans), [PROMPT, TOKENIZER.encode("The cat")], STEPS + 1
        )


def drawn(start: StartingBatch, step: str) -> list[list[int]]:
    decoding = LADDER[step](start)
    decoding.begin()
    for _ in range(STEPS):
        decoding.step()
    first: list[list[int]] = decoding.tokens()
    decoding.begin()
    for _ in range(STEPS):
        decoding.step()
    assert decoding.tokens() == first, "a second run from the start draws the same"
    return first


@pytest.mark.parametrize("step", list(LADDER)[1:])
def test_a_step_of_the_ladder_draws_what_the_host_in_the_loop_draws(step: str, start: StartingBatch) -> None:
    expected = drawn(start, "v1")
    assert [len(row) for row in expected] == [STEPS + 1] * 2
    assert drawn(start, step) == expected


class Calls(TorchDispatchMode):
    """Names of the operators of ours that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "qwen_cuda":
            self.ours.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_step_is_five_launches_a_layer_and_two(start: StartingBatch) -> None:
    """Each operator of a greedy step is one launch, as the lesson counts: 142 for 28 layers."""
    decoding = LADDER["v2"](start)
    decoding.begin()
    with Calls() as calls, torch.inference_mode():
        decoding.enqueue()
    layers = start.model.config.num_hidden_layers
    assert len(calls.ours) == 5 * layers + 2
    assert calls.ours[-2:] == ["qwen_cuda::head_argmax", "qwen_cuda::advance_decode"]
    assert 5 * 28 + 2 == 142


def test_v1_to_v3_are_kept_from_dependent_launch() -> None:
    """The edit still fits the header, and every kernel goes through that line."""
    for library in one_after_the_other():
        reader = Reader(library.edits)
        texts = gather(library.sources[0], [KERNELS / "cuda" / "include"], reader)
        reader.check_all_planted()
        assert not any(FORBIDDEN.old.encode() in text for text in texts.values())
