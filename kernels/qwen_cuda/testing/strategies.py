"""Hypothesis strategies for what a kernel's arguments may be: sizes, dtypes, layouts, numbers.

They draw descriptions, not tensors: a description prints well when an example fails, and shrinks well before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from qwen_cuda.testing.numbers import DTYPES, KINDS, SIZES, Kind, rows_of_numbers


def examples(count: int) -> settings:
    """A decorator for a property test: so many examples, the same ones in each run, however long each takes."""
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


def sizes(largest: int) -> st.SearchStrategy[int]:
    """Lengths of a last dimension up to `largest`: borders of vectors, warps and blocks, and any other number."""
    return st.sampled_from([size for size in SIZES if size <= largest]) | st.integers(1, largest)


def dtypes() -> st.SearchStrategy[torch.dtype]:
    return st.sampled_from(DTYPES)


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**16)


@dataclass(frozen=True)
class Layout:
    """Where a tensor lies: `row_padding` elements between rows, `offset` elements behind a 16-byte border."""

    row_padding: int = 0
    offset: int = 0

    def __str__(self) -> str:
        rows = f"with {self.row_padding} elements between rows" if self.row_padding else "dense"
        return f"{rows}, {self.offset} elements behind a 16-byte border" if self.offset else rows


def layouts() -> st.SearchStrategy[Layout]:
    """Dense and aligned half of the time; else with gaps, aligned or not."""
    gaps = st.sampled_from([0, 1, 3, 4, 8, 64])
    return st.just(Layout()) | st.builds(Layout, row_padding=gaps, offset=st.sampled_from([0, 1, 2, 4, 8]))


@dataclass(frozen=True)
class Rows:
    """Rows of random numbers: `values` makes them."""

    rows: int
    size: int
    dtype: torch.dtype
    kind: Kind
    seed: int

    def values(self, stream: int = 0) -> Tensor:
        """`[rows, size]` on the CPU; another `stream` gives other numbers."""
        return rows_of_numbers((self.rows, self.size), self.dtype, seed=self.seed + 65_537 * stream, kind=self.kind)


@st.composite
def rows(draw: st.DrawFn, most_elements: int, largest: int = 4096) -> Rows:
    """Rows of up to `largest` numbers, at most about `most_elements` in all: a simulated lane takes nanoseconds, not
    picoseconds, so that examples must stay small."""
    size = draw(sizes(largest))
    count = draw(st.integers(0, max(1, most_elements // size)))
    return Rows(count, size, draw(dtypes()), draw(st.sampled_from(KINDS)), draw(seeds()))
