"""What this chapter promises of silu_mul, each promise a function of the backend that must keep it.

They raise AssertionError. Three kinds of callers: the tests, on every backend; the tests of the ladder, on each step;
the mutants, which at least one of them must notice. Sizes come in the order in which the exercise fills its holes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.cases import case
from qwen_cuda.testing.numbers import DTYPES, KINDS, Kind, rows_of_numbers
from qwen_cuda.testing.references import oracle
from qwen_cuda.testing.strategies import Layout
from qwen_cuda.testing.ulp import assert_same_bits, assert_within_ulp

SHORT = (1, 2, 3, 5, 7)  # of one thread in the exercise
ODD = (9, 33, 63, 255, 257, 1023, 1025)
WHOLE_PACKS = (8, 16, 64, 128, 256, 1024, 3072, 4864)
LONG = (9728, 16392, 40001)
MANY = 1027  # rows: their packs end inside a block, in every format
DENSE = Layout()
EXP_OVERFLOWS = -88.7  # below it exp(−z) is beyond float32

# How far a result may lie from the truth: half an ulp for the one rounding, and what float32 work costs before it. Let
# u = 2^-24. With float32 out: an exponential within 2 ulp (4 u; half as much again through the denominator), a product
# and a sum in the fraction, its division and the product with up, each u: 10 u, and an ulp is worth at least u of the
# value. 16-bit formats use __expf, which errs by 2 + 1.16 |z| ulp: for |z| < 89, all that bfloat16 shows, 2^-16 of the
# value and 2^-8 of an ulp; float16 shows |z| < 25 and 2^-18, 2^-7 of an ulp. A second rounding would show.
ULPS = {torch.bfloat16: 0.51, torch.float16: 0.51, torch.float32: 10.5}


def product(backend: Backend, values: Tensor, layout: Layout = DENSE, nan: bool = False) -> Tensor:
    """Runs `silu_mul` on a guarded copy and holds it against the truth. `values: [..., 2m]` → the result `[..., m]`.

    Where exp(−gate) is beyond float32, SiLU is smaller than 2^-121, and 0 will do for it: that is what PyTorch gives.
    """
    gate_up = backend.place(values, row_padding=layout.row_padding, offset=layout.offset)
    with case("silu_mul", shape=tuple(values.shape), dtype=values.dtype, gate_up=layout):
        out: Tensor = backend.op("silu_mul")(gate_up.tensor)
        assert (out.dtype, out.device, out.is_contiguous()) == (values.dtype, gate_up.tensor.device, True)
        gate, up = values.double().chunk(2, dim=-1)
        slack = torch.where(gate < EXP_OVERFLOWS, up.abs() * 2.0**-121, 0.0)
        assert_near(out, values, slack, nan)
        gate_up.check_untouched("gate_up")
    return out


def assert_near(out: Tensor, values: Tensor, slack: Tensor, nan: bool = False) -> None:
    """Fails unless `out` lies within `ULPS` of a number that is no further than `slack` from the truth."""
    truth = oracle("silu_mul", values)
    assert out.shape == truth.shape, f"the result has shape {list(out.shape)}; it must be {list(truth.shape)}"
    nearest = torch.where(slack > 0, out.cpu().double().clamp(truth - slack, truth + slack), truth)
    assert_within_ulp(out, nearest, ULPS[out.dtype], nan=nan)


def padded(size: int, dtype: torch.dtype) -> tuple[Layout, Layout]:
    """Gaps after which each row of `2 · size` begins at a multiple of 16 bytes."""
    pack = 16 // dtype.itemsize
    return Layout(row_padding=-2 * size % pack), Layout(row_padding=-2 * size % pack + pack)


def sized(backend: Backend, sizes: tuple[int, ...], rows: int, kind: Kind = "wide") -> None:
    """`silu_mul` on `rows` rows of each size and dtype."""
    for dtype in DTYPES:
        for size in sizes:
            product(backend, rows_of_numbers((rows, 2 * size), dtype, seed=size, kind=kind))


def check_short_rows(backend: Backend) -> None:
    """Up to 7 elements: no whole pack in 16 bits."""
    sized(backend, SHORT, rows=5)


def check_odd_rows(backend: Backend) -> None:
    """No multiple of a 16-byte load: up is not aligned although gate is."""
    sized(backend, ODD, rows=3)


def check_rows_of_whole_packs(backend: Backend) -> None:
    """Multiples of a 16-byte load, among them the intermediate sizes of real models."""
    sized(backend, WHOLE_PACKS, rows=3)


def check_long_rows(backend: Backend) -> None:
    """Many blocks for one row."""
    sized(backend, LONG, rows=1, kind="plain")


def check_many_rows(backend: Backend) -> None:
    """Many rows for one block, many small blocks, and so many packs that blocks are large; also no row at all."""
    for dtype in DTYPES:
        for shape in ((0, 64), (MANY, 6), (MANY, 16)):
            product(backend, rows_of_numbers(shape, dtype, seed=shape[0], kind="wide"))
    for shape in ((MANY, 144), (MANY // 3, 1040), (MANY // 3, 1042), (176, 6144), (176, 6150)):
        product(backend, rows_of_numbers(shape, torch.bfloat16, seed=2, kind="wide"))


def check_leading_dimensions(backend: Backend) -> None:
    """One row without a dimension for rows, several such dimensions, an empty one."""
    for shape in ((40,), (2, 3, 40), (3, 1, 2, 40), (2, 0, 40)):
        values = rows_of_numbers(shape, torch.bfloat16, seed=5, kind="wide")
        for layout in (DENSE, Layout(row_padding=8)):
            assert product(backend, values, layout).shape == (*shape[:-1], 20)


def check_layouts(backend: Backend) -> None:
    """Gaps between rows, and addresses that no 16-byte load may use."""
    for dtype in DTYPES:
        pack = 16 // dtype.itemsize
        for size in (7, 8, 33, 256, 1024, 1025):
            values = rows_of_numbers((3, 2 * size), dtype, seed=size + 7, kind="wide")
            for layout in (
                *padded(size, dtype),
                Layout(row_padding=1),
                Layout(row_padding=2 * size),
                Layout(offset=1),
                Layout(offset=pack // 2),
                Layout(row_padding=3, offset=pack - 1),
            ):
                product(backend, values, layout)


def check_any_kind_of_numbers(backend: Backend) -> None:
    """Tiny, huge and zero elements. The product of huge ones is beyond float16, and infinite there."""
    for dtype in DTYPES:
        for kind in KINDS:
            for size in (9, 256, 1030):
                product(backend, rows_of_numbers((3, 2 * size), dtype, seed=size, kind=kind))


def check_every_gate(backend: Backend) -> None:
    """From −120, where exp(−gate) overflows, over 0 and −0 to 120, where it vanishes."""
    for dtype in DTYPES:
        gate = torch.cat((torch.linspace(-120, 120, 1999, dtype=torch.float64), torch.tensor([0.0, -0.0])))
        up = rows_of_numbers((3, gate.numel()), dtype, seed=4)
        product(backend, torch.cat((gate.to(dtype).expand_as(up), up), dim=-1))


def check_nan_and_infinity_stay_in_their_element(backend: Backend) -> None:
    """A NaN or an infinity gives what the formula gives for its element; no other element changes."""
    for dtype in DTYPES:
        for size in (7, 257, 1024):
            values = rows_of_numbers((4, 2 * size), dtype, seed=size)
            clean = product(backend, values)
            for place in (0, size // 2, size - 1):
                for column in (place, size + place):  # gate, up
                    for bad in (torch.nan, torch.inf, -torch.inf):
                        spoilt = values.clone()
                        spoilt[2, column] = bad
                        out = product(backend, spoilt, nan=True)
                        assert not bool(out[2, place].isfinite())
                        out[2, place] = clean[2, place]
                        assert_same_bits(out, clean)


def check_same_bits_every_time(backend: Backend) -> None:
    """Twice the same; alone, in a batch and among many rows the same; however the row lies in memory the same."""
    for dtype in DTYPES:
        for size in (33, 896, 1024, 3072):
            values = rows_of_numbers((3, 2 * size), dtype, seed=size, kind="wide")
            batch = product(backend, values)
            assert_same_bits(product(backend, values), batch)
            for layout in (*padded(size, dtype), Layout(row_padding=1, offset=1)):
                assert_same_bits(product(backend, values, layout), batch)
            for row in range(3):
                assert_same_bits(product(backend, values[row : row + 1]), batch[row : row + 1])
    values = rows_of_numbers((3, 520), torch.bfloat16, seed=1, kind="wide")
    assert_same_bits(product(backend, values.repeat(MANY // 3, 1))[-3:], product(backend, values))


def check_gates_beyond_the_range_of_exp(backend: Backend) -> None:
    """Our kernels keep what PyTorch rounds to zero: SiLU below −88.7, times a large up.

    exp(gate) is a subnormal float32 number below −87.3; half a step of those, 2^-150, is all that is lost.
    """
    for dtype in (torch.bfloat16, torch.float32):
        gate = torch.linspace(-110, -80, 601, dtype=torch.float64).to(dtype)
        for size in (gate.numel(), 600):  # element by element, and in packs
            for up in (1.0, -3e4, 1e30):
                values = torch.cat((gate[:size], torch.full((size,), up, dtype=dtype)))[None]
                out = backend.op("silu_mul")(values.to(backend.device))
                wide, factor = values.double().chunk(2, dim=-1)
                with case("silu_mul", dtype=dtype, gate="from -110 to -80", up=up):
                    assert_near(out, values, torch.where(wide < -87, (wide * factor).abs() * 2.0**-149, 0.0))


SILU_MUL_CHECKS: tuple[Callable[[Backend], None], ...] = (
    check_short_rows,
    check_odd_rows,
    check_rows_of_whole_packs,
    check_any_kind_of_numbers,
    check_every_gate,
    check_layouts,
    check_leading_dimensions,
    check_nan_and_infinity_stay_in_their_element,
    check_same_bits_every_time,
    check_many_rows,
    check_long_rows,
)
# Many elements: they cost more than all others together.
LARGE = frozenset((check_many_rows, check_long_rows, check_same_bits_every_time))
