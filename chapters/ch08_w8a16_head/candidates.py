"""Who takes part in chapter 8's benchmark: our heads, int8 and bf16, the steps of the ladder, and the peers.

Four operations, each with operands of its own. `w8a16_linear` and `w8a16_argmax` read `x: [b, k]`, `qweight: [n, k]`
and `scales: [n, k / group]`, and Machete its own packing of these; `bf16_linear` and `head_argmax` read `x` and
`weight: [n, k]`. One row of each weight is made to win, so that no rounding changes the argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from chapters.ch08_w8a16_head import machete
from chapters.ch08_w8a16_head.quantize import quantize_w8
from qwen3_ref.quantized import dequantize_w8, head_logits
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.benchmarking.peers import Vllm
from qwen_cuda.building import Library
from qwen_cuda.loading import using
from qwen_cuda.operators import argmax_workspace

STEPS = Path(__file__).with_name("steps")
Op = Literal["w8a16_linear", "w8a16_argmax", "bf16_linear", "head_argmax"]
OPS: tuple[Op, ...] = ("w8a16_linear", "w8a16_argmax", "bf16_linear", "head_argmax")
ROWS_AT_ONCE = 16384  # of a weight in float64
# Logits in bf16 are rounded once; a peer may also round the parts of a split sum.
BF16_ULPS, PEER_ULPS = 1.0, 2.0


@dataclass(frozen=True)
class Shape:
    """A head: `x: [batch, k]` against n rows; of int8 weights `group` share a scale, None a whole row."""

    batch: int
    k: int
    n: int
    group: int | None = 128

    def __str__(self) -> str:
        group = "" if self.group == 128 else f", group {self.group or 'row'}"
        return f"{self.k} to {self.n:,}, batch {self.batch}{group}"

    @property
    def ulps(self) -> float:
        """Of float32 logits: k/16 + 40 roundings at most (w8_checks.py), half an ulp each; no number is negative."""
        return (self.k / 16 + 40) / 2


def is_int8(op: Op) -> bool:
    return op.startswith("w8a16")


def work(op: Op, shape: Shape) -> Work:
    """The weight and x are read; float32 logits, bf16 ones of bf16 weights, or ids are written."""
    groups = shape.k // (shape.group or shape.k)
    weight = shape.n * (shape.k + 4 * groups) if is_int8(op) else 2 * shape.n * shape.k
    out = 8 if op.endswith("argmax") else shape.n * (4 if is_int8(op) else 2)
    facts: dict[str, int | str] = {"batch": shape.batch, "k": shape.k, "n": shape.n}
    if is_int8(op):
        facts["group"] = shape.group or shape.k
    nbytes = weight + shape.batch * (2 * shape.k + out)
    return Work(op, facts, "bfloat16", nbytes, flops=2 * shape.batch * shape.n * shape.k)


def operands(op: Op, shape: Shape, device: torch.device, packed: bool = False) -> Callable[[int], Operands]:
    """Makes set number n; with `packed` also what Machete reads. All numbers are from 0.5 to 1.5: nothing cancels."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def positive(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device).uniform_(0.5, 1.5, generator=generator).bfloat16()

        x, weight = positive(shape.batch, shape.k), positive(shape.n, shape.k)
        weight[(7919 * number + 5) % shape.n] = 3.0  # this row wins
        if not is_int8(op):
            return {"x": x, "weight": weight}
        qweight, scales = quantize_w8(weight, shape.group)
        more = machete.packed(qweight, scales) if packed else {}
        return {"x": x, "qweight": qweight, "scales": scales, **more}

    return make


def truth(op: Op, of: Operands) -> list[Tensor]:
    """The answer in float64 (ids: int64), on the operands' device, in parts of the weight."""
    logits = _exact_logits(of, of["scales"] if is_int8(op) else None)
    return [logits.argmax(-1) if op.endswith("argmax") else logits]


def _exact_logits(of: Operands, scales: Tensor | None) -> Tensor:
    parts = []
    for first in range(0, len(of["weight" if scales is None else "qweight"]), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        weight = of["weight"][rows] if scales is None else dequantize_w8(of["qweight"][rows], scales[rows].double())
        parts.append(head_logits(of["x"].double(), weight.double()))
    return torch.cat(parts, dim=-1)


def variants(op: Op, shape: Shape, device: torch.device) -> Iterator[Variant]:
    """Ours and PyTorch's, without the ladder."""
    id_of = partial(Variant, ulps=0.0, error=_differs)
    if op == "w8a16_linear":
        yield Variant("ours", _logits, ulps=shape.ulps)
        yield Variant("ours_bf16_logits", _bf16_logits, ulps=BF16_ULPS)
    elif op == "w8a16_argmax":
        yield id_of("ours", partial(_argmax, argmax_workspace(device)))
        yield id_of("ours_two_launches", _logits_then_argmax)
    elif op == "bf16_linear":
        yield Variant("cublas", _cublas, ulps=PEER_ULPS, peer=True)
    else:
        yield id_of("ours", partial(_bf16_argmax, argmax_workspace(device)))
        yield id_of("cublas", _cublas_then_argmax, peer=True)


def ladder(shape: Shape) -> Iterator[Variant]:
    """w8a16_linear, pointed at the kernel of each step."""
    for library in step_libraries():
        step = library.name.partition("_")[0]
        yield Variant("ours", _logits, step, shape.ulps, inside=partial(using, library))


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def vllm_machete(shape: Shape, vllm: Vllm) -> Variant:
    """vLLM's mixed-precision product on Tensor Cores, with the same integers and bf16 scales; bf16 logits."""
    run = partial(machete.product, vllm, shape.group or shape.k)
    return Variant("vllm_machete", run, ulps=PEER_ULPS, peer=True, truth=_truth_of_bf16_scales)


def _truth_of_bf16_scales(of: Operands) -> list[Tensor]:
    return [_exact_logits(of, of["scales"].bfloat16())]


def _differs(got: Tensor, want: Tensor) -> Tensor:
    return (got != want).double()


def _logits(of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.w8a16_linear(of["x"], of["qweight"], of["scales"], out_dtype=torch.float32)]


def _bf16_logits(of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.w8a16_linear(of["x"], of["qweight"], of["scales"])]


def _argmax(workspace: Tensor, of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.w8a16_argmax(of["x"], of["qweight"], of["scales"], workspace=workspace)]


def _logits_then_argmax(of: Operands) -> list[Tensor]:
    return [_logits(of)[0].argmax(-1)]


def _bf16_argmax(workspace: Tensor, of: Operands) -> list[Tensor]:
    return [torch.ops.qwen_cuda.head_argmax(of["x"], of["weight"], workspace=workspace)]


def _cublas(of: Operands) -> list[Tensor]:
    return [torch.nn.functional.linear(of["x"], of["weight"])]


def _cublas_then_argmax(of: Operands) -> list[Tensor]:
    return [_cublas(of)[0].argmax(-1)]
