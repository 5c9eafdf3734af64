"""Settings of this chapter's tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "chapters.ch10_quantized_kv.attention_cases",
    "chapters.ch10_quantized_kv.attention_checks",
    "chapters.ch10_quantized_kv.fused_cases",
    "chapters.ch10_quantized_kv.fused_checks",
    "chapters.ch10_quantized_kv.query_checks",
    "chapters.ch10_quantized_kv.store_checks",
    "chapters.ch10_quantized_kv.store_runs",
)


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread: None) -> None:
    """All on one thread of PyTorch."""
