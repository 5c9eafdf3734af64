"""Every link of the built site leads somewhere, and the checker that says so can tell."""

from __future__ import annotations

from pathlib import Path

from docs.hooks import site_links


def test_no_link_of_the_site_is_broken(site: Path) -> None:
    assert site_links.broken(site) == []


def test_checker_finds_missing_files_and_anchors(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="a/">ok</a><a href="a/#there">ok</a><a href="#top">ok</a><a href="a/#gone">bad</a>'
        '<a href="b/">bad</a><img src="lost.svg"><a href="https://example.org/x">outside</a>'
    )
    (tmp_path / "a" / "index.html").write_text('<p id="there">y</p><a href="../#top">ok</a><a href="/nowhere/">bad</a>')
    found = site_links.broken(tmp_path)
    assert len(found) == 4
    for page, target in (
        ("index.html", "a/#gone"),
        ("index.html", "b/"),
        ("index.html", "lost.svg"),
        ("a/index.html", "/nowhere/"),
    ):
        assert any(line.startswith(f"{page} links to {target!r}") for line in found)
