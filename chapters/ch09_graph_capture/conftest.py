"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "chapters.ch09_graph_capture.advance_checks", "chapters.ch09_graph_capture.prompt_checks"
)


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
