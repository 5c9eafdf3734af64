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
from chapters.ch06_split_attention import candidates, fused_candidates, targets
from qwen_cuda.benchmarking import Operands, Variant
from qwen_cuda.loading import load_operators

CHAPTER = "ch06_split_attention"
CONTEXTS = (128, 1024, 8192, 32768)
OPS = (targets.OP, targets.FUSED_OP)
CASES: list[dict[str, str | int]] = [{"op": op, "context": context, "batch": 1} for op in OPS for context in CONTEXTS]


@contextmanager
def prepared(op: str, context: int, batch: int) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, which launches one kernel: attention with the plan of a graph for long contexts,
    or the fused form with the plan for this one.

    Raises:
        ValueError: there is no such operator.
    """
    if op not in OPS:
        raise ValueError(f"op is {op!r}; there are {' and '.join(OPS)}.")
    load_operators()
    variant, operands = (_attention if op == targets.OP else _fused)(Shape(context, batch), torch.device("cuda"))
    with variant.inside():
        yield partial(variant.run, operands)


def _attention(shape: Shape, device: torch.device) -> tuple[Variant, Operands]:
    (variant,) = (one for one in candidates.ours(shape, device) if one.name == "ours_long_graph")
    return variant, grouped.operands(shape, device, peers=False)(0)


def _fused(shape: Shape, device: torch.device) -> tuple[Variant, Operands]:
    return next(fused_candidates.ours(shape, device)), fused_candidates.operands(shape, device)(0)
