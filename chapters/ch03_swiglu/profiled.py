"""What of chapter 3 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch03_swiglu.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch03_swiglu import candidates
from chapters.ch03_swiglu.targets import SIZE
from qwen_cuda.loading import load_operators

CHAPTER = "ch03_swiglu"
_MANY = 8192
CASES: list[dict[str, str | int]] = [
    *({"op": "silu_mul", "step": step, "rows": _MANY, "size": SIZE} for step in ("v1", "v2", "v3")),
    {"op": "silu_mul", "rows": _MANY, "size": SIZE},
    {"op": "silu_mul", "rows": 1, "size": SIZE},
]


@contextmanager
def prepared(
    op: str, rows: int, size: int, dtype: str = "bfloat16", step: str | None = None
) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator, step or dtype.
    """
    load_operators()
    number_type = getattr(torch, dtype, None)
    if op != "silu_mul" or number_type not in candidates.ULPS:
        raise ValueError(f"op is {op!r} and dtype {dtype!r}; there is silu_mul in float16, bfloat16, float32.")
    variants = candidates.ours(number_type) if step is None else candidates.ladder(number_type)
    variant = next((one for one in variants if one.step == step), None)
    if variant is None:
        raise ValueError(f"step is {step!r}; silu_mul has no step of this name.")
    operands = candidates.operands(rows, size, number_type, torch.device("cuda"))(0)
    with variant.inside():
        yield partial(variant.run, operands)
