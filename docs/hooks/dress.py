"""Plain Markdown of a lesson → the dialect of the site.

A lesson is written so that a code host shows it well. These are the places where the site can do better:

    > **Question.** …            a titled box; any bold word with a full stop that opens a quote
    > [!NOTE]                    the same, in the spelling of code hosts
    <details> … </details>       Markdown inside is rendered
    *Figure 1.* …                a paragraph that opens so is a caption
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTE = re.compile(r"^(?:>[^\n]*(?:\n|\Z))+", re.MULTILINE)
_TITLE = re.compile(r"^\*\*(?P<title>[A-Z][\w ’'-]{1,40})[.:]\*\*\s*")
_ALERT = re.compile(r"^\[!(?P<title>[A-Z]+)\]\s*")
_CAPTION = re.compile(r"^(?P<text>\*(?:Figure|Table|Listing) \d[^*\n]*\*[^\n]*(?:\n(?!\s*\n)[^\n]+)*)", re.MULTILINE)
_FOLD = re.compile(r"^<details(?P<rest>[^>]*)>", re.MULTILINE)
_FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)


def dress(text: str) -> str:
    """The page as the site's generator reads it. Fenced code stays as it is."""
    return "".join(part if fenced else _dress(part) for part, fenced in _split(text))


def _split(text: str) -> Iterator[tuple[str, bool]]:
    end = 0
    for match in _FENCE.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def _dress(text: str) -> str:
    text = _QUOTE.sub(lambda match: _box(match[0]), text)
    text = _FOLD.sub(
        lambda match: match[0] if "markdown" in match["rest"] else f'<details{match["rest"]} markdown="1">', text
    )
    return _CAPTION.sub(lambda match: match["text"] + "\n{ .caption }", text)


def _box(quote: str) -> str:
    lines = [re.sub(r"^> ?", "", line) for line in quote.rstrip("\n").split("\n")]
    match = _TITLE.match(lines[0]) or _ALERT.match(lines[0])
    if match is None:
        return quote
    title = match["title"].capitalize() if match["title"].isupper() else match["title"]
    kind = re.sub(r"[^a-z]+", "-", title.split()[0].lower())
    body = [lines[0][match.end() :], *lines[1:]]
    while body and not body[0].strip():
        del body[0]
    return "\n".join([f'!!! {kind} "{title}"', "", *(f"    {line}".rstrip() for line in body)]) + "\n"
