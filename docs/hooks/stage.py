"""Stages docs/, the lessons and the executed notebooks as one tree of plain Markdown in build/docs.

    python docs/hooks/stage.py

MkDocs loads this file as a hook and stages before each build, which keeps `mkdocs serve` live. Another generator that
reads mkdocs.yml can build the staged tree without the hook. Files are written only when they change.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

if (root := str(Path(__file__).resolve().parents[2])) not in sys.path:  # started as a script or loaded as a hook
    sys.path.insert(0, root)

from docs.hooks import BUILD, ROOT, links, notebook_page, notebooks, palette, site_links, source_pages
from docs.hooks.dress import dress
from docs.hooks.links import LinkError, Site
from docs.hooks.notebooks import NotebookError
from docs.hooks.source_pages import SourceError

STAGED = BUILD / "docs"
_PRIVATE = {"hooks", "results", "__pycache__"}  # in docs/, but no pages
_PICTURES = {".svg", ".png", ".json"}  # of a lesson's figures; the scripts beside them are no part of the site
_FIGURE = re.compile(r"^!\[(?P<alt>[^\]\n]*)\]\((?P<name>figures/[\w./-]+\.svg)\)$", re.MULTILINE)
_DATA = re.compile(r'^<div class="figure"[^>\n]* data-source="(?P<name>[^"\n]+)"[^>\n]*>$', re.MULTILINE)
_MANUALS = ("kernels/sim/README.md",)  # pages that lie beside the code that they are about
_DOWNLOAD = "[Download the notebook](notebook.ipynb){ .md-button download }"


def pages(root: Path = ROOT) -> dict[str, str]:
    """Path in the repository → path on the site, for every page and asset. Source code is not among them."""
    places: dict[str, str] = {"README.md": "index.md"}
    for path in sorted((root / "docs").rglob("*")):
        inside = path.relative_to(root / "docs")
        about_assets = inside.parts[0] == "assets" and path.suffix == ".md"
        if path.is_file() and inside.parts[0] not in _PRIVATE and path.suffix != ".py" and not about_assets:
            places[f"docs/{inside.as_posix()}"] = inside.as_posix()
    places |= {name: name for name in _MANUALS if (root / name).exists()}
    for chapter in sorted(path for path in (root / "chapters").glob("ch*") if (path / "README.md").exists()):
        base = f"chapters/{chapter.name}"
        for name in [
            "README.md",
            *(f"figures/{path.name}" for path in (chapter / "figures").glob("*") if path.suffix in _PICTURES),
        ]:
            places[f"{base}/{name}"] = f"{base}/{name}"
        if (chapter / "exercise" / "README.md").exists():
            places[f"{base}/exercise/README.md"] = f"{base}/exercise/README.md"
        if (chapter / "notebook.py").exists():
            places[f"{base}/notebook.ipynb"] = f"{base}/notebook.md"
    return places


def collect(root: Path = ROOT) -> dict[str, bytes]:
    """Every file of the staged tree.

    Raises:
        LinkError, SourceError, NotebookError: a page cannot be made; the message names it.
    """
    site = Site(root, pages(root))
    tree: dict[str, bytes] = {}
    for source, place in site.pages.items():
        if source == "README.md":  # the home page, docs/index.md, stands in for it
            continue
        if source.endswith("notebook.ipynb"):
            tree |= _lab(source, place, site)
        elif source.endswith(".md"):
            text = (root / source).read_text(encoding="utf-8")
            text = _with_data(dress(links.rewrite(text, source, place, site)), source, root)
            text, pictures = _for_both_schemes(text, root / source)
            tree[place] = text.encode()
            folder = PurePosixPath(place).parent
            tree |= {(folder / name).as_posix(): data for name, data in pictures.items()}
        else:
            tree[place] = (root / source).read_bytes()
    for name in sorted(site.linked):
        tree |= _source(root, name)
    return tree


def _with_data(text: str, page: str, root: Path) -> str:
    """Each interactive figure that names a file of data holds that file, so that its script need not fetch it."""

    def put(match: re.Match[str]) -> str:
        path = (root / page).parent / match["name"]
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LinkError(f"{page} has a figure that is drawn from {match['name']!r}: {error}.") from None
        inline = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # it cannot end its element
        return f'{match[0]}\n\n<script type="application/json">{inline}</script>'

    return _DATA.sub(put, text)


def _for_both_schemes(text: str, page: Path) -> tuple[str, dict[str, bytes]]:
    """Each plotted figure of a lesson in the colours of the light and of the dark scheme, instead of those between."""
    pictures: dict[str, bytes] = {}

    def replace(match: re.Match[str]) -> str:
        svg = (page.parent / match["name"]).read_text(encoding="utf-8")
        light = palette.lighten(svg)
        if light == svg:
            return match[0]
        stem = match["name"].removesuffix(".svg")
        pictures[f"{stem}-light.svg"], pictures[f"{stem}-dark.svg"] = light.encode(), palette.darken(light).encode()
        return "\n".join(f"![{match['alt']}]({stem}-{scheme}.svg#only-{scheme})" for scheme in ("light", "dark"))

    return _FIGURE.sub(replace, text), pictures


def _lab(source: str, place: str, site: Site) -> dict[str, bytes]:
    script = site.root / source.replace(".ipynb", ".py")
    text, pictures = notebook_page.to_markdown(
        notebooks.run(script), lambda cell: dress(links.rewrite(cell, source, place, site))
    )
    title, _, body = text.partition("\n")
    folder = place.rpartition("/")[0]
    tree = {f"{folder}/{name}": data for name, data in pictures.items()}
    tree[place] = f"{title}\n\n{_DOWNLOAD}\n{body}".encode()
    tree[f"{folder}/notebook.ipynb"] = notebooks.dumps(notebooks.load(script)).encode()
    return tree


def _source(root: Path, name: str) -> dict[str, bytes]:
    path = root / name
    if path.is_file():
        return {links.source_place(name, folder=False): source_pages.file_page(path, name).encode()}
    tree = {links.source_place(name, folder=True): source_pages.folder_page(path, name).encode()}
    for file in source_pages.listed(path):
        tree |= _source(root, file.relative_to(root).as_posix())
    return tree


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time: parallel test workers and a live server share build/."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stage() -> int:
    """Brings build/docs up to date and returns how many files changed."""
    with locked("stage"):
        tree = collect()
        changed = 0
        for name, data in tree.items():
            path = STAGED / name
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                changed += 1
        for path in sorted(STAGED.rglob("*"), reverse=True):
            if path.is_file() and path.relative_to(STAGED).as_posix() not in tree:
                path.unlink()
                changed += 1
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
    return changed


def on_pre_build(config: Any) -> None:
    """MkDocs: stage first; a page that cannot be made stops the build with its sentence."""
    from mkdocs.exceptions import Abort

    try:
        stage()
    except (LinkError, SourceError, NotebookError) as error:
        raise Abort(str(error)) from None


def on_post_build(config: Any) -> None:
    """MkDocs: check every link and anchor; its own check does not know those of code lines."""
    from mkdocs.exceptions import Abort

    problems = site_links.broken(Path(config.site_dir))
    if problems:
        raise Abort("\n".join(problems))


def main() -> int:
    try:
        changed = stage()
    except (LinkError, SourceError, NotebookError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"staged {STAGED.relative_to(ROOT)}: {changed} files changed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
