"""Every page of the site, in a real browser: it loads, draws what it promises, and fits a phone and a dark room."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHONE = 390


def addresses() -> list[str]:
    """The pages that a menu leads to, from the files that they are written in."""
    docs = ROOT / "docs"
    found = [path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")]
    pages = [name for name in found if not name.startswith(("hooks/", "assets/", "results/"))]
    for pattern in ("chapters/ch*/README.md", "kernels/sim/README.md"):
        pages += [path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)]
    # A chapter is on the site once it has a lesson.
    exercises = (path.parent for path in ROOT.glob("chapters/ch*/exercise/README.md"))
    pages += [path.relative_to(ROOT).as_posix() for path in exercises if (path.parent / "README.md").is_file()]
    labs = (path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("chapters/ch*/notebook.py"))
    pages += [f"{chapter}/notebook" for chapter in labs]
    return sorted("/" if page == "index" else f"/{page}/" for page in pages)


_FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def fits(page: Any) -> bool:
    return bool(page.evaluate(_FITS))


# Pictures of the other scheme are hidden and not loaded; those further down load when they come into view.
_BROKEN_PICTURES = """(async () => {
  const broken = [];
  for (const image of [...document.images].filter((image) => image.checkVisibility())) {
    image.scrollIntoView();
    await image.decode().catch(() => broken.push(image.src));
    if (!(image.naturalWidth > 0)) broken.push(image.src);
  }
  return broken;
})()"""
# One in a closed fold needs no font yet.
_SHOWS_FORMULA = "[...document.querySelectorAll('.arithmatex')].some((formula) => formula.checkVisibility())"
_PROSE = """(() => {
  const copy = document.querySelector(".md-content").cloneNode(true);
  copy.querySelectorAll("pre, code, .katex, svg").forEach((part) => part.remove());
  return copy.textContent;
})()"""
_MARKUP = ("$$", "\\(", "\\[", "```", "--8<--", "{ .", "!!!", "markdown=", "](", "> **")  # none may be left in prose


@pytest.mark.parametrize("path", addresses())
def test_page_loads_and_draws_all_it_holds_and_fits(path: str, visit: Callable[..., Any]) -> None:
    """On a phone, in both schemes, and then on a desk."""
    page = visit(width=PHONE).open(path)
    assert page.locator("h1").count() == 1
    assert page.locator(".katex-error").count() == 0
    formulas = page.locator(".arithmatex").count()
    assert page.locator(".arithmatex:has(.katex)").count() == formulas
    assert page.locator(".diagram svg").count() == page.locator(".diagram").count()
    assert page.locator("[data-figure]").count() == page.locator("[data-figure][data-ready=yes]").count()
    assert page.evaluate(_BROKEN_PICTURES) == []
    if page.evaluate(_SHOWS_FORMULA):
        fonts = page.evaluate("[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family)")
        assert any("KaTeX" in family for family in fonts)
    text = page.evaluate(_PROSE)
    assert [sign for sign in _MARKUP if sign in text] == []
    for preference, scheme in (("dark", "slate"), ("light", "default")):
        page.emulate_media(color_scheme=preference)
        page.wait_for_function(f"document.body.dataset.mdColorScheme === '{scheme}'")
        assert fits(page), scheme
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function(_FITS, timeout=5000)  # on a desk, once the menus have slid to their places


@pytest.mark.parametrize("path", [path for path in addresses() if path.startswith("/api/")])
def test_sections_of_docstrings_are_recognised(path: str, visit: Callable[..., Any]) -> None:
    page = visit().open(path)
    titles = [text.strip().rstrip(":") for text in page.locator(".doc-section-title").all_inner_texts()]
    assert {"Parameters", "Raises", "Attributes"} <= set(titles)
    paragraphs = page.locator(".md-content p").all_inner_texts()
    assert [text for text in paragraphs if re.match(r"(?:Args|Attributes|Raises|Returns|Yields):\s", text)] == []


def test_pages_of_source_code_load(site: Path, visit: Callable[..., Any]) -> None:
    """All are made alike: of each kind of file the browser opens the largest."""
    pages = sorted(site.glob("source/**/index.html"), key=lambda page: page.stat().st_size)
    assert pages, "no page links to source code"
    largest = {page.parent.suffix: page for page in pages}
    assert {".py", ".cu", ".cuh", ".cpp", ".h"} <= set(largest)
    for page in pages:
        assert page.read_text(encoding="utf-8").count('<h1 class="source-path"') == 1, page
    one = visit(width=PHONE)
    for path in (f"/{page.parent.relative_to(site).as_posix()}/" for page in largest.values()):
        page = one.open(path)
        assert page.locator("h1.source-path").count() == 1
        assert fits(page), path


def test_text_and_code_use_the_fonts_of_the_site(visit: Callable[..., Any]) -> None:
    page = visit().open("/start/")
    loaded = page.evaluate(
        "[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family.replaceAll('\"', ''))"
    )
    assert {"Source Serif", "JetBrains Mono"} <= set(loaded)


_CONTRAST = """(scheme) => {
  document.body.dataset.mdColorScheme = scheme;
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const style = getComputedStyle(document.body);
  const light = (name) => {
    canvas.fillStyle = style.getPropertyValue(name).trim();
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const result = {};
  for (const front of ["--ink", "--muted", "--link", "--q", "--k", "--v", "--w", "--acc", "--other"]) {
    for (const ground of ["--paper", "--surface"]) {
      const [a, b] = [light(front), light(ground)].sort((x, y) => y - x);
      result[`${front} on ${ground}`] = (a + 0.05) / (b + 0.05);
    }
  }
  return result;
}"""


@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_colours_have_enough_contrast_for_text(scheme: str, visit: Callable[..., Any]) -> None:
    contrast = visit().open("/").evaluate(_CONTRAST, scheme)
    assert len(contrast) == 18
    assert {pair: ratio for pair, ratio in contrast.items() if not ratio >= 4.5} == {}  # WCAG 2.2, level AA


def test_scheme_switch_redraws_diagrams_and_stays(visit: Callable[..., Any]) -> None:
    one = visit()
    page = one.open("/")
    scheme = "document.body.dataset.mdColorScheme"
    assert page.evaluate(scheme) == "default"
    page.locator("label[title='Switch to the light scheme']").click()
    page.locator("label[title='Switch to the dark scheme']").click()
    assert page.evaluate(scheme) == "slate"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(",")) < 60
    assert one.open("/start/").evaluate(scheme) == "slate"


def test_search_finds_a_term(visit: Callable[..., Any]) -> None:
    page = visit().open("/")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("grouped-query", delay=20)  # fill() sends no key: no search
    page.wait_for_selector(".md-search-result__item a")
    targets = page.locator(".md-search-result__item a").evaluate_all("links => links.map(a => a.pathname + a.hash)")
    assert any(target.startswith("/glossary/") for target in targets), targets


def test_search_leaves_source_code_out(site: Path) -> None:
    assert '"source/' not in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_unknown_address_gets_a_page_of_the_site(visit: Callable[..., Any]) -> None:
    page = visit().open("/404.html")
    assert page.locator(".md-header").count() == 1


def test_keyboard_skips_to_the_content(visit: Callable[..., Any]) -> None:
    page = visit().open("/start/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.md-skip')")
