"""A progress bar on a terminal, and nothing elsewhere: a log is no place for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(total: int, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Gives a function to call before each of `total` parts of a run, with what it is. The bar goes to stderr."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        started = False

        def begin(what: str) -> None:
            nonlocal started
            bar.update(task, advance=int(started), description=what)
            started = True

        yield begin
