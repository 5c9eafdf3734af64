"""silu_mul on every backend: accuracy, layouts, determinism, NaN; and Hugging Face's order of roundings.

`make exercise 3` runs the tests of silu_mul on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from chapters.ch03_swiglu.hf_rounding_checks import HF_NORM_CHECKS, HF_SILU_CHECKS
from chapters.ch03_swiglu.silu_mul_checks import SILU_MUL_CHECKS, check_gates_beyond_the_range_of_exp, product
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import Layout, Rows, examples, layouts, rows


@pytest.mark.parametrize("check", SILU_MUL_CHECKS, ids=lambda check: check.__name__)
def test_silu_mul(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@examples(100)
@given(rows(6000), layouts())
def test_silu_mul_of_any_rows(backend: Backend, some: Rows, layout: Layout) -> None:
    even = Rows(some.rows, some.size + some.size % 2, some.dtype, some.kind, some.seed)
    product(backend, even.values(), layout)


def test_silu_is_no_zero_where_exp_overflows(registered_backend: Backend) -> None:
    check_gates_beyond_the_range_of_exp(registered_backend)


@pytest.mark.parametrize("check", [*HF_SILU_CHECKS, *HF_NORM_CHECKS], ids=lambda check: check.__name__)
def test_hugging_faces_order(registered_backend: Backend, check: Callable[[Backend], None]) -> None:
    check(registered_backend)
