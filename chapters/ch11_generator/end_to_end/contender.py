"""A way to answer a request, as the catalogue lists it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from chapters.ch10_quantized_kv.cache_formats import PLAIN
from chapters.ch11_generator.end_to_end.subject import Request, Subject


class CannotRun(RuntimeError):
    """A contender cannot be what it says that it is; it is left out, with this sentence."""


Answer = Callable[[int], list[int]]  # how many tokens → their ids, once the device has drawn the last
Inside = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Contender:
    """One who takes part.

    Attributes:
        name: the variant's in the results.
        title: what a table calls it.
        make: gets ready for a request. What it returns starts from an empty cache on every call.
        peer: somebody else's; where it fails it is left out with a note.
        int8_head: its answers are those of a model with that head.
        kv_cache: they are those of a model with that cache.
        unavailable: why it cannot take part here, in a sentence; or None.
        metered: whether the memory that it takes says something; not if it takes what it is told to.
        inside: what is entered while it is made and while it runs.
    """

    name: str
    title: str
    make: Callable[[Request], Answer]
    peer: bool = False
    int8_head: bool = False
    kv_cache: str = PLAIN
    metered: bool = True
    unavailable: Callable[[Subject], str | None] = lambda subject: None
    inside: Inside = nullcontext


def on_a_gpu(what: str) -> Callable[[Subject], str | None]:
    """For contenders that need one."""
    return lambda subject: None if subject.device.type == "cuda" else f"{what} is left out: it needs a GPU."
