"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chapters.ch02_rms_norm.rms_norm_checks", "chapters.ch02_rms_norm.add_rms_norm_checks")


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
