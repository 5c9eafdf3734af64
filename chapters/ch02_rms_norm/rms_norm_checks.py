"""What this chapter promises of rms_norm, each promise a function of the backend that must keep it.

They raise AssertionError. Three kinds of callers: the tests, on every backend; the tests of the ladder, on each step;
the mutants, which at least one of them must notice. Sizes come in the order in which the exercise fills its holes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qwen3_ref.functional import rms_norm
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import DTYPES, KINDS, Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp, ulp_error

EPS = 1e-6
ONE_WARP = (1, 2, 3, 7, 9, 31)  # too short, or too odd, for 16-byte loads
ODD = (33, 63, 65, 255, 257, 1023, 1025)
WHOLE_PACKS = (8, 16, 32, 64, 96, 128, 256, 512, 896, 1024, 2560, 4096)
# Rows that fill the registers of a block in one format or another, or are one pack longer.
LONG = (4104, 8184, 8192, 16384, 16392, 32768, 32776, 40001)
READ_TWICE = 16392  # beyond the registers of a block in every format
MANY = 4099  # rows: beyond what the kernel counts as few, and no multiple of what a block takes
DENSE = Layout()


def ulps(dtype: torch.dtype, hidden: int) -> float:
    """How far a result may lie from the truth: half an ulp for the one rounding, and what float32 work costs before it.

    Let u = 2^-24, the relative error of one float32 rounding. A chain of k additions of positive numbers errs by λ√k u
    with a small λ (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019): 4 here, since the
    squares of 16-bit numbers have few digits and their roundings lean to one side. The root halves that. All else takes
    less than 8 u: mean, eps, a root and a division that may be 2 ulp off, two products. An ulp of the output is worth
    at least eps/2 of the value: 2^-8 in bfloat16, 2^-11 in float16, u in float32. So 16-bit results lie within 0.55 ulp
    of the truth, for rows of up to 40,000 elements: a second rounding would show.
    """
    return 0.5 + (8 + 2 * hidden**0.5) * 2.0**-24 / (torch.finfo(dtype).eps / 2)


def norm(
    backend: Backend,
    values: Tensor,
    eps: float = EPS,
    layout: Layout = DENSE,
    weight_offset: int = 0,
    nan: bool = False,
) -> Tensor:
    """Runs `rms_norm` on guarded copies and holds the result against the truth. `values: [..., d]` → the result."""
    x = backend.place(values, row_padding=layout.row_padding, offset=layout.offset)
    weight = backend.place(norm_weight(values.shape[-1], values.dtype, seed=values.shape[-1]), offset=weight_offset)
    with case(
        "rms_norm",
        shape=tuple(values.shape),
        dtype=values.dtype,
        eps=eps,
        x=layout,
        weight=Layout(offset=weight_offset),
    ):
        out: Tensor = backend.op("rms_norm")(x.tensor, weight.tensor, eps)
        assert (out.dtype, out.device, out.is_contiguous()) == (values.dtype, x.tensor.device, True)
        truth = oracle("rms_norm", values, weight.tensor, eps)
        assert_within_ulp(out, truth, ulps(values.dtype, values.shape[-1]), nan=nan)
        x.check_untouched("x")
        weight.check_untouched("weight")
    return out


def padded(size: int, dtype: torch.dtype) -> tuple[Layout, Layout]:
    """Gaps after which each row begins at a multiple of 16 bytes, whatever its size is."""
    pack = 16 // dtype.itemsize
    return Layout(row_padding=-size % pack), Layout(row_padding=-size % pack + pack)


def sized(backend: Backend, sizes: tuple[int, ...], rows: int, kind: Kind = "wide") -> None:
    """`rms_norm` on `rows` rows of each size and dtype."""
    for dtype in DTYPES:
        for size in sizes:
            norm(backend, rows_of_numbers((rows, size), dtype, seed=size, kind=kind))


def check_rows_of_one_warp(backend: Backend) -> None:
    """Up to 32 elements."""
    sized(backend, ONE_WARP, rows=5)


def check_odd_rows(backend: Backend) -> None:
    """More than 32 elements, no multiple of a 16-byte load."""
    sized(backend, ODD, rows=3)


def check_rows_of_whole_packs(backend: Backend) -> None:
    """Multiples of a 16-byte load, among them the hidden sizes of real models."""
    sized(backend, WHOLE_PACKS, rows=3)


def check_long_rows(backend: Backend) -> None:
    """Up to more than the registers of a block hold."""
    sized(backend, LONG, rows=1, kind="plain")


def check_many_rows(backend: Backend) -> None:
    """More rows than a warp, a block or a whole GPU takes at once; also none at all."""
    for dtype in DTYPES:
        for shape in ((0, 64), (300, 3)):
            norm(backend, rows_of_numbers(shape, dtype, seed=shape[0], kind="wide"))
    norm(backend, rows_of_numbers((MANY, 72), torch.float32, seed=1, kind="wide"))
    for shape in ((MANY, 520), (MANY // 4, 1288)):
        norm(backend, rows_of_numbers(shape, torch.bfloat16, seed=2, kind="wide"))


def check_leading_dimensions(backend: Backend) -> None:
    """One row without a dimension for rows, several such dimensions, an empty one."""
    for shape in ((40,), (2, 3, 40), (3, 1, 2, 40), (2, 0, 40)):
        values = rows_of_numbers(shape, torch.bfloat16, seed=5, kind="wide")
        assert norm(backend, values).shape == shape
        assert norm(backend, values, layout=Layout(row_padding=8)).shape == shape


def check_layouts(backend: Backend) -> None:
    """Gaps between rows and addresses that no 16-byte load may use, in each tensor alone and in all."""
    for dtype in DTYPES:
        pack = 16 // dtype.itemsize
        for size in (7, 8, 33, 256, 1024, 1025):
            values = rows_of_numbers((3, size), dtype, seed=size + 7, kind="wide")
            for layout, weight_offset in (
                *((layout, 0) for layout in padded(size, dtype)),
                (Layout(row_padding=1), 0),
                (Layout(offset=1), 0),
                (DENSE, 1),
                (Layout(row_padding=3, offset=pack - 1), pack // 2),
            ):
                norm(backend, values, layout=layout, weight_offset=weight_offset)


def check_any_kind_of_numbers(backend: Backend) -> None:
    """Tiny, huge and zero elements, and one that outweighs the rest. The square of a huge one is beyond float16."""
    for dtype in DTYPES:
        for kind in KINDS:
            for size in (9, 256, 1030):
                norm(backend, rows_of_numbers((3, size), dtype, seed=size, kind=kind))


def check_eps(backend: Backend) -> None:
    """eps stands under the root and decides rows that are small beside it; zeros stay zeros."""
    for dtype in DTYPES:
        for size in (5, 64, 1000):
            values = 1e-2 * rows_of_numbers((2, size), torch.float64, seed=size)
            for eps in (0.0, 1e-6, 1e-5, 1e-3, 0.7):
                norm(backend, values.to(dtype), eps)
            assert not norm(backend, torch.zeros(2, size, dtype=dtype)).any()


def check_in_place_equals_functional(backend: Backend) -> None:
    """`rms_norm_` gives the bits of `rms_norm`, and touches nothing between or around the rows."""
    for dtype in DTYPES:
        for size in (7, 31, 256, 1023, 1024, READ_TWICE):
            for layout in (DENSE, *padded(size, dtype), Layout(row_padding=5, offset=1)):
                values = rows_of_numbers((2, size), dtype, seed=size, kind="wide")
                expected = norm(backend, values)
                x = backend.place(values, row_padding=layout.row_padding, offset=layout.offset)
                weight = norm_weight(size, dtype, seed=size).to(backend.device)
                assert backend.op("rms_norm_")(x.tensor, weight, EPS) is None
                x.check_guards("x")
                assert_same_bits(x.tensor, expected)


def check_same_bits_every_time(backend: Backend) -> None:
    """Twice the same; alone, in a batch and among many rows the same; however the row lies in memory the same."""
    for dtype in DTYPES:
        for size in (33, 896, 1024, 4104):
            values = rows_of_numbers((3, size), dtype, seed=size, kind="wide")
            batch = norm(backend, values)
            assert_same_bits(norm(backend, values), batch)
            assert_same_bits(norm(backend, values, layout=Layout(row_padding=1, offset=1)), batch)
            for row in range(3):
                assert_same_bits(norm(backend, values[row : row + 1]), batch[row : row + 1])
    values = rows_of_numbers((3, 500), torch.float32, seed=1, kind="wide")
    assert_same_bits(norm(backend, values.repeat(MANY // 3, 1))[-3:], norm(backend, values))


def check_nan_and_infinity_stay_in_their_row(backend: Backend) -> None:
    """A NaN spoils its row, an infinity turns it to zeros and one NaN, as in the formula; no other row changes."""
    for dtype in DTYPES:
        for size in (31, 257, 1024):
            values = rows_of_numbers((4, size), dtype, seed=size)
            clean = norm(backend, values)
            for place, bad in ((0, torch.nan), (size // 2, torch.inf), (size - 1, -torch.inf), (size - 1, torch.nan)):
                spoilt = values.clone()
                spoilt[2, place] = bad
                out = norm(backend, spoilt, nan=True)
                for row in (0, 1, 3):
                    assert_same_bits(out[row], clean[row])
                assert int(out[2].isnan().sum()) == (size if bad != bad else 1)


def check_float32_is_as_near_as_hugging_faces_order(backend: Backend) -> None:
    """Its worst error is no more than one ulp beyond that of Hugging Face's own order on the same rows."""
    for size in (896, 1024, 2560, 4096):
        x = rows_of_numbers((32, size), torch.float32, seed=size, kind="wide")
        weight = norm_weight(size, torch.float32, seed=size)
        truth = oracle("rms_norm", x, weight, EPS)
        ours = backend.op("rms_norm")(x.to(backend.device), weight.to(backend.device), EPS).cpu()
        assert_within_ulp(ours, truth, 1 + float(ulp_error(rms_norm(x, weight, EPS, "hf"), truth).max()))


RMS_NORM_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_rows_of_one_warp,
    check_odd_rows,
    check_rows_of_whole_packs,
    check_any_kind_of_numbers,
    check_eps,
    check_layouts,
    check_in_place_equals_functional,
    check_nan_and_infinity_stay_in_their_row,
    check_same_bits_every_time,
    check_many_rows,
    check_leading_dimensions,
    check_long_rows,
)
# Thousands of rows, or very long ones: they cost more than all others together.
LARGE = frozenset((check_many_rows, check_long_rows, check_same_bits_every_time))
