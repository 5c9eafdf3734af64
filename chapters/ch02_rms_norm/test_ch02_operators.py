"""rms_norm and add_rms_norm on every backend: accuracy, layouts, in place, determinism, NaN.

`make exercise 2` runs these tests on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch02_rms_norm.add_rms_norm_checks import ADD_RMS_NORM_CHECKS, add_norm
from chapters.ch02_rms_norm.rms_norm_checks import (
    RMS_NORM_CHECKS,
    check_float32_is_as_near_as_hugging_faces_order,
    norm,
)
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.strategies import Layout, Rows, examples, layouts, rows


@pytest.mark.parametrize("check", RMS_NORM_CHECKS, ids=lambda check: check.__name__)
def test_rms_norm(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@pytest.mark.parametrize("check", ADD_RMS_NORM_CHECKS, ids=lambda check: check.__name__)
def test_add_rms_norm(backend: Backend, check: Callable[[Backend], None]) -> None:
    backend.require("add_rms_norm")
    check(backend)


def test_float32_is_as_near_as_hugging_faces_order(backend: Backend) -> None:
    check_float32_is_as_near_as_hugging_faces_order(backend)


@examples(100)
@given(rows(6000), layouts(), st.integers(0, 8), st.sampled_from([1e-6, 1e-5, 1e-2]))
def test_rms_norm_of_any_rows(backend: Backend, some: Rows, layout: Layout, weight_offset: int, eps: float) -> None:
    norm(backend, some.values(), eps, layout, weight_offset)


@examples(100)
@given(rows(6000), layouts(), layouts(), st.integers(0, 8))
def test_add_rms_norm_of_any_rows(
    backend: Backend, some: Rows, layout: Layout, other_layout: Layout, weight_offset: int
) -> None:
    backend.require("add_rms_norm")
    add_norm(backend, some.values(), some.values(1), 1e-6, (layout, other_layout), weight_offset)
