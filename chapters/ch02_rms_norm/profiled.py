"""What of chapter 2 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch02_rms_norm.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch02_rms_norm import candidates
from chapters.ch02_rms_norm.targets import HIDDEN
from qwen_cuda.loading import load_operators

CHAPTER = "ch02_rms_norm"
_MANY = 8192
CASES: list[dict[str, str | int]] = [
    *({"op": "rms_norm", "step": step, "rows": _MANY, "hidden": HIDDEN} for step in ("v1", "v2", "v3", "v4")),
    {"op": "rms_norm", "rows": _MANY, "hidden": HIDDEN},
    {"op": "add_rms_norm", "rows": _MANY, "hidden": HIDDEN},
    {"op": "rms_norm", "rows": 1, "hidden": HIDDEN},
]


@contextmanager
def prepared(
    op: str, rows: int, hidden: int, dtype: str = "bfloat16", step: str | None = None
) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator, step or dtype.
    """
    load_operators()
    number_type = getattr(torch, dtype, None)
    if op not in candidates.OPS or number_type not in candidates.ULPS:
        raise ValueError(
            f"op is {op!r} and dtype {dtype!r}; there are {', '.join(candidates.OPS)} in float16, bfloat16, float32."
        )
    variants = candidates.ours(op, number_type) if step is None else candidates.ladder(op, number_type)
    variant = next((one for one in variants if one.step == step), None)
    if variant is None:
        raise ValueError(f"step is {step!r}; no step of this name has {op}.")
    operands = candidates.operands(op, rows, hidden, number_type, torch.device("cuda"))(0)
    with variant.inside():
        yield partial(variant.run, operands)
