"""Cases of decode_linear: random operands, the truth in float64, and how far a float32 sum may lie from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.paged_cases import assert_within
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import ulp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
EPS = 1e-6
U = 2.0**-24  # half an ulp of 1 in float32: what one rounding may err by, relatively
STEEPEST = 1.1  # |silu'| is at most 1.0998


@dataclass(frozen=True)
class LinearCase:
    """The arguments of one call, on the CPU. Shapes as in `qwen_cuda.operators.decode_linear`."""

    x: Tensor
    weight: Tensor
    norm_weight: Tensor | None = None
    residual: Tensor | None = None
    silu_mul: bool = False
    out_dtype: torch.dtype | None = None
    eps: float = EPS

    @property
    def columns(self) -> int:
        return self.weight.shape[0] // (2 if self.silu_mul else 1)

    @property
    def facts(self) -> dict[str, object]:
        """What a failed check tells of it."""
        return {
            "b, n, k": (self.x.shape[0], *self.weight.shape),
            "x": self.x.dtype,
            "weight": self.weight.dtype,
            "out": self.out_dtype or self.weight.dtype,
            "norm": self.norm_weight is not None,
            "residual": self.residual is not None,
            "silu_mul": self.silu_mul,
        }

    def with_(self, **changes: Any) -> LinearCase:
        return dataclasses.replace(self, **changes)

    def row(self, r: int) -> LinearCase:
        """Row r of x, alone."""
        return self.with_(x=self.x[r : r + 1], residual=None if self.residual is None else self.residual[r : r + 1])


def linear_case(
    b: int,
    n: int,
    k: int,
    *,
    dtype: torch.dtype = BF16,
    x_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    norm: bool = False,
    residual: bool = False,
    silu_mul: bool = False,
    kind: Kind = "plain",
    seed: int = 0,
) -> LinearCase:
    """Random operands: a weight whose products with `plain` rows have size one, and a gain of both signs."""
    seed += 1009 * b + 31 * n + k
    weight = rows_of_numbers((n, k), FP32, seed=seed + 1) - 0.7
    return LinearCase(
        rows_of_numbers((b, k), x_dtype or dtype, seed=seed, kind=kind),
        (weight / math.sqrt(k)).to(dtype),
        norm_weight(k, dtype, seed=seed) if norm else None,
        rows_of_numbers((b, n), out_dtype or dtype, seed=seed + 2) if residual else None,
        silu_mul,
        out_dtype,
    )


def longest_chain(backend: Backend, k: int, weight: torch.dtype) -> int:
    """How many float32 additions one product may pass through on its way into the sum.

    Our kernels: 8 in a lane, 5 between lanes, then one for each segment of 256 columns; with Tensor Cores, which take
    bfloat16, 4 turns of two times 8 products, each of which may err like two roundings, 3 between their sums, and the
    segments. Plain C++: 16 sums side by side, then these. PyTorch: nothing is promised but one addition after the
    other.
    """
    chains = {"reference": k, "cpu": k // 16 + 1 + 16}
    return chains.get(backend.name, (16 + 3 if weight == BF16 else 8 + 5) + math.ceil(k / 256))


def cut_in_two(backend: Backend, some: LinearCase) -> bool:
    """Whether our kernels give x, in fp32, only the 16 bits that matter before a rounding to 16 bits."""
    wide_x = some.norm_weight is not None or some.x.dtype == FP32
    narrow_out = some.weight.dtype == BF16 and (some.out_dtype or BF16) == BF16
    return backend.name not in ("reference", "cpu") and wide_x and narrow_out


def truth_and_bound(backend: Backend, some: LinearCase) -> tuple[Tensor, Tensor]:
    """The result in float64, and how far each element may lie from it.

    A sum s of products p errs by at most (longest chain) · u · Σ|p|. With a norm each product is rounded once more; the
    sum of squares has the same chain, and half its relative error reaches 1/rms, with half of what 1/k, the product
    with it and the sum with eps add: 1.5 u. The reciprocal root errs by 2 ulp, 4 u, its product with the sum by one.
    SiLU·mul passes the errors of gate and up on by its derivatives, and adds 8 u of the product: an exponential within
    2 ulp, a sum, a quotient, two products. Before a rounding to 16 bits its short form may stand: the quotient within
    2 ulp, the exponential of -|z| within 2 + 1.173 |z| (CUDA C++ Programming Guide, intrinsic functions). The
    residual's sum is one more rounding, then there is the output's own. What x loses when it is cut in two is 2^-18 of
    it, 64 u.
    """
    x, weight = some.x.double(), some.weight.double()
    chain = longest_chain(backend, weight.shape[1], some.weight.dtype)
    roundings: float = chain
    if some.norm_weight is not None:
        x = oracle("rms_norm", x, some.norm_weight, some.eps)
        roundings += chain / 2 + 7.5
    if cut_in_two(backend, some):
        roundings += 64
    product = x @ weight.T
    error = roundings * U * (x.abs() @ weight.T.abs()) * (1 + 2**-10)
    if some.silu_mul:
        (gate, up), (gate_error, up_error) = product.chunk(2, dim=1), error.chunk(2, dim=1)
        gated = torch.nn.functional.silu(gate)
        product = gated * up
        short = (some.out_dtype or some.weight.dtype) != FP32
        own = 11 + 2.4 * (gate.abs() + gate_error) if short else 8
        error = STEEPEST * gate_error * (up.abs() + up_error) + gated.abs() * up_error + own * U * product.abs()
    if some.residual is not None:
        product = product + some.residual.double()
        error = error + U * (product.abs() + error)
    return product, error + ulp(product.abs() + error, some.out_dtype or some.weight.dtype) / 2


DENSE: Mapping[str, Layout] = {}


def run(backend: Backend, some: LinearCase, layouts: Mapping[str, Layout] = DENSE, prefetch: bool = False) -> Tensor:
    """Runs decode_linear on guarded copies, which must stay as they are. → the result."""
    names = [one.name for one in dataclasses.fields(some) if isinstance(getattr(some, one.name), Tensor)]
    given = {}
    for name in names:
        layout = layouts.get(name, Layout())
        given[name] = backend.place(getattr(some, name), row_padding=layout.row_padding, offset=layout.offset)
    tensors = {name: guarded.tensor for name, guarded in given.items()}
    out: Tensor = backend.op("decode_linear")(
        tensors.pop("x"),
        tensors.pop("weight"),
        **tensors,
        eps=some.eps,
        silu_mul=some.silu_mul,
        out_dtype=some.out_dtype,
        prefetch=prefetch,
    )
    for name, guarded in given.items():
        guarded.check_untouched(name)
    assert (out.dtype, out.device) == (some.out_dtype or some.weight.dtype, given["x"].tensor.device)
    assert out.is_contiguous()
    assert out.shape == (some.x.shape[0], some.columns)
    return out


def multiply(
    backend: Backend, some: LinearCase, layouts: Mapping[str, Layout] = DENSE, prefetch: bool = False
) -> Tensor:
    """`run`, and holds the result against the truth. → the result."""
    with case("decode_linear", **some.facts, **{f"{name} lies": layout for name, layout in layouts.items()}):
        out = run(backend, some, layouts, prefetch)
        assert_within(out, *truth_and_bound(backend, some))
    return out
