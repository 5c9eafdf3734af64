"""Pages of source code and folders, made only for what a page links to."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

_LEXERS = {
    ".py": "python",
    ".cu": "cuda",
    ".cuh": "cuda",
    ".cpp": "cpp",
    ".h": "cpp",
    ".toml": "toml",
    ".yml": "yaml",
    ".json": "json",
    ".sh": "bash",
    ".md": "markdown",
    ".js": "javascript",
    ".css": "css",
    ".j2": "jinja",
}
_BY_NAME = {"Makefile": "make", "run": "bash"}
_HEADER = "---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# `{path}` {{ .source-path }}\n\n"


class SourceError(ValueError):
    """A linked file that cannot be shown as text."""


def listed(folder: Path) -> list[Path]:
    """The files that a folder's page shows, in order: text that is worth reading, no caches, nothing hidden."""
    found = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in found if path.suffix in _LEXERS or path.name in _BY_NAME)


def file_page(path: Path, name: str) -> str:
    """A page with the whole file and line numbers.

    Raises:
        SourceError: the file is not UTF-8 text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SourceError(f"{name} is linked from a page but is not text; link to its folder instead.") from None
    lexer = _LEXERS.get(path.suffix) or _BY_NAME.get(path.name, "text")
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return _HEADER.format(path=name) + f'{fence} {{ .{lexer} linenums="1" }}\n{text.rstrip()}\n{fence}\n'


def folder_page(folder: Path, name: str) -> str:
    """A page that lists the text files of a folder, each with the first sentence that it says about itself."""
    rows = "\n".join(f"| [`{path.name}`]({path.name}.md) | {_summary(path)} |" for path in listed(folder))
    return _HEADER.format(path=posixpath.join(name, "")) + f"| file | what it is |\n|---|---|\n{rows}\n"


def _summary(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    elif path.suffix in (".cu", ".cuh", ".cpp", ".h", ".js"):
        match = re.match(r"\s*(?://|/\*+)\s*(.+)", text)
        first = match[1].removesuffix("*/").strip() if match else ""
    else:
        first = ""
    return first.replace("|", "\\|")
