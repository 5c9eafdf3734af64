"""What programs say, quoted word for word in lessons: a fence `message` under `<!-- report: NAME -->`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qwen_cuda.building import BuildError, Edit, Library

_REPORT = re.compile(r"^<!-- report: (?P<name>[\w-]+) -->\n```message\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fault:
    """A bug in one step of a ladder: in the file `source`, or the `header` it includes, `old` becomes `new`."""

    source: Path
    old: str
    new: str
    header: str = ""

    @property
    def step(self) -> str:
        """The name of the file, without its ending."""
        return self.source.stem

    @property
    def library(self) -> Library:
        """The step with the bug, in the simulator that checks every access."""
        return Library("sim", (self.source,), "checked", (Edit(self.header or self.source.name, self.old, self.new),))


def sentence_of(call: Callable[[], object]) -> str:
    """The message of the error that `call` raises.

    Raises:
        AssertionError: it raises none.
        BuildError: the kernel could not even be built.
    """
    try:
        call()
    except BuildError:
        raise
    except RuntimeError as error:
        return str(error)
    raise AssertionError("The call went through; it was to be refused.")


def filled(lesson: str, texts: Mapping[str, str]) -> str:
    """The lesson with each report as it must be.

    Raises:
        KeyError: it asks for a report that there is not.
    """
    return _REPORT.sub(lambda m: f"<!-- report: {m['name']} -->\n```message\n{texts[m['name']].rstrip()}\n```", lesson)


def main(lesson: Path, reports: Callable[[], Mapping[str, str]], argv: list[str] | None = None) -> int:
    """The command `sync`: writes the reports into the lesson. With `--check` it fails where the lesson is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verb = parser.add_subparsers(dest="verb", required=True).add_parser("sync")
    verb.add_argument("--check", action="store_true", help="write nothing, fail when the lesson is stale")
    check = parser.parse_args(argv).check
    text = lesson.read_text(encoding="utf-8")
    current = filled(text, reports())
    if current == text:
        return 0
    print("stale, run sync:" if check else "wrote", lesson, file=sys.stderr)
    if not check:
        lesson.write_text(current, encoding="utf-8")
    return int(check)
