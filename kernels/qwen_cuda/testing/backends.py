"""Where an operator can run in a test: in PyTorch, in C++, in the simulator, on a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from qwen_cuda import loading
from qwen_cuda.building import BuildError, Library, toolchain
from qwen_cuda.testing.guards import Guarded
from qwen_cuda.testing.references import REFERENCES

Name = Literal["reference", "cpu", "sim", "cuda"]
NAMES: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True)
class Backend:
    """One place in which operators run. `offered` are those that its kernels are there for: by default all."""

    name: Name
    offered: frozenset[str] = field(default=frozenset(REFERENCES), repr=False)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.name == "cuda" else "cpu")

    @property
    def namespace(self) -> Any:
        """`torch.ops.qwen_cuda` or `torch.ops.qwen_sim`; the reference has none."""
        assert self.name != "reference", "the reference is plain PyTorch and registers no operators"
        return torch.ops.qwen_sim if self.name == "sim" else torch.ops.qwen_cuda

    def offers(self, name: str) -> bool:
        return name in self.offered

    def require(self, name: str) -> None:
        """Skips the test unless operator `name` is there: a learner's file may hold fewer than the product."""
        if not self.offers(name):
            pytest.skip(f"the kernels under test hold {', '.join(sorted(self.offered))}, not {name}")

    def op(self, name: str) -> Callable[..., Any]:
        """Operator `name`. The memory of its outputs is filled with NaN before it runs."""
        assert self.offers(name), f"{name} is none of the operators of this library: {', '.join(sorted(self.offered))}"
        function = REFERENCES[name] if self.name == "reference" else getattr(self.namespace, name)

        @functools.wraps(REFERENCES[name])
        def poisoned(*arguments: Any, **options: Any) -> Any:
            with poisoned_memory():
                return function(*arguments, **options)

        return poisoned

    def place(self, values: Tensor, *, row_padding: int = 0, offset: int = 0) -> Guarded:
        """A copy of `values` on this backend's device, among guards; `.tensor` is what an operator gets."""
        return Guarded.of(values, self.device, row_padding=row_padding, offset=offset)


def unavailable(name: Name) -> str | None:
    """Why this machine has no backend `name`; None when it has."""
    if name != "cuda":
        return None
    if not torch.cuda.is_available():
        return "there is no GPU that PyTorch can use"
    try:
        toolchain.nvcc()
    except BuildError as error:
        return error.sentence
    return None


@contextlib.contextmanager
def opened(name: Name, *libraries: Library) -> Iterator[Backend]:
    """The backend, ready to run, inside the `with`. With `libraries` it runs their kernels in place of the product's,
    and offers only the operators that they export.

    Raises:
        BuildError: something does not build.
    """
    if name == "reference":
        yield Backend(name)
        return
    importlib.import_module("qwen_cuda.operators")  # registers kernels, fakes and gradients, and builds what is missing
    if not libraries:
        if name != "cpu":
            loading.backend(name)
        yield Backend(name)
        return
    with contextlib.ExitStack() as stack:
        exported = {op for library in libraries for op in stack.enter_context(loading.using(library)).launchers}
        yield Backend(name, frozenset(name for name in REFERENCES if name.rstrip("_") in exported))


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """PyTorch fills memory that it allocates with NaN (the largest integer for integers): a kernel that forgets an
    element then leaves a NaN there, and not by luck what a run before it wrote."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


@contextlib.contextmanager
def schedule(seed: int) -> Iterator[None]:
    """The simulator runs its threads and blocks in an order drawn by `seed`; 0 is one after the other."""
    before = os.environ.get("CUDASIM_SEED")
    os.environ["CUDASIM_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDASIM_SEED"]
        else:
            os.environ["CUDASIM_SEED"] = before
