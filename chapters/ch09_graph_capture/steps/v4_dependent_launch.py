"""v4: each kernel is started before the one ahead has ended, and waits inside. v3 with the kernels as they are.

Every kernel of a step asks for programmatic dependent launch, so this step has nothing to add: it is v1 to v3 that must
be kept from it. They are timed on the same kernels, built with `FORBIDDEN`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from chapters.ch09_graph_capture.steps import v3_graph
from qwen_cuda.building import Edit, Library
from qwen_cuda.loading import default_libraries, using

# --8<-- [start:forbidden]
FORBIDDEN = Edit(
    "cuda_platform.cuh",
    "if (options.dependent && cuda_platform::is_hopper_or_later())",
    "if (false)",
)
# --8<-- [end:forbidden]


class Decoding(v3_graph.Decoding):
    """v3's graph. What differs is how its kernels were launched while it was recorded."""


def one_after_the_other() -> list[Library]:
    """Every kernel for a GPU, launched so that it starts when the one ahead has ended."""
    return [replace(library, edits=(FORBIDDEN,)) for library in default_libraries("cuda")]


@contextlib.contextmanager
def without_dependent_launch() -> Iterator[None]:
    """Inside, the operators on a GPU are those kernels. A graph keeps what it was recorded with."""
    with contextlib.ExitStack() as stack:
        for library in one_after_the_other():
            stack.enter_context(using(library))
        yield
