"""Every link inside the built site leads to a file that exists and to an anchor that is there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_COLOURS = re.compile(r'<span(?: class="[^"]*")?>|</span>')  # of code: nine tags of ten, and no links
_LINKS = {"a": "href", "img": "src", "script": "src", "link": "href", "source": "srcset", "iframe": "src"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(_COLOURS.sub("", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {name for name in (values.get("id"), values.get("name") if tag == "a" else None) if name}
        link = values.get(_LINKS.get(tag, ""))
        if link is not None:
            self.links.append(link)


def broken(site: Path) -> list[str]:
    """One sentence for each link of a page under `site` that leads nowhere. Other hosts are not asked."""
    site = site.resolve()
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    file = functools.cache(functools.partial(_file, site))
    problems = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            problem = _problem(site, path, link, pages, file)
            if problem:
                problems.append(f"{path.relative_to(site)} links to {link!r}: {problem}.")
    return problems


def _problem(
    site: Path, page: Path, link: str, pages: dict[Path, _Page], file: Callable[[Path, str], Path]
) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = file(page.parent, unquote(parts.path)) if parts.path else page
    if target not in pages and not target.is_file():
        return f"there is no {target.relative_to(site) if target.is_relative_to(site) else target}"
    anchor = unquote(parts.fragment)
    there = pages.get(target)
    if anchor and there is not None and anchor not in there.anchors and anchor != "__top":
        return f"the page has no anchor {anchor!r}"
    return None


def _file(site: Path, folder: Path, name: str) -> Path:
    target = (site / name.lstrip("/") if name.startswith("/") else folder / name).resolve()
    return target / "index.html" if target.is_dir() else target
