"""What of chapter 10 is put under the profiler.

python -m qwen_cuda.benchmarking.profile chapters.ch10_quantized_kv.profiled
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chapters.ch05_grouped_attention.candidates import Shape
from chapters.ch10_quantized_kv import candidates
from chapters.ch10_quantized_kv import reader_candidates as reader
from qwen_cuda.benchmarking import Operands, Variant
from qwen_cuda.loading import load_operators

CHAPTER = "ch10_quantized_kv"
CASES: list[dict[str, str | int]] = [
    *({"op": candidates.OP, "step": step, "tokens": 8192, "format": "fp8"} for step in ("v1", "v2")),
    *({"op": candidates.OP, "tokens": tokens, "format": name} for name in candidates.FORMATS for tokens in (8192, 1)),
    *(
        {"op": reader.OP, "context": context, "format": name}
        for name in ("fp8_sections", "nvfp4_sections")
        for context in (1024, 8192, 32768)
    ),
]


@contextmanager
def prepared(
    op: str, format: str, tokens: int = 0, context: int = 0, step: str | None = None
) -> Iterator[Callable[[], object]]:
    """A call on a GPU that launches one kernel: the writer on `tokens`, or a step of its ladder, or the reader on a
    `context`, with the plan of a graph for long ones.

    Raises:
        ValueError: there is no such operator, format or step.
    """
    load_operators()
    known = {candidates.OP: candidates.FORMATS, reader.OP: reader.FORMATS}
    if format not in known.get(op, ()):
        there = "; ".join(f"{name} with the formats {', '.join(formats)}" for name, formats in known.items())
        raise ValueError(f"op is {op!r} and format {format!r}; there is {there}.")
    variant, operands = _reader(format, context) if op == reader.OP else _writer(format, tokens, step)
    with variant.inside():
        yield partial(variant.run, operands)


def _writer(name: str, tokens: int, step: str | None) -> tuple[Variant, Operands]:
    variants = [candidates.ours(name), *candidates.ladder(name)]
    variant = next((one for one in variants if one.step == step), None)
    if variant is None:
        raise ValueError(f"step is {step!r}; the ladder has v1 and v2.")
    return variant, candidates.operands(tokens, name, torch.device("cuda"))(0)


def _reader(name: str, context: int) -> tuple[Variant, Operands]:
    shape, device = Shape(context), torch.device("cuda")
    (variant,) = (one for one in reader.ours(name, shape, device) if one.name == "ours_long_graph")
    return variant, reader.operands(name, shape, device)(0)
