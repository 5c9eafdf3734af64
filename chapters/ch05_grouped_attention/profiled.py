"""What of chapter 5 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch05_grouped_attention.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch05_grouped_attention import candidates
from chapters.ch05_grouped_attention.candidates import Shape
from qwen_cuda.loading import load_operators

CHAPTER = "ch05_grouped_attention"
OP = "paged_attention_grouped"
CASES: list[dict[str, str | int]] = [
    *({"op": OP, "step": step, "context": 1024, "batch": 64} for step in ("v1", "v2", "v3", "v4")),
    {"op": OP, "context": 1024, "batch": 64},
    {"op": OP, "context": 128, "batch": 1},
    {"op": OP, "context": 8192, "batch": 1},
]


@contextmanager
def prepared(op: str, context: int, batch: int, step: str | None = None) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator or step.
    """
    load_operators()
    shape = Shape(context, batch)
    variants = [candidates.grouped(shape)] if step is None else list(candidates.ladder(shape))
    variant = next((one for one in variants if one.step == step and op == OP), None)
    if variant is None:
        raise ValueError(f"op is {op!r} and step {step!r}; there is {OP} with the steps v1 to v4 or none.")
    operands = candidates.operands(shape, torch.device("cuda"), peers=False)(0)
    with variant.inside():
        yield partial(variant.run, operands)
