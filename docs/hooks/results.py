"""docs/results/<gpu>/<chapter>.json → figures, and the passages of lessons and pages that hold measured numbers.

    python docs/hooks/results.py sync            write chapters/*/figures/*.svg and the passages
    python docs/hooks/results.py sync --check    write nothing; fail if something is not what sync writes

A passage stands between `<!-- results: NAME -->` and `<!-- end of results -->` in a lesson, or in README.md or a page
of docs/, which say whose it is, as in `ch01/NAME`, or `drop_in/NAME` of docs/hooks/drop_in.py. No measured number is
typed by hand.
What a chapter shows is in docs/hooks/plots_chNN.py: `counted()` and `plots(results)` give SVG by file name, the first
without any measurement; `texts(results)` gives Markdown by passage. Where there are such, `apart(root)` gives the
passages and `drawn(root)` the figures that come from other files than the benchmark's.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if (root := str(Path(__file__).resolve().parents[2])) not in sys.path:  # started as a script
    sys.path.insert(0, root)

from docs.hooks import ROOT, drop_in, measured

_PASSAGE = re.compile(
    r"(?P<head><!-- results: (?:(?:ch)?(?P<chapter>\d\d|drop_in)/)?(?P<name>[\w-]+) -->\n)"
    r"(?P<body>.*?)(?P<tail><!-- end of results -->)",
    re.DOTALL,
)
_NOTHING = "*No measurement is in the repository yet: `make bench-chapter {number}` on a GPU writes one.*\n"


class ResultsError(ValueError):
    """Results that a lesson asks for and that cannot be shown."""


@dataclass(frozen=True)
class Passages:
    """Of one chapter, Markdown by name. They are all that there are if the chapter was `measured`."""

    known: dict[str, str]
    measured: bool


def outputs(root: Path = ROOT) -> dict[Path, str]:
    """Every file that depends on results, with the text that it must have.

    Raises:
        ResultsError: a lesson has a passage that its plots module does not know.
    """
    files: dict[Path, str] = drop_in.figures(root)
    texts = {"drop_in": Passages(drop_in.texts(root), measured=True)}
    for module in sorted((root / "docs" / "hooks").glob("plots_ch[0-9][0-9].py")):
        number = module.stem.removeprefix("plots_ch")
        chapter = next((root / "chapters").glob(f"ch{number}_*"))
        results = _load(root, chapter.name)
        show = importlib.import_module(f"docs.hooks.{module.stem}")
        figures = show.counted() | (show.plots(results) if results is not None else {})
        figures |= show.drawn(root) if hasattr(show, "drawn") else {}
        files |= {chapter / "figures" / name: text for name, text in figures.items()}
        apart = show.apart(root) if hasattr(show, "apart") else {}
        texts[number] = Passages(apart | (show.texts(results) if results is not None else {}), results is not None)
        if (chapter / "README.md").exists():  # else its passages stand on a page of docs/
            files[chapter / "README.md"] = _filled(chapter / "README.md", texts, number)
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    files |= {page: _filled(page, texts) for page in pages if page.exists()}
    return files


def _load(root: Path, chapter: str) -> dict[str, Any] | None:
    """The results of the main GPU, else of the first that there is."""
    results = measured.stored(root, chapter)
    if results is not None and results.get("schema") != 1:
        path = measured.stored_file(root, chapter)
        raise ResultsError(f"{path}: schema is {results.get('schema')!r}; it must be 1. Run the benchmark again.")
    return results


def _filled(page: Path, texts: dict[str, Passages], number: str = "") -> str:
    """`page` with its passages as they must be; `number` is of the chapter whose lesson it is."""

    def passage(match: re.Match[str]) -> str:
        chapter, name = match["chapter"] or number, match["name"]
        if chapter not in texts:
            raise ResultsError(f"{page}: the passage {name!r} names no chapter with results; write it as ch01/{name}.")
        known = texts[chapter].known
        if name in known:
            body = known[name]
        elif not texts[chapter].measured:
            body = _NOTHING.format(number=int(chapter))
        else:
            raise ResultsError(f"{page}: there are no results named {name!r}; there are {', '.join(known)}.")
        return f"{match['head']}\n{body}\n{match['tail']}"

    return _PASSAGE.sub(passage, page.read_text(encoding="utf-8"))


def sync(check: bool = False, root: Path = ROOT) -> list[Path]:
    """Writes what is not current and returns it; with `check`, writes nothing."""
    stale = []
    for path, text in outputs(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return stale


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verb = parser.add_subparsers(dest="verb", required=True).add_parser("sync")
    verb.add_argument("--check", action="store_true", help="write nothing, fail when something is stale")
    arguments = parser.parse_args(argv)
    try:
        stale = sync(arguments.check)
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 1
    for path in stale:
        print("stale, run sync:" if arguments.check else "wrote", path.relative_to(ROOT), file=sys.stderr)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
