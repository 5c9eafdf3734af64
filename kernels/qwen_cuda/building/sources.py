"""The project's files that a source is compiled from: itself and every header of the project that it reaches.

The text of `#include` lines is followed, in every branch of every `#if`: a few files too many cost nothing. Headers of
the system, of CUDA and of PyTorch are not followed; the versions of those are part of a build's key by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from qwen_cuda.building.library import BuildError, Edit

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)', re.MULTILINE)


class Reader:
    """Reads files, each once, and plants `edits` in what it reads."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._edited: dict[Edit, Path | None] = dict.fromkeys(edits)
        self._contents: dict[Path, bytes] = {}

    def read(self, path: Path) -> bytes:
        """The content of `path` with the edits that are meant for it.

        Raises:
            BuildError: it cannot be read, or an edit does not fit it.
        """
        if path not in self._contents:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise BuildError(f"{path} cannot be read: {error.strerror}.") from error
            for edit, elsewhere in self._edited.items():
                if path.as_posix().endswith("/" + edit.file):
                    if elsewhere:
                        raise BuildError(f"The edit of {edit.file} fits {elsewhere} and {path}: name its folder too.")
                    content, self._edited[edit] = _edited(content, edit), path
            self._contents[path] = content
        return self._contents[path]

    @property
    def edited(self) -> set[Path]:
        """The files read so far that an edit was for."""
        return {path for path in self._edited.values() if path}

    def check_all_planted(self) -> None:
        """Raises BuildError when an edit was for a file that nobody read."""
        for edit, path in self._edited.items():
            if path is None:
                raise BuildError(f"{edit.file} cannot be edited: the library is not built from a file of that name.")


def gather(source: Path, folders: Sequence[Path], reader: Reader) -> dict[Path, bytes]:
    """Path → content, of `source` first and then of the headers it reaches in its own folder and in `folders`.

    Raises:
        BuildError: as `Reader.read`.
    """
    found: dict[Path, bytes] = {}
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = reader.read(path)
            waiting += reversed(_headers(path, found[path], folders))
    return found


def _headers(path: Path, content: bytes, folders: Sequence[Path]) -> list[Path]:
    """The files of the project that `content` includes; a quoted name is looked for beside `path` first."""
    headers = []
    for match in _INCLUDE.finditer(content):
        name = (match["quoted"] or match["angled"]).decode("utf-8", errors="replace")
        places = [path.parent, *folders] if match["quoted"] else folders
        if header := next((file for place in places if (file := place / name).is_file()), None):
            headers.append(header.resolve())
    return headers


def _edited(content: bytes, edit: Edit) -> bytes:
    times = content.count(edit.old.encode())
    if times != edit.count:
        raise BuildError(
            f"The edit of {edit.file} does not fit: {edit.old!r} occurs {times} times there and must occur "
            f"{edit.count}; the file has changed since."
        )
    return content.replace(edit.old.encode(), edit.new.encode())
