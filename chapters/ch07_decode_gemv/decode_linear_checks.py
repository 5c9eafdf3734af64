"""What this chapter promises of decode_linear, each promise a function of the backend that must keep it.

They raise AssertionError. Three kinds of callers: the tests, on every backend; the tests of the ladder, on each step;
the mutants, which at least one of them must notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from chapters.ch07_decode_gemv.linear_cases import BF16, FP16, FP32, LinearCase, linear_case, multiply, run
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import KINDS, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits

SEGMENT = 256  # columns of a row that a warp takes at once
CHUNK = 4 * SEGMENT  # and a warp of the ladder's steps
# Many times more rows than the simulator's two SMs have warps: each goes from group to group.
MANY = 613
AROUND: tuple[dict[str, Any], ...] = (
    {},
    {"norm": True},
    {"residual": True},
    {"norm": True, "residual": True},
    {"norm": True, "silu_mul": True},
)


def same_bits(backend: Backend, actual: Tensor, expected: Tensor) -> None:
    """`assert_same_bits`, but of PyTorch's product, which promises no order."""
    if backend.name != "reference":
        assert_same_bits(actual, expected)


def check_small_products(backend: Backend) -> None:
    """Rows shorter than a 16-byte load, and rows that end inside one."""
    for dtype in (BF16, FP16):
        for k in (1, 2, 7, 8, 9, 31, 33, 257):
            multiply(backend, linear_case(1, 5, k, dtype=dtype))
        multiply(backend, linear_case(1, 1, 1, dtype=dtype))


def check_rows_of_one_segment(backend: Backend) -> None:
    """Up to 256 columns: a warp has whole rows, and the last group fewer of them."""
    for k in (8, 64, 136, SEGMENT - 8, SEGMENT):
        for n in (1, 3, 8, 17, 66):
            multiply(backend, linear_case(1, n, k, seed=n))
    multiply(backend, linear_case(1, 200, 72))  # several groups of rows for each block, in the simulator


def check_rows_of_several_segments(backend: Backend) -> None:
    """A block has a warp for each segment. The last one may be short, even of one load."""
    for k in (SEGMENT + 8, 896, CHUNK, CHUNK + 8, 2560, 3 * CHUNK, 3 * CHUNK + 8, 4 * CHUNK, 1031, 2049):
        for n in (1, 2, 17):
            multiply(backend, linear_case(1, n, k))


def check_rows_of_many_segments(backend: Backend) -> None:
    """More segments than a block has warps: each takes several, and not all as many."""
    for k in (4 * CHUNK + 8, 5 * CHUNK, 9728, 8 * CHUNK + 1):
        for around in AROUND:
            multiply(backend, linear_case(1, 6, k, **around))
    multiply(backend, linear_case(3, 6, 5 * CHUNK, norm=True))
    multiply(backend, linear_case(1, 40, 5 * CHUNK, norm=True))


def check_many_rows_of_weights(backend: Backend) -> None:
    """More groups of rows than warps, so that each takes several in turn; whole ones and a last one that is not."""
    for around in AROUND:
        multiply(backend, linear_case(1, MANY + 1, 72, **around))
    multiply(backend, linear_case(1, 512, 72, norm=True))
    multiply(backend, linear_case(1, MANY, 1030))
    multiply(backend, linear_case(1, 259, 2 * CHUNK, norm=True))
    multiply(backend, linear_case(3, 130, 3 * CHUNK))
    multiply(backend, linear_case(2, MANY, 72, norm=True))


def check_every_batch(backend: Backend) -> None:
    """1 to 8 rows of x, with all that may stand around the product."""
    for b in range(1, 9):
        for around in AROUND:
            for k in (136, CHUNK + 64, 75):
                multiply(backend, linear_case(b, 10, k, **around))


def check_every_dtype(backend: Backend) -> None:
    """x and the result in the weight's dtype or in float32, each by itself; and rows so short that each bit shows."""
    for dtype in (BF16, FP16):
        for k in (1, 2, 7, 8, 9):
            multiply(backend, linear_case(1, 5, k, dtype=dtype, x_dtype=FP32, out_dtype=FP32, norm=True))
        for x_dtype in (dtype, FP32):
            for out_dtype in (None, dtype, FP32):
                for around in AROUND:
                    for b, k in ((1, 520), (2, 2080), (2, 77)):
                        multiply(
                            backend,
                            linear_case(b, 6, k, dtype=dtype, x_dtype=x_dtype, out_dtype=out_dtype, **around),
                        )


def check_the_norm_of_any_numbers(backend: Backend) -> None:
    """Rows of any size, tiny ones, whose norm eps decides, and zeros."""
    for kind in KINDS:
        for x_dtype in (BF16, FP32):
            for b, k in ((1, CHUNK), (3, CHUNK + 24)):
                multiply(backend, linear_case(b, 6, k, x_dtype=x_dtype, norm=True, kind=kind))
    for eps in (0.0, 1e-2, 3.0):
        for b, k in ((1, CHUNK), (2, 2 * CHUNK), (1, 33)):
            multiply(backend, linear_case(b, 6, k, norm=True).with_(eps=eps))


def check_silu_of_any_gate(backend: Backend) -> None:
    """Gates from −120, where exp(−gate) overflows, to 120: x is one number, and the weights are gate and up."""
    gate = torch.linspace(-120, 120, 97, dtype=torch.float64)
    for dtype in (BF16, FP16):
        up = rows_of_numbers((gate.numel(),), dtype, seed=4).double()
        weight = torch.cat((gate, up))[:, None].to(dtype)
        for out_dtype in (dtype, FP32):
            one = torch.ones(1, 1, dtype=dtype)
            multiply(backend, LinearCase(one, weight, silu_mul=True, out_dtype=out_dtype))


def check_layouts_of_linear_operands(backend: Backend) -> None:
    """Gaps between rows, and addresses that no 16-byte load may use."""
    for some, layouts in _layouts():
        multiply(backend, some, layouts)


def check_bits_do_not_depend_on_layout(backend: Backend) -> None:
    """Our kernels add in one order, wherever x, W, the gain and the residual lie."""
    for some, layouts in _layouts():
        same_bits(backend, run(backend, some, layouts), run(backend, some))


def _layouts() -> Iterator[tuple[LinearCase, dict[str, Layout]]]:
    for around in AROUND:
        for b, k in ((1, 264), (3, 264), (2, CHUNK + 8)):
            some = linear_case(b, 6, k, **around)
            for layout in (Layout(offset=1), Layout(row_padding=8), Layout(row_padding=5), Layout(3, 4)):
                yield some, {"x": layout}
                if some.residual is not None:
                    yield some, {"residual": layout}
            yield some, {"weight": Layout(offset=4)}
            if some.norm_weight is not None:
                yield some, {"norm_weight": Layout(offset=4)}
    wide = linear_case(2, 4, 264, x_dtype=FP32, out_dtype=FP32, residual=True)
    for layout in (Layout(offset=1), Layout(row_padding=2)):
        yield wide, {"x": layout, "residual": layout}


def check_bits_do_not_depend_on_company(backend: Backend) -> None:
    """A row of x gives the same bits alone and in a batch, a row of W with more of them; and so does each call again.

    Very many rows of W are walked over, which may be another order.
    """
    for around in AROUND:
        for k in (136, CHUNK, 3 * CHUNK, 5 * CHUNK, 75):
            some = linear_case(7, 12, k, x_dtype=FP32, out_dtype=FP32, **around)
            batch = multiply(backend, some)
            same_bits(backend, run(backend, some), batch)
            for r in range(7):
                same_bits(backend, run(backend, some.row(r)), batch[r : r + 1])
            for b in (2, 3, 5):
                few = some.with_(x=some.x[:b], residual=None if some.residual is None else some.residual[:b])
                same_bits(backend, run(backend, few), batch[:b])
    for k in (72, CHUNK + 8):
        some = linear_case(2, MANY, k, out_dtype=FP32, norm=True)
        batch = run(backend, some)
        for r in range(2):
            same_bits(backend, run(backend, some.row(r)), batch[r : r + 1])
    for n, rows in ((30, slice(0, 5)), (30, slice(7, 30)), (MANY, slice(0, MANY - 70)), (MANY, slice(70, MANY))):
        for dtype in (BF16, FP16):
            for k in (72, CHUNK + 8):
                some = linear_case(1, n, k, dtype=dtype, out_dtype=FP32, norm=k > CHUNK)
                part = run(backend, some.with_(weight=some.weight[rows]))
                same_bits(backend, part, run(backend, some)[:, rows])


def check_prefetch_changes_no_bit(backend: Backend) -> None:
    for around in AROUND:
        for b, n, k in ((1, 9, CHUNK), (1, MANY, 72), (2, 8, 2 * CHUNK), (1, 4, 5 * CHUNK), (1, 4, 19)):
            some = linear_case(b, n + n % 2, k, **around)
            same_bits(backend, multiply(backend, some, prefetch=True), run(backend, some))


def check_nan_and_infinity_pass_through(backend: Backend) -> None:
    """What is not finite in a row of x spoils that row of the result alone; in a row of W, that column.

    With a norm an infinity may become a NaN: our kernels cut x into parts, whose products with it differ in sign.
    """
    for norm in (False, True):
        for b, k in ((3, 264), (2, 2 * CHUNK), (1, 5 * CHUNK), (1, 9)):
            some = linear_case(b, 6, k, norm=norm)
            clean = run(backend, some)
            for place in (0, k // 2, k - 1):
                for bad in (torch.nan, torch.inf, -torch.inf):
                    x, weight = some.x.clone(), some.weight.clone()
                    x[b - 1, place], weight[4, place] = bad, bad
                    spoilt = run(backend, some.with_(x=x))
                    _same_kind_of_number(spoilt, some.with_(x=x))
                    assert not spoilt[b - 1].isfinite().any()
                    same_bits(backend, spoilt[: b - 1], clean[: b - 1])
                    spoilt = run(backend, some.with_(weight=weight))
                    if not norm:
                        _same_kind_of_number(spoilt, some.with_(weight=weight))
                    assert not spoilt[:, 4].isfinite().any()
                    spoilt[:, 4] = clean[:, 4]
                    same_bits(backend, spoilt, clean)
    nothing = linear_case(2, 4, 16, residual=True)
    assert nothing.residual is not None
    nothing.residual[1, 2] = torch.inf
    assert run(backend, nothing)[1].cpu().isinf().tolist() == [False, False, True, False]


def _same_kind_of_number(out: Tensor, some: LinearCase) -> None:
    """NaN where the truth is NaN, an infinity where it is that."""
    truth = oracle("decode_linear", some.x, some.weight, norm_weight=some.norm_weight, eps=some.eps)
    torch.testing.assert_close(
        torch.where(out.cpu().isfinite(), 0.0, out.cpu().double()), torch.where(truth.isfinite(), 0.0, truth),
        equal_nan=True,
    )  # fmt: skip


def check_no_further_from_the_truth_than_pytorch(backend: Backend) -> None:
    """The mean error is at most that of the same operations one by one, each rounded as Hugging Face's code rounds."""
    for dtype in (BF16, FP16):
        for around in AROUND:
            some = linear_case(4, 64, CHUNK, dtype=dtype, **around)
            truth = oracle(
                "decode_linear",
                some.x,
                some.weight,
                norm_weight=some.norm_weight,
                eps=some.eps,
                residual=some.residual,
                silu_mul=some.silu_mul,
            )
            with case("decode_linear", **some.facts):
                ours, theirs = (
                    float((out.cpu().double() - truth).abs().mean()) for out in (run(backend, some), _one_by_one(some))
                )
                # Of a lone product the one rounding is all the error there is, and both have it.
                assert ours <= theirs * (1.02 if not around else 1.0), f"{ours} is more than {theirs}"


def _one_by_one(some: LinearCase) -> Tensor:
    x = some.x
    if some.norm_weight is not None:
        wide = x.float()
        x = some.norm_weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + some.eps)).to(x.dtype)
    out = torch.nn.functional.linear(x, some.weight)
    if some.silu_mul:
        gate, up = out.chunk(2, dim=1)
        out = torch.nn.functional.silu(gate) * up
    return out if some.residual is None else out + some.residual


DECODE_LINEAR_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_small_products,
    check_rows_of_one_segment,
    check_rows_of_several_segments,
    check_every_batch,
    check_every_dtype,
    check_the_norm_of_any_numbers,
    check_silu_of_any_gate,
    check_layouts_of_linear_operands,
    check_nan_and_infinity_pass_through,
    check_prefetch_changes_no_bit,
    check_no_further_from_the_truth_than_pytorch,
    check_rows_of_many_segments,
    check_many_rows_of_weights,
    check_bits_do_not_depend_on_company,
)
# Long sums and many rows: they cost more than all others together.
LARGE = frozenset(DECODE_LINEAR_CHECKS[-6:])
