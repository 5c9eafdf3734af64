"""What this chapter promises of `hf_rounding`: our kernels then round where Hugging Face's modules round.

An intermediate that lies on the border of two 16-bit numbers may still fall to the other side: exponentials and sums
differ in their last float32 bit. So nearly all results have transformers' bits, and the others are one step away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chapters.ch02_rms_norm.rms_norm_checks import EPS, READ_TWICE
from chapters.ch03_swiglu.silu_mul_checks import ULPS
from qwen3_ref.functional import rms_norm, swiglu
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import DTYPES, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp, ulp

HALVES = (torch.bfloat16, torch.float16)
SIZES = (7, 64, 1000, 1023, 1024, READ_TWICE)
# The border of two numbers is missed with a probability of 2 errors ÷ 1 step. The widest error is that of a norm's
# scale, a few float32 ulps, and the narrowest step float16's, 2^13 of them: about 1 in 1000. What rounds in another
# order differs in a quarter of all results.
DIFFERENT = 0.02


def assert_in_order(ours: Tensor, theirs: Tensor, intermediate: Tensor, factor: Tensor) -> None:
    """Fails unless nearly all bits agree, and the rest is explained by one step of the intermediate.

    `theirs` = `intermediate` (float64, before its rounding) · `factor`: the step, times the factor, is rounded anew.
    """
    ours, dtype = ours.cpu(), theirs.dtype
    assert (ours.shape, ours.dtype) == (theirs.shape, dtype)
    step = ulp(intermediate, dtype) * factor.double().abs() + ulp(theirs, dtype)
    distance = (ours.double() - theirs.double()).abs()
    assert bool((distance <= step).all()), f"{float((distance / step).max()):.3g} steps from transformers' result"
    different = float((ours != theirs).double().mean())
    assert different <= DIFFERENT, f"{different:.1%} of the results differ from transformers'; 2% are allowed"


def check_hf_silu_mul(backend: Backend) -> None:
    """`F.silu(gate) * up`, in PyTorch's order."""
    for dtype in DTYPES:
        for size in SIZES:
            values = rows_of_numbers((4, 2 * size), dtype, seed=size)
            with case("silu_mul, hf_rounding", shape=tuple(values.shape), dtype=dtype):
                out = backend.op("silu_mul")(values.to(backend.device), hf_rounding=True)
                gate, up = values.chunk(2, dim=-1)
                if dtype == torch.float32:
                    assert_within_ulp(out, oracle("silu_mul", values), ULPS[dtype])
                else:
                    assert_in_order(out, swiglu(gate, up, "hf"), torch.nn.functional.silu(gate.double()), up)


def check_hf_silu_mul_vanishes_where_pytorchs_does(backend: Backend) -> None:
    """For gates below −88.7 exp overflows, and PyTorch's SiLU is −0; ours in this order too."""
    for dtype in DTYPES:
        for size in (24, 25):
            values = torch.cat((torch.linspace(-200, -89, size), torch.full((size,), 3.0))).to(dtype)[None]
            out = backend.op("silu_mul")(values.to(backend.device), hf_rounding=True)
            gate, up = values.chunk(2, dim=-1)
            assert_same_bits(out, swiglu(gate, up, "hf"))


def check_hf_rms_norm(backend: Backend) -> None:
    """The normed row is rounded before the weight is applied. In float32 there is nothing to round."""
    for dtype in DTYPES:
        for size in SIZES:
            x, weight = rows_of_numbers((3, size), dtype, seed=size), norm_weight(size, dtype, seed=size)
            there = x.to(backend.device), weight.to(backend.device)
            with case("rms_norm, hf_rounding", shape=tuple(x.shape), dtype=dtype):
                out = backend.op("rms_norm")(*there, EPS, hf_rounding=True)
                if dtype == torch.float32:
                    assert_same_bits(out, backend.op("rms_norm")(*there, EPS))
                else:
                    assert_in_order(out, rms_norm(x, weight, EPS, "hf"), normed(x), weight)
                assert backend.op("rms_norm_")(*there, EPS, hf_rounding=True) is None
                assert_same_bits(there[0], out)


def check_hf_add_rms_norm(backend: Backend) -> None:
    """The norm is that of the rounded sum, as when an addition and a norm follow each other."""
    for dtype in DTYPES:
        for size in SIZES:
            x, residual = (rows_of_numbers((3, size), dtype, seed=size + i) for i in range(2))
            weight = norm_weight(size, dtype, seed=size)
            there = [tensor.to(backend.device) for tensor in (x, residual, weight)]
            with case("add_rms_norm, hf_rounding", shape=tuple(x.shape), dtype=dtype):
                out, total = backend.op("add_rms_norm")(*there, EPS, hf_rounding=True)
                assert_same_bits(total, x + residual)
                if dtype != torch.float32:
                    assert_in_order(out, rms_norm(x + residual, weight, EPS, "hf"), normed(x + residual), weight)
                # To the bit what the norm alone makes of that sum.
                assert_same_bits(out, backend.op("rms_norm")(total, there[2], EPS, hf_rounding=True))
                assert backend.op("add_rms_norm_")(*there, EPS, hf_rounding=True) is None
                assert_same_bits(there[0], out)
                assert_same_bits(there[1], total)


def normed(x: Tensor) -> Tensor:
    """`x / rms(x)` in float64."""
    one: Tensor = oracle("rms_norm", x, torch.ones_like(x[0]), EPS)
    return one


HF_SILU_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_hf_silu_mul,
    check_hf_silu_mul_vanishes_where_pytorchs_does,
)
HF_NORM_CHECKS: tuple[Callable[[Backend], None], ...] = (check_hf_rms_norm, check_hf_add_rms_norm)
