"""chapters/*/notebook.py (jupytext percent, the only hand-edited form) → notebook.ipynb, and an executed copy.

    python docs/hooks/notebooks.py sync            write every notebook.ipynb: no outputs, cell ids from the text
    python docs/hooks/notebooks.py sync --check    write nothing; fail if a notebook.ipynb is not what sync writes
    python docs/hooks/notebooks.py run [1]         execute all notebooks (or those of chapter 1) unless nothing changed

Executed copies lie in build/notebooks. A copy is reused while the notebook, our modules that it imports, the results
that it may read, and the versions of Python and torch stay the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
import time
from importlib import metadata
from pathlib import Path

import jupytext
import nbformat

if (root := str(Path(__file__).resolve().parents[2])) not in sys.path:  # started as a script
    sys.path.insert(0, root)

from docs.hooks import BUILD, ROOT, imports

EXECUTED = BUILD / "notebooks"
STYLE = Path(__file__).with_name("matplotlibrc")
CELL_TIMEOUT_S = 300  # a cell takes seconds; a machine that is busy with other work takes its time


class NotebookError(RuntimeError):
    """A notebook that cannot be found or that raises while it runs."""


def sources(chapter: str | None = None) -> list[Path]:
    """The `notebook.py` of every chapter, or of one that is named by number (`1`, `01`) or by folder.

    Raises:
        NotebookError: no chapter of that name has a notebook.
    """
    found = sorted(ROOT.glob("chapters/*/notebook.py"))
    if chapter is None:
        return found
    number = re.fullmatch(r"(?:ch)?0*(\d+)", chapter)
    folder = f"ch{int(number[1]):02d}_" if number else chapter
    chosen = [path for path in found if path.parent.name == folder or (number and path.parent.name.startswith(folder))]
    if not chosen:
        names = ", ".join(path.parent.name for path in found) or "none"
        raise NotebookError(
            f"chapter is {chapter!r}; it must be the number or folder of a chapter with a notebook: {names}."
        )
    return chosen


def load(path: Path) -> nbformat.NotebookNode:
    """The notebook that a `notebook.py` describes, without outputs, the same for the same text."""
    notebook = jupytext.read(path)
    seen: dict[str, int] = {}
    for cell in notebook.cells:  # jupytext draws random ids; an id from the text keeps diffs small
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def dumps(notebook: nbformat.NotebookNode) -> str:
    """The text of a valid .ipynb file."""
    nbformat.validate(notebook)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def sync(check: bool = False, paths: list[Path] | None = None) -> list[Path]:
    """Writes each `notebook.ipynb` that is not current and returns those; with `check`, writes nothing."""
    stale = []
    for source in sources() if paths is None else paths:
        target, text = source.with_suffix(".ipynb"), dumps(load(source))
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(target)
            if not check:
                target.write_text(text, encoding="utf-8")
    return stale


def digest_of(source: Path) -> str:
    """Changes with everything that an execution may depend on, except the weights of a model."""
    digest = hashlib.sha256(f"{platform.python_version()} {_version('torch')} {_version('matplotlib')}".encode())
    results = sorted((ROOT / "docs" / "results").rglob("*.json"))
    for path in [*imports.closure(source), *results, STYLE, Path(__file__)]:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
        digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run(source: Path) -> nbformat.NotebookNode:
    """The executed notebook, from build/notebooks when nothing that matters has changed.

    Raises:
        NotebookError: a cell raised or took too long; the message holds the traceback.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    target = EXECUTED / source.parent.name / f"{digest_of(source)}.ipynb"
    if not target.exists():
        started = time.perf_counter()
        target.parent.mkdir(parents=True, exist_ok=True)
        notebook = load(source)
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(source.parent)}},
            extra_arguments=["--InlineBackend.figure_formats={'svg'}", "--log-level=ERROR"],
        )
        try:
            client.execute(env=_environment())
        except (CellExecutionError, CellTimeoutError) as error:
            report = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours of a terminal
            raise NotebookError(f"{source.relative_to(ROOT)} failed.\n{report}") from None
        for old in target.parent.glob("*.ipynb"):
            old.unlink()
        target.write_text(dumps(notebook), encoding="utf-8")
        seconds = time.perf_counter() - started
        print(f"executed {source.relative_to(ROOT)} in {seconds:.1f} s", file=sys.stderr)
    return nbformat.read(target, as_version=4)


def _environment() -> dict[str, str]:
    """The kernel finds our packages, draws in the site's style, and writes nothing into HOME."""
    path = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "MATPLOTLIBRC": str(STYLE),
        "MPLCONFIGDIR": str(EXECUTED / ".matplotlib"),
        "IPYTHONDIR": str(EXECUTED / ".ipython"),
        "SOURCE_DATE_EPOCH": "0",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("sync", "run"):
        verb = verbs.add_parser(name)
        verb.add_argument("chapter", nargs="?", help="a number or a folder; all chapters when left out")
        if name == "sync":
            verb.add_argument("--check", action="store_true", help="write nothing, fail when something is stale")
    arguments = parser.parse_args(argv)
    try:
        paths = sources(arguments.chapter)
        if arguments.verb == "run":
            for source in paths:
                run(source)
            return 0
        stale = sync(arguments.check, paths)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 1
    for path in stale:
        print("stale, run `make docs`:" if arguments.check else "wrote", path.relative_to(ROOT), file=sys.stderr)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
