"""Who takes part in chapter 7's benchmark of one linear layer: our operator, and PyTorch with and without a compiler.

A set of operands holds `x: [b, k]` and `weight: [n, k]`; `norm_weight: [k]` and `residual: [b, n]` where the layer has
them. As in our engine the residual stream is float32: x of a layer with a norm, residual and result of one with a
residual. Peers have the same numbers in the model's dtype, as `x_narrow` and `residual_narrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from qwen3_ref import functional
from qwen_cuda.benchmarking import Operands, Variant, Work
from qwen_cuda.benchmarking.tuning import WITHOUT_PDL
from qwen_cuda.benchmarking.tuning import variants as edited
from qwen_cuda.building import Library
from qwen_cuda.loading import default_library, using
from qwen_cuda.testing.ulp import ulp

EPS = 1e-6
STEPS = Path(__file__).with_name("steps")
LAUNCHES = ("decode_linear.cu", "row_turns.cuh", "row_walk.cuh")  # files that launch our kernels
# Of the result's dtype, at its typical size: a small element is a difference of larger numbers. One rounding is half an
# ulp; a float32 result has the errors of about 30 additions, each of a fraction of the numbers' own size.
ULPS = {torch.bfloat16: 1.0, torch.float16: 1.0, torch.float32: 32.0}
PEER_ULPS = 4.0  # they round the normed row, gate and up, SiLU, the product before the sum, parts of split sums
COMPILED: dict[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.cudagraphs": False}


@dataclass(frozen=True)
class Layer:
    """A linear layer and what stands around it. `n` counts rows of W: gate's and up's with `silu_mul`."""

    op: str
    n: int
    k: int
    norm: bool = False
    residual: bool = False
    silu_mul: bool = False
    rows: int = 1  # of x
    dtype: torch.dtype = torch.bfloat16

    @property
    def columns(self) -> int:
        return self.n // 2 if self.silu_mul else self.n

    @property
    def x_dtype(self) -> torch.dtype:
        return torch.float32 if self.norm else self.dtype

    @property
    def out_dtype(self) -> torch.dtype:
        return torch.float32 if self.residual else self.dtype

    def __str__(self) -> str:
        return f"{self.op} [{self.rows}, {self.k}] × [{self.n}, {self.k}] {str(self.dtype).removeprefix('torch.')}"


# Those of Qwen3-0.6B.
LAYERS = (
    Layer("qkv", 4096, 1024, norm=True),
    Layer("o", 1024, 2048, residual=True),
    Layer("gate_up", 6144, 1024, norm=True, silu_mul=True),
    Layer("down", 1024, 3072, residual=True),
    Layer("head", 151936, 1024),
)


def work(layer: Layer) -> Work:
    """The least traffic: everything is read or written once."""
    numbers = layer.n * layer.k + layer.norm * layer.k
    nbytes = numbers * layer.dtype.itemsize + layer.rows * layer.k * layer.x_dtype.itemsize
    nbytes += (1 + layer.residual) * layer.rows * layer.columns * layer.out_dtype.itemsize
    shape: dict[str, int | str] = {"rows": layer.rows, "n": layer.n, "k": layer.k}
    return Work(layer.op, shape, str(layer.dtype).removeprefix("torch."), nbytes, 2 * layer.rows * layer.n * layer.k)


def operands(layer: Layer, device: torch.device) -> Callable[[int], Operands]:
    """Makes set number s, of numbers that depend on s only; results have size one."""

    def make(number: int) -> Operands:
        generator = torch.Generator(device).manual_seed(number)

        def normal(*shape: int, by: float = 1.0, add: float = 0.0) -> Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).mul_(by).add_(add).to(layer.dtype)

        made = {
            "x": normal(layer.rows, layer.k).to(layer.x_dtype),
            "weight": normal(layer.n, layer.k, by=layer.k**-0.5),
        }
        made["x_narrow"] = made["x"].to(layer.dtype)
        if layer.norm:
            made["norm_weight"] = normal(layer.k, by=0.25, add=1.0)
        if layer.residual:
            made["residual_narrow"] = normal(layer.rows, layer.n)
            made["residual"] = made["residual_narrow"].to(layer.out_dtype)
        return made

    return make


def truth(layer: Layer, of: Operands) -> Sequence[Tensor]:
    """The answer in float64, on the operands' device."""
    given: dict[str, Any] = {name: one.double() for name, one in of.items() if not name.endswith("narrow")}
    return [functional.fused_linear(given.pop("x"), given.pop("weight"), **given, eps=EPS, silu_mul=layer.silu_mul)]


def product(of: Operands) -> Sequence[Tensor]:
    """The product alone, in float64."""
    return [of["x"].double() @ of["weight"].double().T]


def error(got: Tensor, truth: Tensor) -> Tensor:
    """In ulps at the element, or at the root mean square of all where that is larger."""
    size = truth.square().mean().sqrt()
    return (got.double() - truth).abs() / ulp(torch.maximum(truth.abs(), size), got.dtype)


def ours(layer: Layer, on_gpu: bool) -> Iterator[Variant]:
    """With the weights read early; waiting first; and, on a GPU, launched after the kernel ahead has ended."""
    ulps = ULPS[layer.out_dtype]
    yield Variant("ours", partial(_ours, layer, True), ulps=ulps, error=error)
    yield Variant("ours_waits_first", partial(_ours, layer, False), ulps=ulps, error=error)
    if on_gpu:
        alone = partial(using, without_pdl())
        yield Variant("ours_without_pdl", partial(_ours, layer, True), ulps=ulps, error=error, inside=alone)


def ladder(layer: Layer) -> Iterator[Variant]:
    """Our operator, pointed at the kernel of each step."""
    for library in step_libraries():
        inside, step = partial(using, library), library.name.partition("_")[0]
        yield Variant("ours", partial(_ours, layer, True), step, ULPS[layer.out_dtype], inside=inside, error=error)


def step_libraries() -> list[Library]:
    """What the ladder is built from, v1 first."""
    return [Library("cuda", (path,)) for path in sorted(STEPS.glob("v*.cu"))]


def without_pdl() -> Library:
    """Our kernels, launched without programmatic dependent launch."""
    return edited(default_library("decode_linear", "cuda"), {}, launches=LAUNCHES)[WITHOUT_PDL]


def peers(layer: Layer) -> Iterator[Variant]:
    """PyTorch's product alone, which is cuBLAS on a GPU; and with our kernels of chapters 2 and 3 around it."""
    ulps = ULPS[layer.dtype]
    yield Variant("cublas", _product, ulps=ulps + PEER_ULPS, peer=True, error=error, truth=product)
    if layer.norm or layer.residual:
        yield Variant("cublas_and_ours", partial(_fused_kernels, layer), ulps=ulps + PEER_ULPS, peer=True, error=error)


def compiled(layer: Layer) -> Variant:
    """torch.compile of PyTorch's operations one by one, tuned for this one shape, also by coordinate descent."""
    torch.compiler.reset()  # beyond a number of shapes it would fall back to eager without a word
    run = torch.compile(partial(_one_by_one, layer), dynamic=False, options=COMPILED)
    return Variant("torch_compile", run, ulps=ULPS[layer.dtype] + PEER_ULPS, peer=True, error=error)


def _ours(layer: Layer, prefetch: bool, of: Operands) -> list[Tensor]:
    return [
        torch.ops.qwen_cuda.decode_linear(
            of["x"],
            of["weight"],
            norm_weight=of.get("norm_weight"),
            eps=EPS,
            residual=of.get("residual"),
            silu_mul=layer.silu_mul,
            out_dtype=layer.out_dtype,
            prefetch=prefetch,
        )
    ]


def _product(of: Operands) -> list[Tensor]:
    return [linear(of["x_narrow"], of["weight"])]


def _fused_kernels(layer: Layer, of: Operands) -> list[Tensor]:
    x = of["x_narrow"]
    if layer.norm:
        x = torch.ops.qwen_cuda.rms_norm(x, of["norm_weight"], EPS)
    out = linear(x, of["weight"])
    if layer.silu_mul:
        out = torch.ops.qwen_cuda.silu_mul(out)
    return [out + of["residual_narrow"]] if layer.residual else [out]


def _one_by_one(layer: Layer, of: Operands) -> list[Tensor]:
    """As transformers has it, in the model's dtype."""
    x = of["x_narrow"]
    if layer.norm:
        x = functional.rms_norm(x, of["norm_weight"], EPS, "hf")
    out = linear(x, of["weight"])
    if layer.silu_mul:
        gate, up = out.chunk(2, dim=1)
        out = functional.swiglu(gate, up, "hf")
    return [out + of["residual_narrow"]] if layer.residual else [out]
