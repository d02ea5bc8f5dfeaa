"""How a figure is read from the tables of a run: one cell, the worst of several, or a ratio of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median

from bench.environments import SCHEDULERS, language, title
from bench.figures import Measured

Tables = Mapping[str, Measured]
"""The tables of a run by their names."""

Reading = Callable[[Tables], "float | None"]
"""Reads a figure; None: the run does not have it."""

Pick = Callable[[Iterable[float]], float]
"""Chooses one of the values of all rounds, or what lies in the middle."""


def cell(table: str, row: str, column: str, pick: Pick = median) -> Reading:
    """Read a cell: the median of the rounds, unless you say otherwise."""

    def read(tables: Tables) -> float | None:
        values = tables[table].values.get(row, {}).get(column) if table in tables else None
        return pick(values) if values else None

    return read


def worst(table: str, beginning: str, pick: Pick = median) -> Reading:
    """Read the greatest figure of all rows, in the columns whose titles begin so."""

    def read(tables: Tables) -> float | None:
        rows = tables[table].values.values() if table in tables else ()
        cells = (values for row in rows for name, values in row.items() if values and name.startswith(beginning))
        return max(map(pick, cells), default=None)

    return read


def ratio(above: Reading, below: Reading) -> Reading:
    """Divide one figure by another."""

    def read(tables: Tables) -> float | None:
        over, under = above(tables), below(tables)
        return over / under if over is not None and under else None

    return read


def growth(table: str, column: str) -> Reading:
    """Divide the figure of the last row, the largest size, by that of the first."""

    def read(tables: Tables) -> float | None:
        rows = list(tables[table].values) if table in tables else []
        return ratio(cell(table, rows[-1], column), cell(table, rows[0], column))(tables) if rows else None

    return read


def best_peer(spoken: str) -> Reading:
    """Read the no-op jobs/s of the fastest other scheduler whose tasks are in this language."""
    peers = [name for name in SCHEDULERS if not name.startswith("evsched") and language(name) == spoken]

    def read(tables: Tables) -> float | None:
        rates = [cell("throughput", title(peer), "jobs/s")(tables) for peer in peers]
        return max((rate for rate in rates if rate is not None), default=None)

    return read
