"""The engines that can run a model, by name. The kernel stages add theirs here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chapters.ch11_generator.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from qwen3_ref.generate import Engine

EngineMaker = Callable[[int], "Engine"]
"""Makes an engine whose cache holds the given number of tokens. Weights are shared by all engines of one maker."""


class Backend(Protocol):
    """Loads the weights of a model once and returns what makes engines on them."""

    def __call__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> EngineMaker: ...


def _reference(directory: Path, device: torch.device, dtype: torch.dtype) -> EngineMaker:
    from qwen3_ref.generate import ReferenceEngine
    from qwen3_ref.model import Qwen3

    model = Qwen3.from_pretrained(directory, dtype=dtype, device=device, attention="sdpa")
    return lambda max_context: ReferenceEngine(model, max_context)


def _paged(directory: Path, device: torch.device, dtype: torch.dtype) -> EngineMaker:
    from chapters.ch06_split_attention.paged_engine import PagedEngine
    from chapters.ch06_split_attention.paged_model import PagedModel
    from qwen3_ref.model import Qwen3

    model = PagedModel(Qwen3.from_pretrained(directory, dtype=dtype, device=device))
    return lambda max_context: PagedEngine(model, max_context)


BACKENDS: dict[str, Backend] = {"reference": _reference, "paged": _paged}
"""Name → backend. `auto` takes the first."""


def check_backend(name: str, argument: str = "backend") -> str:
    """The name of a backend: `auto` becomes the first of `BACKENDS`. `argument` is what an error calls it.

    Raises:
        ArgumentError: there is none of that name.
    """
    if name == "auto":
        return next(iter(BACKENDS))
    if name not in BACKENDS:
        raise ArgumentError(f"{argument} is {name!r}; it must be auto or one of {', '.join(BACKENDS)}.")
    return name
