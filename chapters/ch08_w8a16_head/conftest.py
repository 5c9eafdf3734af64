"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chapters.ch08_w8a16_head.w8_checks", "chapters.ch08_w8a16_head.argmax_checks")


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
