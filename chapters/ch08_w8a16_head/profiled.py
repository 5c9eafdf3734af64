"""What of chapter 8 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch08_w8a16_head.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch08_w8a16_head import candidates
from chapters.ch08_w8a16_head.candidates import OPS, Shape
from chapters.ch08_w8a16_head.targets import K, N
from qwen_cuda.loading import load_operators

CHAPTER = "ch08_w8a16_head"
CASES: list[dict[str, str | int]] = [
    *({"op": "w8a16_linear", "step": step, "batch": 1, "k": K, "n": N} for step in ("v1", "v2", "v3")),
    *({"op": "w8a16_linear", "batch": batch, "k": K, "n": N} for batch in (1, 4, 8)),
    {"op": "w8a16_argmax", "batch": 1, "k": K, "n": N},
    {"op": "head_argmax", "batch": 1, "k": K, "n": N},
]


@contextmanager
def prepared(op: str, batch: int, k: int, n: int, step: str | None = None) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU, or of a step of the ladder, that launches one kernel.

    Raises:
        ValueError: there is no such operator of ours, or no such step.
    """
    load_operators()
    device, shape = torch.device("cuda"), Shape(batch, k, n)
    known = next((one for one in OPS if one == op and one != "bf16_linear"), None)
    if known is None:
        raise ValueError(f"op is {op!r}; there are w8a16_linear, w8a16_argmax and head_argmax.")
    variants = candidates.variants(known, shape, device) if step is None else candidates.ladder(shape)
    variant = next((one for one in variants if one.step == step and (step is None or op == "w8a16_linear")), None)
    if variant is None:
        raise ValueError(f"step is {step!r}; {op} has no step of this name.")
    operands = candidates.operands(known, shape, device)(0)
    with variant.inside():
        yield partial(variant.run, operands)
