"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Small products on one thread: the threads' barriers would cost more than the work, by far on a busy machine."""
