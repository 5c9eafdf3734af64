"""How the simulator runs kernels: environment variables that it reads at each launch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def options(seed: int | None = None, threads: int | None = None, timeout: int | None = None) -> Iterator[None]:
    """Inside the `with`, launches in the simulator run so; what is None stays as it is.

    Args:
        seed: the order in which blocks, and the threads of a block, take their turns: 0 in order, any other number
            a random order of its own (CUDASIM_SEED).
        threads: at most so many OS threads run blocks (CUDASIM_THREADS). The checked variant always has one.
        timeout: a block that has run for so many seconds is ended with a report; 0: never (CUDASIM_TIMEOUT).

    The variables are the process's: do not nest this in several threads at a time.

    Raises:
        ValueError: a number is out of range.
    """
    wanted = {"CUDASIM_SEED": seed, "CUDASIM_THREADS": threads, "CUDASIM_TIMEOUT": timeout}
    least = {"CUDASIM_SEED": 0, "CUDASIM_THREADS": 1, "CUDASIM_TIMEOUT": 0}
    for name, value in wanted.items():
        if value is not None and value < least[name]:
            argument = name.removeprefix("CUDASIM_").lower()
            raise ValueError(f"{argument} is {value}; it must be at least {least[name]}.")
    chosen = {name: str(value) for name, value in wanted.items() if value is not None}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text
