"""For the pages of an API: our docstrings as griffe wants them.

Between our sections stands no empty line, and an entry of `Args` may be about several names, as in `lanes, sizes: …`.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SECTION = re.compile(r"(?<=\S)\n(?=[ ]*(?:Args|Attributes|Raises|Returns|Yields):\n)")
_SEVERAL = re.compile(
    r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<text>.*(?:\n(?P=indent) +\S.*)*)$",  # with the lines that go on
    re.MULTILINE,
)


class OurDocstrings(Extension):
    """mkdocs.yml names it; griffe calls it for each object that it has read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrites the object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = for_griffe(obj.docstring.value)


def for_griffe(docstring: str) -> str:
    """An empty line before each section's title, and an entry for each name."""
    apart = _SEVERAL.sub(
        lambda match: "\n".join(f"{match['indent']}{name}: {match['text']}" for name in match["names"].split(", ")),
        docstring,
    )
    return _SECTION.sub("\n\n", apart)
