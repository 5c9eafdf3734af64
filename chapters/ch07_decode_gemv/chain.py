"""The four linear layers of a decoder layer, one after the other, over all layers of Qwen3-0.6B: what a step reads.

What stands between QKV and O, attention, is left out: O reads the first columns of what QKV wrote. Every product needs
the one before, and no two read the same weights.

A set of operands holds `x: [b, hidden]`, the residual stream in float32, `x_narrow`, the same in the model's dtype, and
for layer l `norm.l.0`, `norm.l.1: [hidden]` and the weights `qkv.l`, `o.l`, `gate_up.l` and `down.l`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from chapters.ch07_decode_gemv.candidates import COMPILED, EPS, error, step_libraries, without_pdl
from qwen3_ref import functional
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.loading import using

OP = "chain"
# In ulps of the result's typical size, which is that of float32 for us: each of 4 products a layer rounds its result to
# 16 bits or feeds one that is rounded, and the errors of all layers add up in the residual stream.
BF16_IN_FLOAT32_ULPS = 2.0**16
ULPS = 4.0 * BF16_IN_FLOAT32_ULPS
PEER_ULPS = 16.0  # of the model's dtype: the stream itself is rounded twice a layer


@dataclass(frozen=True)
class Stack:
    """Decoder layers of one size. By default those of Qwen3-0.6B."""

    layers: int = 28
    hidden: int = 1024
    heads: int = 2048  # columns of all query heads, which O reads
    qkv: int = 4096
    intermediate: int = 3072
    rows: int = 1
    dtype: torch.dtype = torch.bfloat16

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of the weights of one layer."""
        return {
            "qkv": (self.qkv, self.hidden),
            "o": (self.hidden, self.heads),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    def __str__(self) -> str:
        return f"{OP} of {self.layers} layers, {self.rows} rows, {str(self.dtype).removeprefix('torch.')}"


def work(stack: Stack) -> Work:
    """All weights are read once. What lies between two products stays in the caches."""
    numbers = sum(n * k for n, k in stack.shapes().values()) + 2 * stack.hidden
    flops = 2 * stack.rows * stack.layers * numbers
    shape: dict[str, int | str] = {"layers": stack.layers, "rows": stack.rows}
    nbytes = stack.layers * numbers * stack.dtype.itemsize
    return Work(OP, shape, str(stack.dtype).removeprefix("torch."), nbytes, flops)


def operands(stack: Stack, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number s, of numbers that depend on s only."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def normal(*shape: int, by: float = 1.0, add: float = 0.0) -> Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).mul_(by).add_(add).to(stack.dtype)

        made = {"x_narrow": normal(stack.rows, stack.hidden)}
        made["x"] = made["x_narrow"].float()
        for layer in range(stack.layers):
            for half in range(2):
                made[f"norm.{layer}.{half}"] = normal(stack.hidden, by=0.25, add=1.0)
            for name, (n, k) in stack.shapes().items():
                made[f"{name}.{layer}"] = normal(n, k, by=k**-0.5)
        return made

    return make


def truth(stack: Stack, of: Operands) -> Sequence[Tensor]:
    """The residual stream after the last layer, in float64; one weight at a time is widened."""

    def product(x: Tensor, weight: Tensor, **around: Any) -> Tensor:
        around = {name: one.double() if isinstance(one, Tensor) else one for name, one in around.items()}
        return functional.fused_linear(x, weight.double(), **around)

    return [_with_fused_products(stack, of["x"].double(), of, product)]


def _with_fused_products(stack: Stack, x: Tensor, of: Operands, product: Callable[..., Tensor]) -> Tensor:
    for n in range(stack.layers):
        q = product(x, of[f"qkv.{n}"], norm_weight=of[f"norm.{n}.0"], eps=EPS)[:, : stack.heads]
        x = product(q, of[f"o.{n}"], residual=x, out_dtype=x.dtype)
        hidden = product(x, of[f"gate_up.{n}"], norm_weight=of[f"norm.{n}.1"], eps=EPS, silu_mul=True)
        x = product(hidden, of[f"down.{n}"], residual=x, out_dtype=x.dtype)
    return x


def variants(stack: Stack, on_gpu: bool) -> Iterator[Variant]:
    """Ours: weights read early; waiting first; without dependent launches. And cuBLAS with our other kernels."""
    yield Variant("ours", partial(_ours, stack, True), ulps=ULPS, error=error)
    yield Variant("ours_waits_first", partial(_ours, stack, False), ulps=ULPS, error=error)
    if on_gpu:
        alone = partial(using, without_pdl())
        yield Variant("ours_without_pdl", partial(_ours, stack, True), ulps=ULPS, error=error, inside=alone)
    yield Variant("cublas_and_ours", partial(_cublas, stack), ulps=PEER_ULPS, peer=True, error=error)


def ladder(stack: Stack) -> Iterator[Variant]:
    """Ours, pointed at the kernel of each step."""
    for library in step_libraries():
        inside, step = partial(using, library), library.name.partition("_")[0]
        yield Variant("ours", partial(_ours, stack, True), step, ULPS, inside=inside, error=error)


def compiled(stack: Stack) -> Variant:
    """torch.compile of one layer of PyTorch's operations, tuned, and called for each."""
    torch.compiler.reset()
    layer = torch.compile(partial(_plain_layer, stack.heads), dynamic=False, options=COMPILED)
    return Variant("torch_compile", partial(_plain, stack, layer), ulps=PEER_ULPS, peer=True, error=error)


def _ours(stack: Stack, prefetch: bool, of: Operands) -> list[Tensor]:
    product = partial(torch.ops.qwen_cuda.decode_linear, prefetch=prefetch)
    return [_with_fused_products(stack, of["x"], of, product)]


def _cublas(stack: Stack, of: Operands) -> list[Tensor]:
    """The sum before each norm is fused with it, as in chapter 2; the last one is a kernel of PyTorch."""
    ops = torch.ops.qwen_cuda
    x = of["x_narrow"]
    normed = ops.rms_norm(x, of["norm.0.0"], EPS)
    for n in range(stack.layers):
        q = linear(normed, of[f"qkv.{n}"])[:, : stack.heads]
        normed, x = ops.add_rms_norm(linear(q, of[f"o.{n}"]), x, of[f"norm.{n}.1"], EPS)
        down = linear(ops.silu_mul(linear(normed, of[f"gate_up.{n}"])), of[f"down.{n}"])
        if n + 1 < stack.layers:
            normed, x = ops.add_rms_norm(down, x, of[f"norm.{n + 1}.0"], EPS)
    return [down + x]


def _plain_layer(
    heads: int, x: Tensor, norms: tuple[Tensor, Tensor], qkv: Tensor, o: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    q = linear(functional.rms_norm(x, norms[0], EPS, "hf"), qkv)[:, :heads]
    x = x + linear(q, o)
    gate, up = linear(functional.rms_norm(x, norms[1], EPS, "hf"), gate_up).chunk(2, dim=1)
    return x + linear(functional.swiglu(gate, up, "hf"), down)


def _plain(stack: Stack, layer: Callable[..., Tensor], of: Operands) -> list[Tensor]:
    x = of["x_narrow"]
    for n in range(stack.layers):
        norms = of[f"norm.{n}.0"], of[f"norm.{n}.1"]
        x = layer(x, norms, *(of[f"{name}.{n}"] for name in stack.shapes()))
    return [x]
