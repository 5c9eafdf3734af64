"""Tells in which case a check failed: a check runs many, and a report without its shape is half a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def case(operator: str, **facts: Any) -> Iterator[None]:
    """What fails inside says at its end which case it was: `rms_norm: shape [3, 33]; eps 1e-06`."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        told = "; ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in facts.items())
        error.add_note(f"{operator}: {told}")
        raise


def _short(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value).removeprefix("torch.")
