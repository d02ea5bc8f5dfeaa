"""The page of `evsched top`, drawn: a value in, something that rich prints out. What Redis holds is escaped."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evsched.cli.output import moment
from evsched.telemetry.log import escape
from evsched.top.snapshot import Page, QueueRow, Sample, WorkerRow

_BARS: Final = "▁▂▃▄▅▆▇█"
_STEPS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Seconds up to which each bar but the last goes. A scale that is fixed: it does not jump, and two can be compared."""

_WIDE: Final = 100
"""Columns from which there is room for two between those of a table."""

_FRAME: Final = 14
"""Lines of a page besides the rows of its two tables."""


def draw(page: Page, title: str, width: int, height: int | None) -> RenderableType:
    """Draw a page on so many lines; with None, on as many as it has."""
    queues, workers = page.queues, page.workers
    runs: int | None = None
    if height is not None:
        room = max(height - _FRAME, 4)
        queues = _fullest(queues, max(room // 2, room - sum(max(len(worker.runs), 1) for worker in workers)))
        room -= len(queues)
        workers = _busiest(workers, max(room, 1))
        runs = max(room // max(len(workers), 1), 1)
    parts = [
        *_title(page, title),
        Text(),
        _queues(queues, page.now, width) if queues else Text("no queues: nothing has been scheduled yet"),
        _rest(len(page.queues) - len(queues), "queues: name those to be seen with --queue"),
        _speed(page),
        *_lateness(page.lateness, width),
        Text(),
        _workers(workers, runs, width) if workers else Text("no workers: start one with `evsched worker MODULE:APP`"),
        _rest(len(page.workers) - len(workers), "workers"),
    ]
    return Group(*parts)


def length(seconds: float) -> str:
    """Return a length as a person reads it."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def sparkline(lateness: Sequence[float | None]) -> str:
    """Return a bar for each lateness, in steps of half a decade from 1 ms to 1 s; a gap for None."""
    return "".join(" " if late is None else _BARS[bisect_left(_STEPS, late)] for late in lateness)


def rate(per_second: float | None) -> str:
    """Return a rate as a person reads it."""
    if per_second is None:
        return "-"
    return f"{per_second:.1f}" if per_second < 9.95 else f"{per_second:.0f}"


def due(next_due: float | None, now: float | None) -> str:
    """Return when the next job is due."""
    if next_due is None or now is None:
        return "-"
    if next_due == math.inf:
        return "never"
    left = next_due - now
    if left > 0:
        return f"in {length(left)}"
    return f"{length(-left)} ago" if next_due > 0 else "now"


def _title(page: Page, title: str) -> list[Text]:
    lines = [Text.assemble(("evsched top", "bold"), escape(f"  {moment(page.now)}  {title}"))]
    if page.down is not None:
        reason = escape(f"Redis is down for {length(page.down.seconds)}: {page.down.reason}")
        lines.append(Text(reason, style="bold red"))
        lines.append(Text("What stands below is from before. It is tried again each second.", style="red"))
    if page.refused:
        queue, reason = next(iter(page.refused.items()))
        more = f" (and {len(page.refused) - 1} more)" if len(page.refused) > 1 else ""
        lines.append(Text(escape(f"Queue {queue} cannot be read{more}: {reason}"), style="bold red"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _rest(count: int, of: str) -> Text:
    return Text(f"and {count} more {of}" if count > 0 else "")


def _table(*columns: str, names: int, width: int) -> Table:
    """Make a table whose first columns are names, which are cut where the terminal is too narrow, and then numbers."""
    gap = 2 if width >= _WIDE else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for n, column in enumerate(columns):
        if n < names:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(column, no_wrap=True, justify="right", min_width=len(column))
    return table


def _cells(*cells: object) -> list[Text]:
    return [Text(escape("" if cell is None else str(cell))) for cell in cells]


def _queues(rows: Sequence[QueueRow], now: float | None, width: int) -> Table:
    columns = ("queue", "schedule", "overdue", "backlog", "ready", "processing", "dead", "start/s", "next due")
    table = _table(*columns, names=1, width=width)
    for row in rows:
        cells = _cells(
            row.queue,
            row.schedule,
            row.overdue,
            row.backlog,
            row.ready,
            row.processing,
            row.dead,
            rate(row.rates and row.rates.started),
            due(row.next_due, now)
            if row.paused is None
            else f"paused {length(max((now or row.paused) - row.paused, 0.0))}",
        )
        table.add_row(*cells)
    return table


def _speed(page: Page) -> Text:
    rates = page.rates
    shown = (("started", rates and rates.started), ("done", rates and rates.done), ("failed", rates and rates.failed))
    return Text("   ".join(f"{name} {rate(value)}/s" for name, value in shown), no_wrap=True)


def _lateness(samples: Sequence[Sample | None], width: int) -> list[Text]:
    shown = samples[-max(width - 24, 1) :]
    known = [sample for sample in samples if sample is not None]
    rows = (
        ("p50", [sample and sample.p50 for sample in shown], known[-1].p50 if known else None),
        ("max", [sample and sample.max for sample in shown], max((s.max for s in known), default=None)),
    )
    return [
        Text(
            f"late {name} {sparkline(values):{min(len(shown), 60)}} {'-' if value is None else length(value)}",
            no_wrap=True,
        )
        for name, values, value in rows
    ]


def _workers(rows: Sequence[WorkerRow], runs: int | None, width: int) -> Table:
    table = _table("worker", "busy", "queue", "job", "task", "attempt", "for", names=5, width=width)
    for row in rows:
        busy = f"{row.busy}/{row.slots}" if row.answered else f"no answer, holds {row.busy}"
        lines = [
            _cells(job.queue, job.id, job.task, job.attempt, length(max(job.seconds, 0.0))) for job in row.runs[:runs]
        ]
        if runs is not None and 1 < runs < len(row.runs):
            lines.pop()
        if row.answered and row.busy > len(lines) and (runs is None or len(lines) < runs):
            lines.append(_cells("", f"and {row.busy - len(lines)} more", "", "", ""))
        for n, line in enumerate(lines or [_cells("", "", "", "", "")]):
            table.add_row(*(_cells(row.worker, busy) if n == 0 else _cells("", "")), *line)
    return table


def _fullest(rows: list[QueueRow], count: int) -> list[QueueRow]:
    """Return so many, those first in which something is on its way."""
    if len(rows) <= count:
        return rows
    fullest = sorted(rows, key=lambda row: -(row.overdue + row.backlog + row.ready + row.processing))
    return sorted(fullest[:count], key=lambda row: row.queue)


def _busiest(rows: list[WorkerRow], count: int) -> list[WorkerRow]:
    """Return so many, those first that have not answered."""
    if len(rows) <= count:
        return rows
    return sorted(sorted(rows, key=lambda row: (row.answered, -row.busy))[:count], key=lambda row: row.worker)
