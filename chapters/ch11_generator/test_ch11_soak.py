"""The soak at a small scale, and that it can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chapters.ch11_generator import soak
from chapters.ch11_generator.generator import Generator


@pytest.fixture(scope="module")
def kernels() -> Generator:
    return Generator("tiny", "cpu", "bfloat16", "kernels")


def test_requests_are_answered_alike_whatever_came_before(kernels: Generator) -> None:
    figures = soak.soak(kernels, 24, different=6, longest=12)
    assert figures["different"] == 6
    assert figures["backend"] == "kernels"


def test_the_set_of_requests_holds_every_kind() -> None:
    wishes = [soak.wish(number, 60) for number in range(soak.DIFFERENT)]
    assert {len(one.prompts) for one in wishes} == {1, 2, 3, 8}
    assert {one.sampling.greedy for one in wishes} == {True, False}
    assert any(one.left_after is not None for one in wishes)
    assert wishes == [soak.wish(number, 60) for number in range(soak.DIFFERENT)]


def test_a_wrong_token_is_noticed(kernels: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def sometimes_wrong(generator: Generator, one: soak.Wish) -> soak.Tokens:
        return [[next(calls)]]

    monkeypatch.setattr(soak, "answer", sometimes_wrong)
    with pytest.raises(AssertionError, match="request 0 was answered with"):
        soak.soak(kernels, 3, different=1)


def test_memory_that_grows_is_noticed(kernels: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((soak.Memory(100, 0), soak.Memory(101, 0), soak.Memory(100, 0), soak.Memory(100, 1 << 30)))
    monkeypatch.setattr(soak.Memory, "now", lambda generator: next(sizes))
    monkeypatch.setattr(soak, "answer", lambda generator, one: [[1]])
    with pytest.raises(AssertionError, match="memory in use grew from 100 to 101 bytes"):
        soak.soak(kernels, 3, different=1)
    with pytest.raises(AssertionError, match="the process grew by"):
        soak.soak(kernels, 3, different=1)


def test_a_request_that_is_not_refused_is_noticed(kernels: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "generate", lambda *arguments: None)
    with pytest.raises(AssertionError, match="was not refused"):
        soak.must_refuse(kernels)


def test_the_command_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "soak", lambda generator, requests: {"requests": requests})
    assert soak.main(["--requests", "3", "--backend", "reference", "--output", str(tmp_path / "soak.json")]) == 0
    assert json.loads((tmp_path / "soak.json").read_text()) == {"requests": 3, "kv_cache": "bf16"}

    def fails(generator: Generator, requests: int) -> None:
        raise AssertionError("a token is wrong")

    monkeypatch.setattr(soak, "soak", fails)
    assert soak.main(["--backend", "reference"]) == 1
