"""What this chapter promises of w8a16_linear, each promise a function of the backend that must keep it.

They raise AssertionError. The tests call them on every backend, the ladder and the exercise those without a norm, and
each mutant must fail one. Sizes come in the order in which the exercise fills its holes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import DTYPES, KINDS, Kind, norm_weight, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits, ulp

BF16, FP16, FP32 = DTYPES
EPS = 1e-5
DENSE = Layout()
BATCHES = (0, 1, 2, 3, 4, 5, 8)


@dataclass(frozen=True)
class HeadCase:
    """Operands of a head: `x: [b, k]`, `qweight: [n, k]` int8, `scales: [n, groups]`, `gain: [k]` or none."""

    x: Tensor
    qweight: Tensor
    scales: Tensor
    gain: Tensor | None = None
    out_dtype: torch.dtype | None = None
    prefetch: bool = False
    layouts: tuple[Layout, Layout, Layout] = (DENSE, DENSE, DENSE)  # of x, of qweight (no gaps), of scales (no gaps)

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.gain is None else {"norm_weight": self.gain, "eps": EPS}

    @property
    def facts(self) -> dict[str, Any]:
        """What a report of a failure says of the case."""
        k, groups = self.qweight.shape[1], self.scales.shape[1]
        return {
            "x": tuple(self.x.shape),
            "dtype": self.x.dtype,
            "n": self.qweight.shape[0],
            "group": k // groups,
            "gain": None if self.gain is None else self.gain.dtype,
            "out": self.out_dtype,
            "layouts": "; ".join(map(str, self.layouts)),
        }


def head_case(
    batch: int,
    n: int,
    k: int,
    group: int | None = None,
    *,
    dtype: torch.dtype = BF16,
    kind: Kind = "plain",
    seed: int = 1,
    gain: torch.dtype | None = None,
) -> HeadCase:
    """Random operands. Weights take all values from −127 to 127, scales of a row differ by up to 64 times."""
    generator = torch.Generator().manual_seed(seed)
    size = group or k
    return HeadCase(
        rows_of_numbers((batch, k), dtype, seed=seed, kind=kind),
        torch.randint(-127, 128, (n, k), generator=generator, dtype=torch.int8),
        2.0 ** (-14 + 6 * torch.rand((n, k // size), generator=generator)),
        None if gain is None else norm_weight(k, gain, seed=seed),
    )


def truth_and_bound(some: HeadCase) -> tuple[Tensor, Tensor]:
    """The logits in float64, and how far fp32 work may be from them before the last rounding. Both `[b, n]`.

    Let u = 2^-24. A sum of which no term passes more than m roundings errs by at most m u times the sum of the terms'
    sizes. A term is rounded no more than k/16 + 40 times on any backend: in partial sums of at least 16 terms side by
    side, times a scale, in the sum over groups, in that over lanes. The norm adds a sum of squares, half of whose error
    counts, and five roundings: k/64 + 20 will do.
    """
    truth = oracle("w8a16_linear", some.x, some.qweight, some.scales, **some.options)
    normed = oracle("rms_norm", some.x, some.gain, EPS) if some.gain is not None else some.x.double()
    weight = some.qweight.double().unflatten(1, (some.scales.shape[1], -1)) * some.scales.double()[:, :, None]
    k = some.x.shape[1]
    roundings = k / 16 + 40 + (k / 64 + 20 if some.gain is not None else 0)
    return truth, roundings * 2.0**-24 * (normed.abs() @ weight.abs().flatten(1).T)


def linear(backend: Backend, some: HeadCase, *, finite: bool = True) -> Tensor:
    """Runs `w8a16_linear` among guards and holds it against the truth. → `[b, n]`."""
    at_x, at_q, at_s = some.layouts
    x = backend.place(some.x, row_padding=at_x.row_padding, offset=at_x.offset)
    qweight, scales = backend.place(some.qweight, offset=at_q.offset), backend.place(some.scales, offset=at_s.offset)
    options = {**some.options, "out_dtype": some.out_dtype, "prefetch": some.prefetch}
    gain = None if some.gain is None else backend.place(some.gain)
    if gain is not None:
        options["norm_weight"] = gain.tensor
    with case("w8a16_linear", **some.facts):
        out: Tensor = backend.op("w8a16_linear")(x.tensor, qweight.tensor, scales.tensor, **options)
        assert (out.dtype, out.device) == (some.out_dtype or some.x.dtype, x.tensor.device)
        assert out.is_contiguous()
        if finite:
            assert_near(out, *truth_and_bound(some))
        for name, one in (("x", x), ("qweight", qweight), ("scales", scales), ("norm_weight", gain)):
            if one is not None:
                one.check_untouched(name)
    return out


def assert_near(out: Tensor, truth: Tensor, bound: Tensor) -> None:
    """Fails unless `out` is the rounding of a number within `bound` of the truth; a NaN fails."""
    assert out.shape == truth.shape, f"the result has shape {list(out.shape)}; it must be {list(truth.shape)}"
    rounding = 0.5 * ulp(truth.abs() + bound, out.dtype) if out.dtype != FP32 else 0.0
    error = (out.detach().cpu().double() - truth).abs()
    wrong = ~(error <= bound + rounding)
    if wrong.any():
        row, column = (int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} logits are wrong, the first at ({row}, {column}): "
            f"{float(out[row, column])!r} instead of {float(truth[row, column])!r}"
        )


def run(backend: Backend, cases: Iterable[HeadCase]) -> None:
    for some in cases:
        linear(backend, some)


def check_short_rows(backend: Backend) -> None:
    """Up to 32 columns with one scale."""
    run(backend, (head_case(2, 9, k, dtype=dtype, seed=k) for dtype in DTYPES for k in (1, 2, 3, 5, 7, 16, 31, 32)))


def check_whole_row_scales(backend: Backend) -> None:
    """A scale for a whole row, of any length: also where rows begin at odd addresses and end inside a load."""
    run(backend, (head_case(2, 7, k, seed=k) for k in (33, 45, 64, 100, 127, 255, 500, 513, 1000, 1024, 1041, 2056)))


def check_group_scales(backend: Backend) -> None:
    """Groups of 32, 64 and 128, and rows that fill no whole number of steps."""
    for group in (32, 64, 128):
        run(backend, (head_case(2, 6, k * group, group, seed=k) for k in (1, 2, 3, 4, 7, 8, 9)))
    run(backend, (head_case(1, 5, k, group, seed=k) for k, group in ((896, 64), (2048, 128), (2560, 128), (1056, 32))))


def check_every_byte_is_exact(backend: Backend) -> None:
    """All 256 values of a byte, −128 too, in each place of a load: a one among zeros picks one weight of each row."""
    values = torch.arange(-128, 128, dtype=torch.int8)
    for first in range(0, 24, 8):
        x = torch.zeros(8, 32)
        x[range(8), range(first, first + 8)] = 1.0
        some = HeadCase(x, values[:, None].expand(256, 32).contiguous(), torch.ones(256, 1))
        assert_same_bits(linear(backend, some), values.float().expand(8, 256).to(backend.device))


def check_batches_and_dtypes(backend: Backend) -> None:
    """Up to 8 rows of x, of each dtype; logits in that dtype and in float32."""
    for dtype in DTYPES:
        for batch in BATCHES:
            some = head_case(batch, 5, 96, 32, dtype=dtype, seed=batch)
            linear(backend, some)
            linear(backend, replace(some, out_dtype=FP32))
            linear(backend, replace(some, out_dtype=dtype))


def check_any_number_of_rows(backend: Backend) -> None:
    """From one to more than all warps of the grid take at once."""
    run(backend, (head_case(1, n, 64, 32, seed=n) for n in (1, 2, 3, 4, 5, 31, 32, 33, 63, 65, 191, 193, 400, 1000)))
    run(backend, (head_case(5, n, 48, seed=n) for n in (1, 67, 300)))


def check_head_layouts(backend: Backend) -> None:
    """Gaps between the rows of x; addresses that no 16-byte load may use."""
    some = head_case(3, 9, 256, 64)
    for layouts in (
        (Layout(3), DENSE, DENSE),
        (Layout(256, 1), DENSE, DENSE),
        (DENSE, Layout(offset=1), DENSE),
        (DENSE, Layout(offset=8), Layout(offset=1)),
        (Layout(5, 3), Layout(offset=15), Layout(offset=3)),
    ):
        assert_same_bits(linear(backend, replace(some, layouts=layouts)), linear(backend, some))


def check_any_numbers_in_x(backend: Backend) -> None:
    """Tiny, huge and zero numbers in x; weights and scales of zero."""
    for dtype in (BF16, FP32):
        run(backend, (head_case(2, 5, 160, 32, dtype=dtype, kind=kind, seed=3) for kind in KINDS))
    some = head_case(2, 5, 160, 32)
    nothing = replace(some, qweight=torch.zeros_like(some.qweight), scales=torch.zeros_like(some.scales))
    assert not linear(backend, nothing).any()


def check_nan_stays_in_its_row(backend: Backend) -> None:
    """A NaN or infinity in x spoils the logits of its row of x, one in scales those of its row of the weight."""
    some = head_case(3, 6, 192, 64, seed=5)
    clean = linear(backend, some)
    for bad in (torch.nan, torch.inf):
        x = some.x.clone()
        x[1, 100] = bad
        out = linear(backend, replace(some, x=x), finite=False)
        assert not out[1].isfinite().any()
        assert_same_bits(out[[0, 2]], clean[[0, 2]])
        scales = some.scales.clone()
        scales[4, 2] = bad
        out = linear(backend, replace(some, scales=scales), finite=False)
        assert not out[:, 4].isfinite().any()
        others = [0, 1, 2, 3, 5]
        assert_same_bits(out[:, others], clean[:, others])


def check_head_bits_do_not_depend_on_company(backend: Backend) -> None:
    """Twice the same, alone and in a batch, with and without prefetch, also for rows of which shared memory holds few.

    The reference is left out: BLAS may sum in an order that depends on the batch.
    """
    if backend.name == "reference":
        return
    for batch, n, k, group in ((8, 6, 640, 64), (5, 40, 96, 32), (8, 3, 2560, 128), (3, 5, 100, None)):
        some = replace(head_case(batch, n, k, group, dtype=FP32, seed=k), out_dtype=FP32)
        together = linear(backend, some)
        assert_same_bits(linear(backend, replace(some, prefetch=True)), together)
        for i in range(batch):
            assert_same_bits(linear(backend, replace(some, x=some.x[i : i + 1])), together[i : i + 1])
        first = replace(some, qweight=some.qweight[:2].clone(), scales=some.scales[:2].clone())
        assert_same_bits(linear(backend, first), together[:, :2])


def check_norm_before_the_head(backend: Backend) -> None:
    """RMSNorm of x in fp32, its weight in a dtype of its own, and nothing rounded before the product."""
    for dtype in DTYPES:
        for gain in DTYPES:
            run(backend, (head_case(2, 6, k, dtype=dtype, gain=gain, kind="wide", seed=k) for k in (7, 100, 512)))
    for k in (32, 896, 1024, 2560):
        some = head_case(2, 6, k, 32, gain=BF16, kind="spike", seed=k)
        linear(backend, replace(some, out_dtype=FP32))
    some = replace(head_case(8, 6, 640, 64, gain=BF16, kind="wide"), out_dtype=FP32)
    together = linear(backend, some)
    assert_same_bits(linear(backend, replace(some, prefetch=True)), together)
    for i in range(8):
        assert_same_bits(linear(backend, replace(some, x=some.x[i : i + 1])), together[i : i + 1])


def check_norm_of_zeros(backend: Backend) -> None:
    """eps keeps a row of zeros at zero, and counts where x is small."""
    assert not linear(backend, head_case(2, 6, 64, 32, kind="zeros", gain=FP32)).any()
    some = head_case(2, 6, 64, 32, dtype=FP32, gain=FP32)
    linear(backend, replace(some, x=some.x * 1e-3))


PLAIN_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_short_rows,
    check_whole_row_scales,
    check_group_scales,
    check_every_byte_is_exact,
    check_batches_and_dtypes,
    check_any_number_of_rows,
    check_head_layouts,
    check_any_numbers_in_x,
    check_nan_stays_in_its_row,
    check_head_bits_do_not_depend_on_company,
)
NORM_CHECKS: tuple[Callable[[Backend], None], ...] = (check_norm_before_the_head, check_norm_of_zeros)
W8_CHECKS = (*PLAIN_CHECKS, *NORM_CHECKS)
# Many elements: they cost more than all others together.
LARGE = frozenset((check_whole_row_scales, check_group_scales, check_head_bits_do_not_depend_on_company))
