"""What of chapter 4 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch04_paged_kv.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch04_paged_kv import candidates
from qwen_cuda.loading import load_operators

CHAPTER = "ch04_paged_kv"
_MANY = 8192
CASES: list[dict[str, str | int]] = [
    *({"op": candidates.OP, "step": step, "tokens": _MANY} for step in ("v2", "v3", "v4", "v5")),
    {"op": candidates.OP, "tokens": _MANY},
    {"op": candidates.OP, "tokens": 1},
]


@contextmanager
def prepared(op: str, tokens: int, dtype: str = "bfloat16", step: str | None = None) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator, step or dtype.
    """
    load_operators()
    if op != candidates.OP or dtype not in ("bfloat16", "float16"):
        raise ValueError(f"op is {op!r} and dtype {dtype!r}; there is {candidates.OP} in float16 and bfloat16.")
    variants = [candidates.ours(), *candidates.ladder()]
    variant = next((one for one in variants if one.step == step), None)
    if variant is None or step == "v1":
        raise ValueError(f"step is {step!r}; there are v2 to v5, each one kernel.")
    operands = candidates.operands(tokens, getattr(torch, dtype), torch.device("cuda"))(0)
    with variant.inside():
        yield partial(variant.run, operands)
