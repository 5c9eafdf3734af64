"""Comparison in units in the last place (ulp): steps between neighbouring numbers of the output's own format.

The ulp of a format at a real number t is the distance of the format's numbers around t: with p bits of precision and
2^e ≤ |t| < 2^(e+1) it is 2^(e − p + 1). A result that is rounded once to nearest errs by half an ulp at most; the
float32 work before that rounding adds its own error, so "within one ulp" leaves half a unit of the output for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FAR = torch.iinfo(torch.int64).max  # the distance of NaN, or of an infinity from a finite number


def ulp(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype`'s numbers at each value of `truth` → float64, never zero.

    Below the smallest normal number the spacing stays what it is there; above the largest number too.
    """
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.double().abs().clamp(info.tiny, info.max))  # |t| = m · 2^exponent, 0.5 ≤ m < 1
    return torch.ldexp(torch.full_like(exponent, info.eps, dtype=torch.float64), exponent - 1)


def ulp_error(actual: Tensor, truth: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """|actual − truth| in ulps of `dtype` (by default `actual`'s) at the truth → float64.

    The subtraction is float64: exact for 16-bit formats, right to 2^-29 ulp for float32.
    Infinity stands for the number that would follow the largest: it is right where the truth rounds to it, and for an
    infinite truth of the same sign. NaN gives NaN, whatever stands on the other side.
    """
    dtype = dtype or actual.dtype
    wide, truth, unit = actual.double(), truth.double(), ulp(truth, dtype)
    error = (wide - truth).abs() / unit
    largest = torch.finfo(dtype).max
    follower = largest + float(ulp(torch.tensor(largest, dtype=torch.float64), dtype))
    overflow = wide.isinf() & truth.isfinite() & (wide.sign() == truth.sign())
    error = torch.where(overflow, (follower - truth.abs()).clamp(min=0) / unit, error)
    return torch.where(wide.isinf() & (wide == truth), 0.0, error)


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """How many numbers of their format lie from `a` to `b`, exactly → int64; 0 for equal ones, also for −0 and 0.

    NaN, or an infinity beside a finite number, is `FAR` from everything.

    Raises:
        ValueError: the dtypes differ.
    """
    if a.dtype != b.dtype:
        raise ValueError(f"a has dtype {a.dtype} and b {b.dtype}; a distance needs one format.")

    def position(x: Tensor) -> Tensor:
        """Signed magnitude to a plain integer: neighbours in the format are neighbours here."""
        bits = x.contiguous().view(INTEGERS[x.element_size()]).long()
        magnitude = bits & torch.iinfo(INTEGERS[x.element_size()]).max
        return torch.where(bits < 0, -magnitude, magnitude)

    distance = (position(a) - position(b)).abs()
    comparable = (a.isfinite() & b.isfinite()) | (a == b)
    return torch.where(comparable, distance, FAR)


def assert_within_ulp(
    actual: Tensor, truth: Tensor, ulps: float = 1.0, dtype: torch.dtype | None = None, *, nan: bool = False
) -> None:
    """Fails unless every element of `actual` lies within `ulps` of `truth` (float64), in ulps of `dtype`.

    A NaN fails, in either of them; with `nan` it is right exactly where the truth is NaN too.

    Raises:
        AssertionError: with the worst element, its index, both values, and how many are wrong.
    """
    assert actual.shape == truth.shape, f"the result has shape {list(actual.shape)}, the truth {list(truth.shape)}"
    assert truth.dtype == torch.float64, f"the truth has dtype {truth.dtype}; it must be float64"
    actual, truth = actual.detach().cpu(), truth.detach().cpu()
    error = ulp_error(actual, truth, dtype)
    if nan:
        error = torch.where(actual.isnan() & truth.isnan(), 0.0, error)
    wrong = ~(error <= ulps)  # written so that NaN is wrong
    if wrong.any():
        worst = _index(error.nan_to_num(nan=torch.inf, posinf=torch.finfo(torch.float64).max).argmax(), error)
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are more than {ulps:g} ulp of {dtype or actual.dtype} "
            f"from the truth. Worst at {worst}: {float(actual[worst])!r} instead of {float(truth[worst])!r}, "
            f"{float(error[worst]):.4g} ulp off. First at {_index(wrong.flatten().int().argmax(), wrong)}."
        )


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Fails unless shape, dtype and every bit are the same; NaN equals itself, 0 does not equal −0.

    Raises:
        AssertionError: with the first element that differs and how many do.
    """
    assert actual.dtype == expected.dtype, f"the results have dtypes {actual.dtype} and {expected.dtype}"
    assert actual.shape == expected.shape, f"the results have shapes {list(actual.shape)} and {list(expected.shape)}"
    actual, expected = actual.detach().cpu().contiguous(), expected.detach().cpu().contiguous()
    bits = INTEGERS[actual.element_size()]
    different = actual.view(bits) != expected.view(bits)
    if different.any():
        first = _index(different.flatten().int().argmax(), different)
        raise AssertionError(
            f"{int(different.sum())} of {different.numel()} elements differ; the first at {first}: "
            f"{float(actual[first])!r} and {float(expected[first])!r}"
        )


def _index(flat: Tensor, like: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(flat, like.shape))
