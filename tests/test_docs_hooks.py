"""Staging: what a code host shows as plain Markdown becomes a page of the site, and nothing is lost or left broken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="this Python has no jupytext")
pytest.importorskip("nbconvert", reason="this Python has no nbconvert")

import nbformat

from docs.hooks import ROOT, dress, imports, links, notebook_page, notebooks, palette, plot_style, source_pages, stage


@pytest.fixture
def site(tmp_path: Path) -> links.Site:
    """A small repository: two pages, a lab, a picture, source code."""
    for name in (
        "docs/a.md",
        "docs/img/p.svg",
        "chapters/ch01_x/README.md",
        "chapters/ch01_x/notebook.py",
        "qwen3_ref/model.py",
        "LICENSE",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    return links.Site(tmp_path, stage.pages(tmp_path))


def rewritten(text: str, site: links.Site, page: str = "chapters/ch01_x/README.md") -> str:
    return links.rewrite(text, page, site.pages[page], site)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("../../docs/a.md", "../../a.md"),
        ("../../docs/a.md#part", "../../a.md#part"),
        ("notebook.ipynb", "notebook.md"),
        ("../../README.md", "../../index.md"),
        ("../../docs/img/p.svg", "../../img/p.svg"),
        ("../../qwen3_ref/model.py", "../../source/qwen3_ref/model.py.md"),
        ("../../qwen3_ref/model.py#L12-L20", "../../source/qwen3_ref/model.py.md#__codelineno-0-12"),
        ("../../qwen3_ref/", "../../source/qwen3_ref/index.md"),
        ("../../qwen3_ref", "../../source/qwen3_ref/index.md"),
        ("../ch01_x/", "README.md"),
        ("../../LICENSE", "../../source/LICENSE.md"),
        ("#here", "#here"),
        ("https://example.org/a.md", "https://example.org/a.md"),
        ("mailto:a@b.c", "mailto:a@b.c"),
    ],
)
def test_link_leads_to_its_place_on_the_site(target: str, expected: str, site: links.Site) -> None:
    assert rewritten(f"see [`code` text]({target}) here", site) == f"see [`code` text]({expected}) here"
    assert rewritten(f"[ref]: {target}\n", site) == f"[ref]: {expected}\n"


def test_html_gets_addresses_because_nobody_rewrites_them_later(site: links.Site) -> None:
    html = '<img alt="x" src="img/p.svg"><source srcset="img/p.svg"><a href="../qwen3_ref/model.py">m</a>'
    expected = (
        '<img alt="x" src="../img/p.svg"><source srcset="../img/p.svg"><a href="../source/qwen3_ref/model.py/">m</a>'
    )
    assert rewritten(html, site, "docs/a.md") == expected


@pytest.mark.parametrize(
    "text",
    [
        "```md\n[x](gone.md)\n```\n",
        "> ```md\n> [x](gone.md)\n> ```\n",
        "~~~\n[x](gone.md)\n~~~\n",
        "`[x](gone.md)` and ``a ` [x](gone.md)``",
        "$f[x](y)$ and $$g[x](y)$$",
        "<!-- [x](gone.md) -->",
    ],
)
def test_code_and_mathematics_are_left_alone(text: str, site: links.Site) -> None:
    assert rewritten(text, site) == text


@pytest.mark.parametrize("target", ["gone.md", "../../qwen3_ref/gone.py", "../../../outside.md", "/docs/a.md"])
def test_link_to_nothing_is_refused_with_page_and_target(target: str, site: links.Site) -> None:
    with pytest.raises(links.LinkError, match=re.escape(target)) as error:
        rewritten(f"[x]({target})", site)
    assert "chapters/ch01_x/README.md" in str(error.value)


def test_only_linked_source_gets_a_page(site: links.Site) -> None:
    rewritten("[m](../../qwen3_ref/model.py)", site)
    assert site.linked == {"qwen3_ref/model.py"}


def test_quote_with_a_bold_word_becomes_a_box() -> None:
    text = "before\n\n> **Contract.** Two lines\n> of text.\n>\n> - a list\n\nafter\n"
    assert (
        dress.dress(text)
        == 'before\n\n!!! contract "Contract"\n\n    Two lines\n    of text.\n\n    - a list\n\nafter\n'
    )
    assert dress.dress("> [!NOTE]\n> text\n") == '!!! note "Note"\n\n    text\n'


@pytest.mark.parametrize("text", ["> plain quote\n", "> **bold** inside\n", "```\n> **Note.** code\n```\n"])
def test_other_quotes_and_code_stay(text: str) -> None:
    assert dress.dress(text) == text


def test_folds_and_captions_are_marked() -> None:
    assert dress.dress("<details>\n<summary>A</summary>\n") == '<details markdown="1">\n<summary>A</summary>\n'
    assert dress.dress("*Figure 1.* One\ntwo.\n\nText\n") == "*Figure 1.* One\ntwo.\n{ .caption }\n\nText\n"
    assert dress.dress("*Figure it out* yourself.\n") == "*Figure it out* yourself.\n"


def test_source_page_survives_fences_in_the_source(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""Says\n\n```\nx\n```\n"""\n')
    page = source_pages.file_page(path, "a.py")
    assert page.count("````") == 2
    assert "search:\n  exclude: true" in page
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(source_pages.SourceError, match=r"b\.bin"):
        source_pages.file_page(tmp_path / "b.bin", "b.bin")


def test_imports_are_followed_through_our_packages_only() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in imports.closure(ROOT / "qwen3_ref" / "model.py")}
    assert {"qwen3_ref/model.py", "qwen3_ref/functional.py", "qwen3_ref/__init__.py", "qwen3_ref/weights.py"} <= names
    assert not any("torch" in name for name in names)


def test_imports_beside_a_file_and_from_a_package_are_found(tmp_path: Path) -> None:
    (tmp_path / "entry.py").write_text("import beside\nfrom qwen3_ref import cost\n")
    (tmp_path / "beside.py").write_text("import os\n")
    names = [path.name for path in imports.closure(tmp_path / "entry.py")]
    assert "beside.py" in names
    assert "cost.py" in names


LAB = """# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Title
#
# See [code](here.py).

# %%
# What the picture shows
print("said")

# %%
print("said")

# %% tags=["hide"]
print("hidden")
"""


def test_notebook_is_the_same_for_the_same_text(tmp_path: Path) -> None:
    source = tmp_path / "notebook.py"
    source.write_text(LAB)
    first, second = notebooks.dumps(notebooks.load(source)), notebooks.dumps(notebooks.load(source))
    assert first == second
    cells = json.loads(first)["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells) == 4
    assert all(not cell.get("outputs") for cell in cells)


def test_sync_notices_a_stale_notebook_and_mends_it(tmp_path: Path) -> None:
    source = tmp_path / "notebook.py"
    source.write_text(LAB)
    stale = [source.with_suffix(".ipynb")]
    assert notebooks.sync(check=True, paths=[source]) == stale
    assert not stale[0].exists()
    assert notebooks.sync(paths=[source]) == stale
    assert notebooks.sync(check=True, paths=[source]) == []
    source.write_text(LAB.replace("said", "changed"))
    assert notebooks.sync(check=True, paths=[source]) == stale


def test_committed_notebooks_are_current() -> None:
    assert notebooks.sources()
    assert notebooks.sync(check=True) == [], "run `make docs`, and commit what it writes"


def test_execution_is_repeated_when_what_a_notebook_reads_changes(tmp_path: Path) -> None:
    source = tmp_path / "notebook.py"
    source.write_text(LAB.replace('print("said")', "import helper"))
    (tmp_path / "helper.py").write_text("x = 1\n")
    before = notebooks.digest_of(source)
    assert notebooks.digest_of(source) == before
    (tmp_path / "helper.py").write_text("x = 2\n")
    assert notebooks.digest_of(source) != before


def test_unknown_chapter_is_refused_with_the_known_ones() -> None:
    assert [path.parent.name for path in notebooks.sources("1")] == ["ch01_math_reference"]
    with pytest.raises(notebooks.NotebookError, match="ch01_math_reference"):
        notebooks.sources("99")


def test_lab_page_keeps_text_outputs_and_both_schemes_of_a_picture() -> None:
    cell = nbformat.v4.new_code_cell("# A *red* line\nplot()")
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><path style="stroke: #C0292F; fill: #123456"/></svg>'
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31m`one`\x1b[0m\n```\n"),
        nbformat.v4.new_output("stream", name="stderr", text="building, once ..."),
        nbformat.v4.new_output("display_data", {"image/svg+xml": svg, "text/plain": "<Figure>"}),
        nbformat.v4.new_output("execute_result", {"text/plain": "42"}, execution_count=1),
        nbformat.v4.new_output("display_data", {"text/html": "<table>\n\n<tr></tr></table>", "text/plain": "x"}),
    ]
    hidden = nbformat.v4.new_code_cell("secret()", metadata={"tags": ["hide"]})
    text = nbformat.v4.new_markdown_cell("# Lab\n\nwords")
    page, pictures = notebook_page.to_markdown(nbformat.v4.new_notebook(cells=[text, cell, hidden]), str.upper)
    assert page.startswith("# LAB\n\nWORDS")
    assert "secret" not in page
    assert "building" not in page
    assert "# A *red* line\nplot()" in page
    assert "\n`one`\n```\n`````" in page
    assert "\n42\n" in page
    assert '<div class="nb-html">\n<table>\n<tr></tr></table>\n</div>' in page
    light, dark = sorted(pictures, key=len)
    assert f"![A *red* line]({light}#only-light)" in page
    assert f"![A *red* line]({dark}#only-dark)" in page
    assert pictures[dark] == pictures[light].replace(b"#C0292F", b"#ff8b86")


def test_palette_is_the_one_of_the_style_sheet() -> None:
    css = (ROOT / "docs" / "assets" / "css" / "site.css").read_text()
    light, dark = re.findall(r'\[data-md-color-scheme="(?:default|slate)"\] \{(.*?)\}', css, re.DOTALL)[:2]
    names = {"q": 0, "k": 1, "v": 2, "w": 3, "acc": 4, "other": 5, "ink": 6}
    twins = list(palette.TWINS.items())
    for name, place in names.items():
        found = tuple(re.search(rf"--{name}: (#\w+);", block)[1] for block in (light, dark))  # type: ignore[index]
        assert found == twins[place]
    assert set(palette.BETWEEN.values()) < set(palette.TWINS)
    assert {plot_style.Q, plot_style.K, plot_style.V, plot_style.W, plot_style.ACC, plot_style.OTHER} == set(
        palette.BETWEEN
    )


def test_plotted_figure_gets_the_colours_of_each_scheme(tmp_path: Path) -> None:
    site = tmp_path / "chapters" / "ch01_x"
    (site / "figures").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (site / "figures" / "a.svg").write_text('<svg fill="#4A86D8"/>')
    (site / "figures" / "b.svg").write_text('<svg fill="#000000"/>')
    (site / "README.md").write_text("# T\n\n![A plot](figures/a.svg)\n\n![No plot](figures/b.svg)\n")
    tree = stage.collect(tmp_path)
    page = tree["chapters/ch01_x/README.md"].decode()
    assert "![A plot](figures/a-light.svg#only-light)\n![A plot](figures/a-dark.svg#only-dark)" in page
    assert "![No plot](figures/b.svg)" in page
    assert tree["chapters/ch01_x/figures/a-light.svg"] == b'<svg fill="#1f5fbf"/>'
    assert tree["chapters/ch01_x/figures/a-dark.svg"] == b'<svg fill="#7cb0ff"/>'


def test_vendored_files_have_licences_and_stay_small() -> None:
    vendor = ROOT / "docs" / "assets" / "vendor"
    fonts = sum(path.stat().st_size for path in (vendor / "fonts").glob("*.woff2"))
    assert fonts < 150_000
    assert sum(path.stat().st_size for path in vendor.rglob("*") if path.is_file()) < 4_000_000
    for name in ("katex/LICENSE", "mermaid/LICENSE", "fonts/LICENSE-source-serif-4", "fonts/LICENSE-jetbrains-mono"):
        assert (vendor / name).stat().st_size > 500
    assert not re.search(r"\.(?:woff|ttf)\b", (vendor / "katex" / "katex.min.css").read_text())
