"""What of chapter 7 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch07_decode_gemv.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch07_decode_gemv import candidates
from chapters.ch07_decode_gemv.candidates import LAYERS
from qwen_cuda.loading import load_operators

CHAPTER = "ch07_decode_gemv"
CASES: list[dict[str, str | int]] = [{"op": layer.op} for layer in LAYERS]


@contextmanager
def prepared(op: str) -> Iterator[Callable[[], object]]:
    """A call of our operator on a GPU for one layer of the model, which launches one kernel.

    Raises:
        ValueError: there is no such layer.
    """
    layer = next((one for one in LAYERS if one.op == op), None)
    if layer is None:
        raise ValueError(f"op is {op!r}; there is {', '.join(one.op for one in LAYERS)}.")
    load_operators()
    variant = next(candidates.ours(layer, on_gpu=False))
    operands = candidates.operands(layer, torch.device("cuda"))(0)
    with variant.inside():
        yield partial(variant.run, operands)
