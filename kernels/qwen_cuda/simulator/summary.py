"""The trace by lines of the source, as a table for a terminal, a page or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from qwen_cuda.simulator.requests import Request, Transactions

if TYPE_CHECKING:
    from rich.table import Table


def percent(share: float) -> str:
    """Such as "100%" or "12.5%"."""
    return f"{100 * share:.3g}%"


COLUMNS = ("line", "access", "requests", "sectors", "bytes asked", "bytes moved", "efficiency", "conflicts", "source")


@dataclass
class LineSummary:
    """All requests of one kind that one line of the source makes to one operand or variable."""

    label: str
    source: str
    kind: str
    target: str
    space: str
    requests: int = 0
    sectors: int = 0
    lines: int = 0
    bytes_requested: int = 0
    bytes_moved: int = 0
    bank_conflicts: int = 0

    @property
    def transactions(self) -> Transactions:
        """Sectors and lines, summed over the requests."""
        return Transactions(self.sectors, self.lines)

    @property
    def efficiency(self) -> float:
        """bytes_requested / bytes_moved."""
        return self.bytes_requested / self.bytes_moved

    def add(self, request: Request) -> None:
        self.requests += 1
        self.sectors += request.transactions.sectors
        self.lines += request.transactions.lines
        self.bytes_requested += request.bytes_requested
        self.bytes_moved += request.bytes_moved
        self.bank_conflicts += request.bank_conflicts

    def cells(self) -> tuple[str, ...]:
        """The texts of COLUMNS."""
        shared = self.space == "shared"
        return (
            self.label,
            f"{self.kind} {self.target}",
            f"{self.requests:,}",
            "" if shared else f"{self.sectors:,}",
            f"{self.bytes_requested:,}",
            "" if shared else f"{self.bytes_moved:,}",
            "" if shared else percent(self.efficiency),
            f"{self.bank_conflicts:,}" if shared else "",
            self.source,
        )


@dataclass(frozen=True)
class Summary:
    """Rows in the order in which their lines are first reached."""

    rows: Sequence[LineSummary] = field(default_factory=tuple)

    def __str__(self) -> str:
        table = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
        lines = []
        for cells in table:
            padded = [
                cell.rjust(width) if 2 <= column <= 7 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if 2 <= column <= 7 else "left", no_wrap=column < 8)
        for row in self.rows:
            cells = [Text(cell) for cell in row.cells()]
            if row.space == "global" and row.efficiency < 1:
                cells[6].stylize("yellow")
            if row.bank_conflicts:
                cells[7].stylize("red")
            table.add_row(*cells)
        return table

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells()[:-1])
            + f"<td><code>{escape(row.source)}</code></td></tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def summarize(requests: Iterable[Request]) -> Summary:
    """One row for each line of the source, kind of access, and operand or variable."""
    rows: dict[tuple[str, str, str, str], LineSummary] = {}
    for request in requests:
        key = (request.site.label, request.kind, request.target, request.space)
        if key not in rows:
            label, kind, target, space = key
            rows[key] = LineSummary(label, request.site.source, kind, target, space)
        rows[key].add(request)
    return Summary(tuple(rows.values()))
