"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from evsched.telemetry.log import escape, json_text

_CELL_MOST: Final = 2000
"""Characters of a cell of a table: as many as a reason has."""


def as_json(value: Any) -> None:
    """Print one JSON document, in printable characters: what Redis holds cannot steer the terminal."""
    sys.stdout.write(msgspec.json.format(json_text(value), indent=2) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print a table, or what to say when there are no rows.

    What Redis holds cannot steer the terminal, and of what is long the beginning is shown: a table is laid out in a
    time that grows with the square of its longest word.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(escape("" if cell is None else _cut(str(cell)))) for cell in row))
    console = Console()
    console.print(drawn if drawn.row_count else empty, highlight=False)


def _cut(cell: str) -> str:
    more = len(cell) - _CELL_MOST
    return cell if more <= 0 else f"{cell[:_CELL_MOST]} ... and {more} characters more: --json shows all"


def note(line: str) -> None:
    """Print one line for people beside the data, on stderr: stdout stays what a program reads."""
    print(f"evsched: {escape(' '.join(line.split()))}", file=sys.stderr)


def moment(unix: float | None) -> str:
    """Return a time as a person reads it: local, with milliseconds and zone."""
    if unix is None:
        return ""
    try:
        return datetime.fromtimestamp(unix).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{unix}"
