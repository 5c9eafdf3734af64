"""The engines that can run a model, by name, and which of them is best here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from chapters.ch11_generator.errors import ArgumentError
from chapters.ch11_generator.stages import PLAIN_CACHE, Stages

if TYPE_CHECKING:
    import torch

    from chapters.ch06_split_attention.paged_model import PagedModel
    from chapters.ch09_graph_capture.batch_rows import BatchRow
    from qwen3_ref.generate import Engine


class Engines(Protocol):
    """Makes engines on one set of weights."""

    def __call__(self, max_context: int) -> Engine:
        """One whose cache holds so many tokens."""


@runtime_checkable
class BatchEngines(Engines, Protocol):
    """Also makes rows that are decoded together."""

    def rows(self, contexts: Sequence[int]) -> list[BatchRow]:
        """One for each of up to 8 contexts."""


@dataclass(frozen=True)
class Place:
    """What an engine is made from: the checkpoint's folder, where it runs, and how.

    `report` gets a sentence when a stage cannot be used.
    """

    directory: Path
    device: torch.device
    dtype: torch.dtype
    stages: Stages
    report: Callable[[str], None] | None = None


def _reference(place: Place) -> Engines:
    from qwen3_ref.generate import ReferenceEngine
    from qwen3_ref.model import Qwen3

    place.stages.require_none("reference")
    model = Qwen3.from_pretrained(place.directory, dtype=place.dtype, device=place.device, attention="sdpa")
    return lambda max_context: ReferenceEngine(model, max_context)


def _paged(place: Place) -> Engines:
    from chapters.ch06_split_attention.paged_engine import PagedEngine
    from chapters.ch06_split_attention.paged_model import PagedModel
    from qwen3_ref.model import Qwen3

    place.stages.require_none("paged")
    model = PagedModel(Qwen3.from_pretrained(place.directory, dtype=place.dtype, device=place.device))
    return lambda max_context: PagedEngine(model, max_context)


# --8<-- [start:kernels]
def _kernels(place: Place) -> Engines:
    from chapters.ch06_split_attention.attention import BACKENDS as ATTENTION
    from chapters.ch06_split_attention.paged_model import FUSED, PagedModel
    from chapters.ch08_w8a16_head.quantize import W8Head
    from chapters.ch10_quantized_kv.cache_formats import cache_format
    from chapters.ch10_quantized_kv.quantized_model import QuantizedPagedModel
    from qwen3_ref.model import Qwen3

    stages = place.stages
    if stages.attention not in (FUSED, *ATTENTION):
        names = ", ".join((FUSED, *ATTENTION))
        raise ArgumentError(f"attention is {stages.attention!r}; it must be one of {names}.")
    weights = Qwen3.from_pretrained(place.directory, dtype=place.dtype, device=place.device)
    if stages.kv_cache == PLAIN_CACHE:
        model = PagedModel(weights, attention=stages.attention)
    else:
        model = QuantizedPagedModel(weights, cache_format(stages.kv_cache, weights.config))
    head = W8Head.of(model.head) if stages.w8_head else None
    return _KernelEngines(model, w8_head=head, graphs=stages.graphs, report=place.report)


class _KernelEngines:
    def __init__(self, model: PagedModel, **options: Any) -> None:
        self._model, self._options = model, options

    def __call__(self, max_context: int) -> Engine:
        from chapters.ch09_graph_capture.graph_engine import GraphEngine

        return GraphEngine(self._model, max_context, **self._options)

    def rows(self, contexts: Sequence[int]) -> list[BatchRow]:
        from chapters.ch09_graph_capture.batch_rows import batch_rows

        return batch_rows(self._model, contexts, **self._options)


# --8<-- [end:kernels]

BACKENDS: dict[str, Callable[[Place], Engines]] = {
    "reference": _reference,
    "paged": _paged,
    "kernels": _kernels,
}
"""Name → what loads the weights of a model once and returns what makes engines on them.

`reference` is chapter 1, in PyTorch; `paged` adds chapters 2 to 6; `kernels` is chapters 2 to 10, for 16-bit weights.
"""


def check_backend(name: str, argument: str = "backend") -> str:
    """`name` itself if there is such a backend, or `auto`. `argument` is what an error calls it.

    Raises:
        ArgumentError: there is none of that name.
    """
    if name != "auto" and name not in BACKENDS:
        raise ArgumentError(f"{argument} is {name!r}; it must be auto or one of {', '.join(BACKENDS)}.")
    return name


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int, stages: Stages | None = None
) -> tuple[str, str | None]:
    """The backend for `name`, and a sentence where `auto` could not take the kernels on a GPU.

    On a CPU `auto` is `reference`: the kernels' C++ twins are there to be right. Who sets a switch of the kernels in
    `stages` gets them.

    Raises:
        ArgumentError: there is none of that name.
    """
    if check_backend(name) != "auto":
        return name, None
    if stages not in (None, Stages()):
        return "kernels", None
    if device.type != "cuda":
        return "reference", None
    from qwen_cuda.building import BuildError, toolchain

    reason = None
    if dtype.itemsize != 2:
        reason = f"they take 16-bit weights, and dtype is {str(dtype).removeprefix('torch.')}"
    elif head_dim != 128:
        reason = f"they take heads of 128, and the model's are of {head_dim}"
    else:
        try:
            toolchain.nvcc()
        except BuildError as error:
            reason = error.sentence.rstrip(".")
    if reason is None:
        return "kernels", None
    return "reference", f"The CUDA kernels are not used: {reason}."
