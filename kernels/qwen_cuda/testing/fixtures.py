"""The pytest side, loaded by the repository's conftest.py: fixtures, and which tests `make exercise` runs.

Nothing heavy is imported before a test needs it: suites without kernels load this too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    from _pytest.mark.structures import ParameterSet

    from qwen_cuda.building import Library
    from qwen_cuda.testing.backends import Backend, Name

_EXERCISE = os.environ.get("QWEN_EXERCISE")
_NAMES = ("sim", "cuda") if _EXERCISE else ("reference", "cpu", "sim", "cuda")


def _parameters(*names: str) -> list[ParameterSet]:
    return [pytest.param(name, marks=[pytest.mark.cuda] * (name == "cuda")) for name in names]


@pytest.fixture(scope="module", params=_parameters(*_NAMES))
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each place in which an operator can run; those that this machine lacks are skipped with the reason.

    In a run of `make exercise` only the simulator and the GPU, with the learner's kernels.
    """
    from qwen_cuda.testing.exercise import learners_libraries

    yield from _opened(request.param, learners_libraries)


@pytest.fixture(scope="module", params=_parameters("cpu", "sim", "cuda"))
def registered_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The backends whose operators PyTorch knows: for tests of schemas, refusals, tracing. No part of an exercise."""
    yield from _opened(request.param, lambda name: ())


def _opened(name: Name, libraries_for: Callable[[Any], tuple[Library, ...]]) -> Iterator[Backend]:
    from qwen_cuda.building import BuildError
    from qwen_cuda.testing.backends import opened, unavailable

    if reason := unavailable(name):
        pytest.skip(reason)
    failure = None
    with contextlib.ExitStack() as stack:
        try:
            backend = stack.enter_context(opened(name, *libraries_for(name)))
        except BuildError as error:
            failure = str(error)
        if failure is not None:  # outside of the handler: its traceback would be told as well
            pytest.fail(failure, pytrace=False)
        yield backend


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch's small products on one thread: others that spin take the cores on which the simulator runs."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def operators() -> None:
    """The operators of qwen_cuda are registered."""
    from qwen_cuda.loading import load_operators

    load_operators()


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark's ceilings are those of `qwen_cuda.testing.benchmarks` and take no time."""
    from qwen_cuda.testing.benchmarks import CEILINGS

    monkeypatch.setattr("qwen_cuda.benchmarking.report.measure_ceilings", lambda *args: CEILINGS)


@pytest.fixture(params=_parameters("cuda"))
def gpu_device(request: pytest.FixtureRequest) -> torch.device:
    """The GPU; where there is none the test is skipped."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU that PyTorch can use")
    return torch.device("cuda")


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Collects the mutants that a module's tests catch, and tells at its end how many of `MUTANTS` they are."""
    caught: list[str] = []
    yield caught
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{len(caught)} of {len(request.module.MUTANTS)} mutants of {request.module.SOURCE} caught")


def pytest_configure(config: pytest.Config) -> None:
    """A learner reads what went wrong and in which case; the way there through PyTorch is of no interest."""
    if _EXERCISE and config.option.tbstyle == "auto":
        config.option.tbstyle = "short"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run of `make exercise`: only the tests of that chapter that run a kernel, which is the learner's."""
    if not _EXERCISE:
        return
    ours = [item for item in items if _concerns_the_learner(item)]
    left_out = [item for item in items if item not in set(ours)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = ours


def _concerns_the_learner(item: pytest.Item) -> bool:
    chapter = Path(item.path).parent.name
    return chapter == _EXERCISE and "backend" in getattr(item, "fixturenames", ())
