"""Settings of this chapter's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on one thread: the threads' barriers would cost more than the work, by far on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Collects the mutants that a module's tests catch, and tells at its end how many of `MUTANTS` they are."""
    caught: list[str] = []
    yield caught
    kind = request.module.__name__.rpartition("test_ch01_")[2].replace("_", " ")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{len(caught)} of {len(request.module.MUTANTS)} {kind} caught")
