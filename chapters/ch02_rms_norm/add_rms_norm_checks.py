"""What this chapter promises of add_rms_norm: the checks of `rms_norm_checks`, and what the sum adds to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chapters.ch02_rms_norm.rms_norm_checks import (
    DENSE,
    EPS,
    LONG,
    ODD,
    ONE_WARP,
    READ_TWICE,
    WHOLE_PACKS,
    padded,
    ulps,
)
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import DTYPES, KINDS, Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp


def add_norm(
    backend: Backend,
    values: Tensor,
    others: Tensor,
    eps: float = EPS,
    layouts: tuple[Layout, Layout] = (DENSE, DENSE),
    weight_offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """As `norm` for `add_rms_norm`; the sum must be the rounded exact sum, bit for bit."""
    x, residual = (
        backend.place(tensor, row_padding=layout.row_padding, offset=layout.offset)
        for tensor, layout in zip((values, others), layouts, strict=True)
    )
    weight = backend.place(norm_weight(values.shape[-1], values.dtype, seed=values.shape[-1]), offset=weight_offset)
    with case(
        "add_rms_norm",
        shape=tuple(values.shape),
        dtype=values.dtype,
        eps=eps,
        x=layouts[0],
        residual=layouts[1],
        weight=Layout(offset=weight_offset),
    ):
        out, total = backend.op("add_rms_norm")(x.tensor, residual.tensor, weight.tensor, eps)
        assert (out.dtype, out.is_contiguous()) == (total.dtype, total.is_contiguous()) == (values.dtype, True)
        truth, _ = oracle("add_rms_norm", values, others, weight.tensor, eps)
        assert_within_ulp(out, truth, ulps(values.dtype, values.shape[-1]))
        # A float32 sum of two 16-bit numbers, rounded again, is the exact sum rounded once: 24 ≥ 2 · 11 + 2 bits.
        assert_same_bits(total, (values.double() + others.double()).float().to(values.dtype).to(total.device))
        x.check_untouched("x")
        residual.check_untouched("residual")
        weight.check_untouched("weight")
    return out, total


def sized(backend: Backend, sizes: tuple[int, ...], rows: int, kind: Kind = "wide") -> None:
    """`add_rms_norm` on `rows` rows of each size and dtype."""
    for dtype in DTYPES:
        for size in sizes:
            x, residual = (rows_of_numbers((rows, size), dtype, seed=size + i, kind=kind) for i in range(2))
            add_norm(backend, x, residual)


def check_sums_of_all_sizes(backend: Backend) -> None:
    """add_rms_norm norms the exact sum and returns it rounded once, at each size."""
    for sizes, rows in ((ONE_WARP, 5), (ODD, 3), (WHOLE_PACKS, 3)):
        sized(backend, sizes, rows)
    sized(backend, LONG, 1, kind="plain")
    for kind in KINDS:
        sized(backend, (72,), 2, kind)
    for shape in ((0, 64), (300, 3), (700, 160)):
        x, residual = (rows_of_numbers(shape, torch.bfloat16, seed=seed) for seed in (1, 2))
        add_norm(backend, x, residual)


def check_sum_is_normed_before_it_is_rounded(backend: Backend) -> None:
    """From 256 on (2048 in float16) numbers are 2 apart: an x below 1 is lost to the rounded sum, not to its norm."""
    for dtype, large in ((torch.bfloat16, 256), (torch.float16, 2048)):
        for size in (63, 64, 1024):
            generator = torch.Generator().manual_seed(size)
            residual = (large + 2 * torch.randint(large // 2, (2, size), generator=generator)).to(dtype)
            x = (1.8 * torch.rand(2, size, generator=generator) - 0.9).to(dtype)
            out, total = add_norm(backend, x, residual)
            rounded_first = oracle("rms_norm", total, norm_weight(size, dtype, seed=size), EPS).to(dtype)
            assert not torch.equal(out.cpu(), rounded_first), "the norm is that of the rounded sum"


def check_sum_layouts(backend: Backend) -> None:
    """x and residual with different gaps and addresses."""
    for dtype in DTYPES:
        for size in (8, 33, 1024):
            x, residual = (rows_of_numbers((3, size), dtype, seed=seed, kind="wide") for seed in (3, 4))
            for one, two, weight_offset in (
                (*padded(size, dtype), 0),
                (DENSE, padded(size, dtype)[1], 0),
                (Layout(offset=1), DENSE, 0),
                (DENSE, Layout(offset=1), 0),
                (DENSE, DENSE, 1),
                (Layout(row_padding=1, offset=2), Layout(row_padding=5, offset=3), 3),
            ):
                add_norm(backend, x, residual, layouts=(one, two), weight_offset=weight_offset)


def check_sum_in_place_equals_functional(backend: Backend) -> None:
    """`add_rms_norm_` leaves the normed rows in x and the sum in residual: the bits of `add_rms_norm`."""
    for dtype in DTYPES:
        for size in (7, 256, 1023, 1024, READ_TWICE):
            for one, two in ((DENSE, DENSE), padded(size, dtype), padded(size, dtype)[::-1], (Layout(3, 1), Layout(5))):
                values = [rows_of_numbers((2, size), dtype, seed=seed, kind="wide") for seed in (size, size + 1)]
                expected = add_norm(backend, values[0], values[1])
                x, residual = (
                    backend.place(tensor, row_padding=layout.row_padding, offset=layout.offset)
                    for tensor, layout in zip(values, (one, two), strict=True)
                )
                weight = norm_weight(size, dtype, seed=size).to(backend.device)
                assert backend.op("add_rms_norm_")(x.tensor, residual.tensor, weight, EPS) is None
                for buffer, name, bits in ((x, "x", expected[0]), (residual, "residual", expected[1])):
                    buffer.check_guards(name)
                    assert_same_bits(buffer.tensor, bits)


def check_sum_nan_and_infinity_stay_in_their_row(backend: Backend) -> None:
    """As for rms_norm, wherever the NaN comes from."""
    for size in (31, 1024):
        x, residual = (rows_of_numbers((3, size), torch.bfloat16, seed=seed) for seed in (1, 2))
        weight = norm_weight(size, torch.bfloat16, seed=size)
        clean = add_norm(backend, x, residual)
        for source in (x, residual):
            for bad in (torch.nan, torch.inf):
                kept = source[1, size - 1].clone()
                source[1, size - 1] = bad
                out, total = backend.op("add_rms_norm")(*(t.to(backend.device) for t in (x, residual, weight)), EPS)
                assert int(out[1].isnan().sum()) == (size if bad != bad else 1)
                assert not bool(total[1, size - 1].isfinite())
                assert int(total.isfinite().sum()) == total.numel() - 1
                for row in (0, 2):
                    assert_same_bits(out[row], clean[0][row])
                source[1, size - 1] = kept


ADD_RMS_NORM_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_sums_of_all_sizes,
    check_sum_is_normed_before_it_is_rounded,
    check_sum_layouts,
    check_sum_in_place_equals_functional,
    check_sum_nan_and_infinity_stay_in_their_row,
)
