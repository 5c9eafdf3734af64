"""What of chapter 10 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch10_quantized_kv.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch10_quantized_kv import candidates
from qwen_cuda.loading import load_operators

CHAPTER = "ch10_quantized_kv"
CASES: list[dict[str, str | int]] = [
    *({"op": candidates.OP, "step": step, "tokens": 8192, "format": "fp8"} for step in ("v1", "v2")),
    *({"op": candidates.OP, "tokens": tokens, "format": name} for name in candidates.FORMATS for tokens in (8192, 1)),
]


@contextmanager
def prepared(op: str, tokens: int, format: str, step: str | None = None) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator, format or step.
    """
    load_operators()
    if op != candidates.OP or format not in candidates.FORMATS:
        known = ", ".join(candidates.FORMATS)
        raise ValueError(f"op is {op!r} and format {format!r}; there is {candidates.OP} with the formats {known}.")
    variants = [candidates.ours(format), *candidates.ladder(format)]
    variant = next((one for one in variants if one.step == step), None)
    if variant is None:
        raise ValueError(f"step is {step!r}; the ladder has v1 and v2.")
    operands = candidates.operands(tokens, format, torch.device("cuda"))(0)
    with variant.inside():
        yield partial(variant.run, operands)
