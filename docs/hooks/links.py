"""Links that work on a code host, rewritten for the site.

In the repository a page links to files by relative path: other pages, pictures, source code, folders. On the site
pages and pictures have their own places, and whatever is source gets a page under `source/`. A link to something that
does not exist is an error: nothing is left to break in silence.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

# Left alone: fenced code, code spans, mathematics, comments.
_PROTECTED = re.compile(
    r"^(?P<indent>[> \t]*)(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^(?P=indent)(?P=fence)[`~]*[ \t]*$"
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|\$\$.+?\$\$"
    r"|(?<![\\$\w])\$(?![\s$])[^$\n]+?(?<![\s\\])\$(?!\d)"
    r"|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(
    r"(?P<head>\]\()(?P<target><[^>\n]+>|[^\s()]+(?:\([^\s()]*\)[^\s()]*)*)(?P<tail>(?:\s+[\"'][^\n]*?[\"'])?\))"
)
_REFERENCE = re.compile(r"(?P<head>^ {0,3}\[(?!\^)[^\]\n]+\]:[ \t]+)(?P<target>\S+)(?P<tail>.*)$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"(?P<head><[a-zA-Z][^<>]*?\s(?:src|href|srcset)=\")(?P<target>[^\"]*)(?P<tail>\")")
_EXTERNAL = re.compile(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|//)")


class LinkError(ValueError):
    """A link in a page of ours that leads nowhere."""


@dataclass
class Site:
    """Where each file of the repository lies on the site, and which source files need a page."""

    root: Path
    pages: dict[str, str]  # path in the repository → path of the staged Markdown or asset
    linked: set[str] = field(default_factory=set)  # source files and folders that some page links to

    def place(self, page: str, target: str) -> str:
        """The staged path that `target`, written in the repository file `page`, leads to.

        Raises:
            LinkError: nothing is there.
        """
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(target)))
        if target.startswith("/") or path.startswith(".."):
            raise LinkError(
                f"{page} links to {target!r}, which is outside the repository; use a relative path inside it."
            )
        if path in self.pages:
            return self.pages[path]
        here = self.root / path
        if here.is_dir():
            lesson = posixpath.normpath(posixpath.join(path, "README.md"))
            if lesson in self.pages:
                return self.pages[lesson]
        elif not here.is_file():
            raise LinkError(f"{page} links to {target!r}, but there is no {path} in the repository; mend the path.")
        self.linked.add(path)
        return source_place(path, here.is_dir())


def source_place(path: str, folder: bool) -> str:
    """Where the page of a source file or folder is staged."""
    return posixpath.normpath(f"source/{path}/index.md") if folder else f"source/{path}.md"


def rewrite(text: str, page: str, staged: str, site: Site) -> str:
    """`text` of the repository file `page`, with its links changed for its place `staged` on the site."""

    def markdown(target: str) -> str:
        place, anchor = _resolve(target, page, site)
        return posixpath.relpath(place, posixpath.dirname(staged) or ".") + anchor

    def html(target: str) -> str:  # raw HTML is passed through by the generator, so it needs addresses, not file names
        place, anchor = _resolve(target, page, site)
        slash = "/" if place.endswith(".md") else ""
        return posixpath.relpath(_address(place), _address(staged)).rstrip("/") + slash + anchor

    return outside_code(text, lambda part: _replace(part, markdown, html))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """`text` with `change` applied to whatever is not code, mathematics or a comment."""
    parts, end = [], 0
    for match in _PROTECTED.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def _replace(text: str, markdown: Callable[[str], str], html: Callable[[str], str]) -> str:
    def with_target(change: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            target = match["target"].strip("<>")
            local = target and not target.startswith("#") and not _EXTERNAL.match(target)
            return match["head"] + (change(target) if local else match["target"]) + match["tail"]

        return replace

    for pattern, change in ((_INLINE, markdown), (_REFERENCE, markdown), (_ATTRIBUTE, html)):
        text = pattern.sub(with_target(change), text)
    return text


def _resolve(target: str, page: str, site: Site) -> tuple[str, str]:
    path, _, anchor = target.partition("#")
    place = site.place(page, path)
    lines = re.fullmatch(r"L(\d+)(?:-L?\d+)?", anchor)
    if lines and place.startswith("source/"):  # a code host's line anchor → the generator's
        anchor = f"__codelineno-0-{lines[1]}"
    return place, f"#{anchor}" if anchor else ""


def _address(place: str) -> str:
    """The folder-style address of a staged page; assets keep their name."""
    if not place.endswith(".md"):
        return place
    stem = place.removesuffix(".md")
    folder, _, name = stem.rpartition("/")
    return (folder or ".") if name in ("index", "README") else stem
