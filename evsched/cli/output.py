"""The output of commands: tables, JSON, notes on stderr, times, and how far a long command is.

A table is laid out for the terminal's width, or tab-separated for the program that reads a pipe. On a terminal that is
too narrow, times are first shortened to seconds, then whole columns are left out, the least important first. A word or
a time is never broken. A long command ends between two steps when it is asked to, so that it can print its result.
"""

from __future__ import annotations

import json
import math
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from rich.cells import cell_len

from evsched.cli import commands
from evsched.display import escape, json_text

_NAMED: Final = 5
"""Workers, queues or shards that a message names."""


def as_json(value: Any) -> None:
    """Print one JSON document, in printable characters: data from Redis cannot steer the terminal."""
    text = msgspec.json.format(json_text(value), indent=2) + "\n"
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)  # the escapes of JSON
    sys.stdout.write(text)


def note(line: str) -> None:
    """Print one line for people beside the data, on stderr: stdout holds only data."""
    sys.stdout.flush()  # the data come first, and if they cannot be written, that is the only line
    print(f"evsched: {escape(' '.join(line.split()))}", file=sys.stderr)


def some(names: Sequence[str]) -> str:
    """Return some of the names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def moment(unix: float | None, *, short: bool = False, whole: bool = False) -> str:
    """Return a time as a person reads it: local, with milliseconds and zone. `whole`: without milliseconds.

    `short`: without either.
    +inf is a due that never comes. A time that no calendar has stays a number.
    """
    if unix is None:
        return ""
    if unix == math.inf:
        return "never"
    try:
        local = datetime.fromtimestamp(unix).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{unix}"
    return (
        local.strftime("%Y-%m-%d %H:%M:%S") if short else local.isoformat(" ", "seconds" if whole else "milliseconds")
    )


_CELL_MOST: Final = 2000
"""Characters of a cell that a terminal shows: as many as the reason of a dead job has."""

_GAP: Final = 2
"""Blanks between two columns."""

_PROSE_LEAST: Final = 24
"""Columns that a sentence needs: with fewer, it would have one word on each line."""

_DATE_AND_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d) (?=\d\d:)")


class Column(NamedTuple):
    """One column. Rank 0 is always shown; the others get room in the order of their ranks."""

    name: str
    rank: int = 0
    prose: bool = False
    """Its cells are sentences, which may go over several lines. Only the last column can be prose."""


class Moment(NamedTuple):
    """A cell that is a time, in Unix seconds. None is an empty cell. `whole`: it is known in whole seconds only."""

    unix: float | None
    whole: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print rows, or the sentence `empty` without rows.

    A terminal gets aligned columns that fit. Anything else gets a header line and one line a row, with tabs between
    all columns.
    """
    listed = list(rows)
    if not sys.stdout.isatty():
        _print_tabs([column.name for column in columns], listed)
    elif listed:
        _print_table(columns, listed, commands.width())
    else:
        print(empty)


def listing(json: bool, data: object, columns: Sequence[Column], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print `data` as JSON, or its rows as `table` does."""
    if json:
        as_json(data)
    else:
        table(columns, rows, empty)


def fields(named: Iterable[tuple[str, object]]) -> None:
    """Print names and values: one below the other on a terminal, as a table of two columns elsewhere."""
    rows = list(named)
    if not sys.stdout.isatty():
        _print_tabs(["field", "value"], rows)
        return
    indent = max((len(name) for name, _ in rows), default=0) + _GAP
    for name, value in rows:
        first, *more = _wrap(_text(value, short=False), commands.width() - indent)
        print(commands.bold(name) + " " * (indent - len(name)) + first)
        for line in more:
            print(" " * indent + line)


def sentence(text: str) -> None:
    """Print a sentence: on a terminal, over as many lines as it needs."""
    for line in _wrap(escape(text), commands.width()) if sys.stdout.isatty() else [escape(text)]:
        print(line)


def fit(needs: Sequence[int], ranks: Sequence[int], width: int, gap: int = _GAP) -> list[int]:
    """Return the places of the columns that are shown: those of rank 0, then each that there is still room for."""
    kept = [n for n, rank in enumerate(ranks) if rank == 0]
    room = width - sum(needs[n] + gap for n in kept) + gap
    for n in sorted(range(len(ranks)), key=lambda n: ranks[n]):
        if ranks[n] and needs[n] + gap <= room:
            kept.append(n)
            room -= needs[n] + gap
    return sorted(kept)


def _print_tabs(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    lines = ["\t".join(header), *("\t".join(escape(_plain(cell)) for cell in row) for row in rows)]
    sys.stdout.write("\n".join(lines) + "\n")


def _print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]], width: int) -> None:
    cells = [[_text(cell, short=False) for cell in row] for row in rows]
    widest = _widest(columns, cells)
    if sum(widest) + _GAP * (len(columns) - 1) > width:
        cells = [[_text(cell, short=True) for cell in row] for row in rows]
        widest = _widest(columns, cells)
    needs = [min(wide, _PROSE_LEAST) if column.prose else wide for wide, column in zip(widest, columns, strict=True)]
    # A column without any value is the least important.
    ranks = [
        column.rank and column.rank + (0 if any(row[n] for row in cells) else len(columns))
        for n, column in enumerate(columns)
    ]
    kept = fit(needs, ranks, width)
    widths = [needs[n] for n in kept]
    if columns[kept[-1]].prose:
        widths[-1] = max(width - sum(widths[:-1]) - _GAP * (len(kept) - 1), widths[-1])
    numbers = [all(isinstance(row[n], int | float | None) for row in rows) for n in kept]
    _print_row([columns[n].name for n in kept], widths, numbers, bold=True)
    for row in cells:
        _print_row([row[n] for n in kept], widths, numbers, wrap=columns[kept[-1]].prose)
    if left_out := [column.name for n, column in enumerate(columns) if n not in kept]:
        sentence(f"({width} columns are too few for: {', '.join(left_out)}; --json shows all)")


def _widest(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, [column.name, *(row[n] for row in cells)])) for n, column in enumerate(columns)]


def _print_row(
    cells: Sequence[str], widths: Sequence[int], numbers: Sequence[bool], *, wrap: bool = False, bold: bool = False
) -> None:
    last, *more = _wrap(cells[-1], widths[-1]) if wrap else [cells[-1]]
    line = "".join(
        (_pad(cell, wide) + cell if number else cell + _pad(cell, wide)) + " " * _GAP
        for cell, wide, number in zip(cells[:-1], widths, numbers, strict=False)
    )
    line += _pad(last, widths[-1]) + last if numbers[-1] else last
    print(commands.bold(line.rstrip()) if bold else line.rstrip())
    for part in more:
        print(" " * (sum(widths[:-1]) + _GAP * (len(widths) - 1)) + part)


def _pad(cell: str, width: int) -> str:
    return " " * max(width - cell_len(cell), 0)


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; a word that is wider than a line has one of its own and sticks out."""
    lines, line = list[str](), ""
    for word in _DATE_AND_TIME.sub("\\1\N{NO-BREAK SPACE}", text).split(" "):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in [*lines, line]]


def _plain(cell: object, *, short: bool = False) -> str:
    if isinstance(cell, Moment):
        return moment(cell.unix, short=short, whole=cell.whole)
    return "" if cell is None else str(cell)


def _text(cell: object, *, short: bool) -> str:
    """Return a cell for the terminal: data from Redis can neither steer it nor fill it with megabytes."""
    text = _plain(cell, short=short)
    more = len(text) - _CELL_MOST
    return escape(text if more <= 0 else f"{text[:_CELL_MOST]} ... and {more} characters more: --json shows all")


Show = Callable[[int, int], None]
"""Gets how much is done, and of how much."""


@contextmanager
def progress_bar(what: str) -> Generator[Show]:
    """Yield the function that moves the bar. The bar disappears at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


_ENDS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that ask a command to end."""


@contextmanager
def asked_to_end() -> Generator[Callable[[], int]]:
    """Yield a function that returns which signal came, 0 = none. The step at hand is finished. A second one kills."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    came, before = list[int](), {number: signal.getsignal(number) for number in _ENDS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        came.append(number)
        restore()

    for number in _ENDS:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        restore()
