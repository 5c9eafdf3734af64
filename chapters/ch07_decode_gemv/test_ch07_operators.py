"""decode_linear on every backend: accuracy, layouts, determinism, NaN.

`make exercise 7` runs these tests on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch07_decode_gemv.decode_linear_checks import DECODE_LINEAR_CHECKS, check_bits_do_not_depend_on_layout
from chapters.ch07_decode_gemv.linear_cases import LinearCase, linear_case, multiply
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import Layout, examples, layouts, seeds, sizes


@pytest.mark.parametrize("check", DECODE_LINEAR_CHECKS, ids=lambda check: check.__name__)
def test_decode_linear(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


def test_decode_linear_adds_in_one_order(registered_backend: Backend) -> None:
    check_bits_do_not_depend_on_layout(registered_backend)


@st.composite
def any_case(draw: st.DrawFn) -> LinearCase:
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16]))
    silu_mul = draw(st.booleans())
    b, n, k = (
        draw(st.integers(1, 8)),
        draw(st.integers(1, 40)),
        draw(sizes(4096) | st.integers(1, 700).map((8).__mul__)),
    )
    return linear_case(
        b,
        2 * n if silu_mul else n,
        k,
        dtype=dtype,
        x_dtype=draw(st.sampled_from([dtype, torch.float32])),
        out_dtype=draw(st.sampled_from([None, torch.float32])),
        norm=draw(st.booleans()),
        residual=not silu_mul and draw(st.booleans()),
        silu_mul=silu_mul,
        kind=draw(st.sampled_from(["plain", "spike"])),
        seed=draw(seeds()),
    )


@examples(60)
@given(any_case(), layouts(), st.booleans())
def test_decode_linear_of_any_shape(backend: Backend, some: LinearCase, layout: Layout, prefetch: bool) -> None:
    multiply(backend, some, {"x": layout, "residual": layout}, prefetch)
