"""A table of figures: which rows it has, the rounds in which they are measured, and how it is printed."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from bench.quiet import load

Figures = Mapping[str, "float | list[float] | None"]
"""Figures by the titles of their columns. None: this row has no such figure. Samples in a list are not printed."""


class Failed(Exception):
    """A figure could not be measured; the message says why."""


class Table(Struct, frozen=True):
    """What to measure: for each row a function that measures its figures once."""

    title: str
    rows: Mapping[str, Callable[[], Figures]]
    rounds: int = 1
    """How often each row is measured. The rows take turns, so that a change of the machine's speed meets all."""
    note: str = ""
    """What a reader should know."""


class Measured(Struct, frozen=True, omit_defaults=True):
    """The figures of a table: by row and column the values of all rounds."""

    title: str
    values: dict[str, dict[str, list[float]]]
    samples: dict[str, dict[str, list[float]]] = {}
    """The lists, in the same way: what plots are drawn from."""
    notes: list[str] = []
    loads: list[float] = []
    """The machine's load average before each round. Runs before 28 November 2026 do not have it."""

    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.values.values() for column in row))


def measure(table: Table, settle: Callable[[], float] = load) -> Measured:
    """Measure all rows of a table, round by round. A row that fails is noted, and is not tried again.

    `settle` is called before each round, and returns the load average of the machine.
    """
    values: dict[str, dict[str, list[float]]] = {name: {} for name in table.rows}
    samples: dict[str, dict[str, list[float]]] = {}
    failed, loads = dict[str, str](), list[float]()
    for turn in range(table.rounds):
        loads.append(settle())
        for name, row in table.rows.items():
            if name in failed:
                continue
            print(f"{table.title}: {name}, round {turn + 1} of {table.rounds}", file=sys.stderr, flush=True)
            try:
                figures = row()
            except (Failed, OSError, subprocess.SubprocessError) as error:
                failed[name] = f"{name}: {error}"
                continue
            for column, value in figures.items():
                if isinstance(value, list):
                    samples.setdefault(name, {}).setdefault(column, []).extend(value)
                else:
                    values[name].setdefault(column, []).extend([] if value is None else [value])
    return Measured(table.title, values, samples, [table.note] * bool(table.note) + list(failed.values()), loads)


def joined(tables: Mapping[str, Measured], columns: Sequence[str] = ()) -> Measured:
    """Return the rows that all tables have as one table; the names of columns begin with that of their table.

    With `columns`, only the tables of these count.
    """
    wanted = {column.partition(": ")[0] for column in columns}
    tables = {name: table for name, table in tables.items() if name in wanted or not columns}
    rows = [row for row in next(iter(tables.values())).values if all(row in table.values for table in tables.values())]
    return Measured(
        "",
        {
            row: {
                f"{name}: {column}": table.values[row].get(column, [])
                for name, table in tables.items()
                for column in table.columns()
            }
            for row in rows
        },
    )


def picked(measured: Measured, columns: Sequence[str]) -> Measured:
    """Return a table with these columns, or all if none are given.

    Raises:
        Failed: there is no such column.
    """
    if unknown := set(columns) - set(measured.columns()):
        raise Failed(f"no column {', '.join(sorted(unknown))}")
    if not columns:
        return measured
    rows = {row: {column: cells.get(column, []) for column in columns} for row, cells in measured.values.items()}
    return structs.replace(measured, values=rows)


def markdown(measured: Measured, cell: Callable[[Sequence[float]], str]) -> str:
    """Return a table in Markdown; `cell` writes the values of one cell."""
    columns = measured.columns()
    lines = [["", *columns]]
    for name, row in measured.values.items():
        lines.append([name, *(cell(row.get(column, ())) for column in columns)])
    title = [f"**{measured.title}**", ""] * bool(measured.title)
    busy = f"Load average before each round: {', '.join(f'{one:.2f}' for one in measured.loads)}."
    notes = [*measured.notes, *[busy] * bool(measured.loads)]
    return "\n".join([*title, grid(lines), *(f"\n{note}" for note in notes), ""])


def grid(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table in Markdown, the first of them as its head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join([head, "| " + " | ".join("-" * width for width in widths) + " |", *body])


def median(values: Sequence[float]) -> str:
    return number(statistics.median(values)) if values else "-"


def spread(values: Sequence[float]) -> str:
    """Return the median with the least and the greatest value."""
    if len(values) < 2 or min(values) == max(values):
        return median(values)
    return f"{median(values)} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Return a figure with three digits, or all those before the point."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of the values lies (nearest rank)."""
    if not values:
        raise Failed("no job has run")
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def rate(times: Sequence[float]) -> float:
    """Return the jobs/s from the first to the last of these times."""
    if len(times) < 2:
        raise Failed(f"{len(times)} jobs ran")
    return (len(times) - 1) / (max(times) - min(times))
