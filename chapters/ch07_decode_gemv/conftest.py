"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "chapters.ch05_grouped_attention.paged_cases",
    "chapters.ch07_decode_gemv.linear_cases",
    "chapters.ch07_decode_gemv.decode_linear_checks",
)


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
