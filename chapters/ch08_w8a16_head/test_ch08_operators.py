"""The int8 head on every backend: accuracy, layouts, determinism, NaN; and the argmax that writes no logits.

`make exercise 8` runs the tests of w8a16_linear on the learner's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chapters.ch08_w8a16_head.argmax_checks import HEAD_ARGMAX_CHECKS, W8_ARGMAX_CHECKS, largest
from chapters.ch08_w8a16_head.w8_checks import NORM_CHECKS, PLAIN_CHECKS, head_case, linear
from qwen_cuda.testing.backends import Backend, schedule
from qwen_cuda.testing.numbers import KINDS, Kind
from qwen_cuda.testing.strategies import dtypes, examples, seeds


@pytest.mark.parametrize("check", PLAIN_CHECKS, ids=lambda check: check.__name__)
def test_w8a16_linear(backend: Backend, check: Callable[[Backend], None]) -> None:
    check(backend)


@pytest.mark.parametrize("check", NORM_CHECKS, ids=lambda check: check.__name__)
def test_w8a16_linear_with_a_norm(registered_backend: Backend, check: Callable[[Backend], None]) -> None:
    check(registered_backend)


@pytest.mark.parametrize("check", [*W8_ARGMAX_CHECKS, *HEAD_ARGMAX_CHECKS], ids=lambda check: check.__name__)
def test_argmax_of_a_head(registered_backend: Backend, check: Callable[[Backend], None]) -> None:
    check(registered_backend)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_blocks_does_not_change_the_argmax(registered_backend: Backend, seed: int) -> None:
    with schedule(seed):
        for check in W8_ARGMAX_CHECKS:
            check(registered_backend)


@examples(60)
@given(
    st.integers(0, 8),
    st.integers(1, 60),
    st.integers(1, 6),
    st.sampled_from([None, 32, 64, 128]),
    dtypes(),
    st.sampled_from([kind for kind in KINDS if kind != "huge"]),
    st.booleans(),
    seeds(),
)
def test_any_head(
    registered_backend: Backend,
    batch: int,
    n: int,
    groups: int,
    group: int | None,
    dtype: object,
    kind: Kind,
    normed: bool,
    seed: int,
) -> None:
    """Logits are right and their argmax is found, whatever the sizes are; without groups k is any number."""
    k = groups * group if group else groups * 37 + n
    some = head_case(batch, n, k, group, dtype=dtype, kind=kind, seed=seed, gain=dtype if normed else None)  # type: ignore[arg-type]
    linear(registered_backend, some)
    largest(registered_backend, some)
