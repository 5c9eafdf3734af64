"""An executed notebook → one Markdown page and its pictures, by nbconvert's exporter with a template of our own."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter

from docs.hooks import palette

_TEMPLATE = Path(__file__).with_name("notebook_template") / "page.md.j2"
_FOLDER = "notebook_files"


def to_markdown(notebook: nbformat.NotebookNode, rewrite: Callable[[str], str]) -> tuple[str, dict[str, bytes]]:
    """The page, and its pictures by name relative to the page.

    `rewrite` is applied to the Markdown cells alone. Cells tagged `hide` are left out. An SVG picture comes twice, for
    the light and for the dark scheme.
    """
    notebook = nbformat.from_dict(notebook)
    notebook.cells = [cell for cell in notebook.cells if "hide" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = rewrite(cell.source)
    exporter = MarkdownExporter(
        template_file=str(_TEMPLATE),
        filters={"alt_text": _alt_text, "dark_name": _dark_name, "without_blank_lines": _without_blank_lines},
    )
    text, resources = exporter.from_notebook_node(
        notebook, resources={"unique_key": "output", "output_files_dir": _FOLDER}
    )
    pictures: dict[str, bytes] = {}
    for name, data in resources.get("outputs", {}).items():
        pictures[name] = data
        if name.endswith(".svg"):
            pictures[_dark_name(name)] = palette.darken(data.decode()).encode()
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", pictures


def _dark_name(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return f"{stem}-dark{suffix}"


def _alt_text(cell: Any) -> str:
    """What a picture shows: the comment that opens its cell."""
    first = cell.source.strip().partition("\n")[0]
    text = first[1:].strip() if first.startswith("#") else "Drawn by the cell above"
    return re.sub(r"[\[\]\"]", "", text)


def _without_blank_lines(html: str) -> str:
    """A blank line would end a block of raw HTML in Markdown."""
    return re.sub(r"\n\s*\n", "\n", html.strip())
