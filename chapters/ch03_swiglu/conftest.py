"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chapters.ch03_swiglu.silu_mul_checks", "chapters.ch03_swiglu.hf_rounding_checks")


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
