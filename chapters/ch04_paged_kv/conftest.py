"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chapters.ch04_paged_kv.cache_write_checks", "chapters.ch04_paged_kv.cache_write_runs")


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
