"""What of chapter 6 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch06_split_attention.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch05_grouped_attention import candidates as grouped
from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch06_split_attention import candidates
from qwen_cuda.loading import load_operators

CHAPTER = "ch06_split_attention"
OP = "paged_attention"
CASES: list[dict[str, str | int]] = [{"op": OP, "context": context, "batch": 1} for context in (128, 1024, 8192, 32768)]


@contextmanager
def prepared(op: str, context: int, batch: int) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, which launches one kernel: with the plan of a graph for long contexts.

    Raises:
        ValueError: there is no such operator.
    """
    if op != OP:
        raise ValueError(f"op is {op!r}; there is {OP}.")
    load_operators()
    shape, device = Shape(context, batch), torch.device("cuda")
    (variant,) = (one for one in candidates.ours(shape, device) if one.name == "ours_long_graph")
    operands = grouped.operands(shape, device, peers=False)(0)
    with variant.inside():
        yield partial(variant.run, operands)
