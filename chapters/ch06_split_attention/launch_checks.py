"""The two ways to launch a split, each alone, on contexts that the grid can hold: the first holes of the exercise."""

from __future__ import annotations

from collections.abc import Callable

from chapters.ch05_grouped_attention.paged_cases import Heads, PagedCase, paged_case
from chapters.ch06_split_attention.split_checks import partials, split
from qwen_cuda.testing.backends import Backend

CUT = (16, 8)  # tokens, partitions: more than the table of the case holds


def ragged() -> PagedCase:
    return paged_case((0, 5, 33, 64), Heads(kv_heads=1, group=2), seed=32)


def check_two_launches(backend: Backend) -> None:
    """Partials, each held against float64, and then their merge."""
    partials(backend, ragged(), CUT)


def check_one_launch(backend: Backend) -> None:
    """The block that ends last merges."""
    split(backend, ragged(), CUT)


LAUNCH_CHECKS: tuple[Callable[[Backend], None], ...] = (check_two_launches, check_one_launch)
