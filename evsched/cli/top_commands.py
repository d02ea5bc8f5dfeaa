"""The command `top`: a page of queues and workers, drawn again each second. Text from Redis is escaped."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import termios
import tty
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evsched.cli import output
from evsched.cli.command_client import client, note_unknown
from evsched.cli.options import Json, Queues, Url, check_queues, settings
from evsched.cli.output import Column, fit, moment
from evsched.cli.queue_commands import report
from evsched.display import escape, format_duration
from evsched.errors import StoreDown, StoreRefused
from evsched.top.collector import Top
from evsched.top.snapshot import Page, QueueRow, Sample, WorkerRow
from evsched.transport.address import hide_password
from evsched.transport.servers import nodes_down

if TYPE_CHECKING:
    from rich.console import Console


_BARS: Final = "▁▂▃▄▅▆▇█"
_STEPS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Seconds up to which each bar but the last goes. The scale is fixed, so that two pages can be compared."""

_WIDE: Final = 100
"""Columns of a terminal from which on there are two blanks between the columns of a table."""

_FRAME: Final = 16
"""Lines of a page that are not rows of its two tables. Under each table, a line may name the columns left out."""

_NAME_LEAST: Final = 12
"""Columns that the beginning of a name needs to be recognised."""

_QUEUE_COLUMNS: Final = (
    Column("queue"),
    Column("schedule", 2),
    Column("overdue", 5),
    Column("backlog", 6),
    Column("ready", 1),
    Column("processing", 3),
    Column("dead", 4),
    Column("start/s", 7),
    Column("next due", 8),
)
_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("busy", 1),
    Column("queue", 5),
    Column("job", 2),
    Column("task", 3),
    Column("attempt", 6),
    Column("for", 4),
)


def draw(page: Page, title: str, width: int, height: int | None) -> RenderableType:
    """Draw a page on at most `height` lines; None: no limit."""
    queues, workers = page.queues, page.workers
    runs: int | None = None
    if height is not None:
        room = max(height - _FRAME, 4)
        queues = _fullest(queues, max(room // 2, room - sum(max(len(worker.runs), 1) for worker in workers)))
        room -= len(queues)
        workers = _busiest(workers, max(room, 1))
        runs = max(room // max(len(workers), 1), 1)
    start = "start one: evsched worker MODULE:APP"
    if any(row.parents for row in page.queues):
        start = "a parent stands by, and starts one when a job waits (evsched workers)"
    return Group(
        *_title(page, title),
        Text(),
        *(_queues(queues, page.now, width) if queues else [Text("no queues: nothing has been scheduled yet")]),
        _rest(len(page.queues) - len(queues), "queues: choose with --queue which to show"),
        _speed(page),
        *_lateness(page.lateness, width),
        Text(),
        *(_workers(workers, runs, width) if workers else [Text(f"no workers: {start}")]),
        _rest(len(page.workers) - len(workers), "workers"),
    )


def sparkline(lateness: Sequence[float | None]) -> str:
    """Return a bar for each lateness, in steps of half a decade from 1 ms to 1 s; a gap for None."""
    return "".join(" " if late is None else _BARS[bisect_left(_STEPS, late)] for late in lateness)


def rate(per_second: float | None) -> str:
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
        return f"in {format_duration(left)}"
    return f"{format_duration(-left)} ago" if next_due > 0 else "now"


def _title(page: Page, title: str) -> list[Text]:
    lines = [Text.assemble(("evsched top", "bold"), escape(f"  {moment(page.now)}  {title}"))]
    if page.down is not None:
        reason = escape(f"Redis is down for {format_duration(page.down.seconds)}: {page.down.reason}")
        lines.append(Text(reason, style="bold red"))
        lines.append(Text("The figures below are from before. It tries again each second.", style="red"))
    if page.nodes_down:
        reason = escape(f"{nodes_down(page.nodes_down)}: other queues there may be missing")
        lines.append(Text(reason[:1].upper() + reason[1:], style="bold red"))
    if page.refused:
        queue, reason = next(iter(page.refused.items()))
        more = f" (and {len(page.refused) - 1} more)" if len(page.refused) > 1 else ""
        lines.append(Text(escape(f"Queue {queue} cannot be read{more}: {reason}"), style="bold red"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _rest(count: int, what: str) -> Text:
    return Text(f"and {count} more {what}" if count > 0 else "")


def _table(columns: Sequence[Column], rows: Sequence[Sequence[object]], names: int, width: int) -> list[RenderableType]:
    """Draw a table and, where the terminal is too narrow for some columns, a line that names them.

    The first columns are names, which are cut where they are longer than the room for them; the others are numbers.
    """
    gap = 2 if width >= _WIDE else 1
    cells = [[escape("" if cell is None else str(cell)) for cell in row] for row in rows]
    widest = [max(map(cell_len, [column.name, *(row[n] for row in cells)])) for n, column in enumerate(columns)]
    needs = [min(wide, _NAME_LEAST) if n < names else wide for n, wide in enumerate(widest)]
    kept = fit(needs, [column.rank for column in columns], width, gap)
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    room = width - sum(needs[n] + gap for n in kept) + gap
    for n in kept:
        more = min(widest[n] - needs[n], max(room, 0))  # only a name may need more than it has
        room -= more
        justify = "left" if n < names else "right"
        drawn.add_column(columns[n].name, no_wrap=True, overflow="ellipsis", justify=justify, width=needs[n] + more)
    for row in cells:
        drawn.add_row(*(Text(row[n]) for n in kept))
    left_out = ", ".join(column.name for n, column in enumerate(columns) if n not in kept)
    return [drawn, Text(f"(no room for: {left_out}; --json shows all)", no_wrap=True)] if left_out else [drawn]


def _queues(rows: Sequence[QueueRow], now: float | None, width: int) -> list[RenderableType]:
    shown = [
        (
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
            else f"paused {format_duration(max((now or row.paused) - row.paused, 0.0))}",
        )
        for row in rows
    ]
    return _table(_QUEUE_COLUMNS, shown, 1, width)


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
            f"late {name} {sparkline(values):{min(len(shown), 60)}} {'-' if value is None else format_duration(value)}",
            no_wrap=True,
        )
        for name, values, value in rows
    ]


def _workers(rows: Sequence[WorkerRow], runs: int | None, width: int) -> list[RenderableType]:
    shown = list[tuple[object, ...]]()
    for row in rows:
        busy = f"{row.busy}/{row.slots}" if row.answered else f"no answer, holds {row.busy}"
        if row.not_fetching is not None:
            busy = f"{row.not_fetching}, {busy}"
        lines: list[tuple[object, ...]] = [
            (job.queue, job.id, job.task, job.attempt, format_duration(max(job.seconds, 0.0)))
            for job in row.runs[:runs]
        ]
        if runs is not None and 1 < runs < len(row.runs):
            lines.pop()
        if row.answered and row.busy > len(lines) and (runs is None or len(lines) < runs):
            lines.append(("", f"and {row.busy - len(lines)} more", "", "", ""))
        for n, line in enumerate(lines or [("",) * 5]):
            shown.append((*((row.worker, busy) if n == 0 else ("", "")), *line))
    return _table(_WORKER_COLUMNS, shown, 5, width)


def _fullest(rows: list[QueueRow], count: int) -> list[QueueRow]:
    """Return the `count` queues with the most jobs on their way, by name."""
    if len(rows) <= count:
        return rows
    fullest = sorted(rows, key=lambda row: -(row.overdue + row.backlog + row.ready + row.processing))
    return sorted(fullest[:count], key=lambda row: row.queue)


def _busiest(rows: list[WorkerRow], count: int) -> list[WorkerRow]:
    """Return `count` workers by name: those without an answer, then the busiest."""
    if len(rows) <= count:
        return rows
    return sorted(sorted(rows, key=lambda row: (row.answered, -row.busy))[:count], key=lambda row: row.worker)


_LEAVE: Final = b"qQ\x03"
"""Ctrl-C too, in case the terminal sends it as a character."""

_WIDTH: Final = 200
"""Columns of a page in a file or a pipe: wide enough that nothing is cut."""


def top(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """Show queues, workers, throughput, lateness and running jobs, refreshed each second. q or Ctrl-C quits.

    With --json, or if the output is not a terminal, it measures for one second, prints one page, and exits.

    Exit code 1: a queue cannot be read or does not exist.

    Example: evsched top --queue mail
    """
    check_queues(queue)
    found = settings(url)
    queues = tuple(queue or found.queues)
    with client(found.url) as redis:
        code = note_unknown(redis, queues)
    return code or asyncio.run(_top(found.url, queues, json))


async def _top(url: str, queues: tuple[str, ...], json: bool) -> int:
    """Show it; return the exit code."""
    from evsched.cli.mistakes import PipeConsole

    on_terminal = sys.stdout.isatty()
    console, looks = PipeConsole(highlight=False, width=None if on_terminal else _WIDTH), Top(url, queues)
    title = hide_password(url)
    try:
        async with aclosing(looks.pages()) as pages:
            if not json and on_terminal and not console.is_dumb_terminal:
                await _live(console, pages, title)
                return 0
            await anext(pages)
            page = await anext(pages)  # rates and lateness are measured between two
            if page.down is not None:
                raise StoreDown(page.down.reason)
            if json:
                output.as_json(page)
            else:
                console.print(draw(page, title, console.width, None))
            problems = (f"queue {queue} cannot be read: {why}" for queue, why in page.refused.items())
            return report(problems, page.nodes_down)
    except StoreRefused as error:
        hint = " (top needs the rights of the user `observer` in redis.conf)" if "permissions" in str(error) else ""
        raise StoreRefused(f"{error}{hint}") from None
    finally:
        await looks.close()


async def _live(console: Console, pages: AsyncGenerator[Page], title: str) -> None:
    """Draw pages until a key or a signal ends it; then restore the terminal."""
    from rich.live import Live

    first = await anext(pages)  # before the screen is switched, so that an error stays visible

    async def show() -> None:
        page = first
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while True:
                live.update(draw(page, f"q leaves  {title}", console.width, console.height), refresh=True)
                page = await anext(pages)

    showing = asyncio.ensure_future(show())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, showing.cancel)
    with _keys(showing.cancel), suppress(asyncio.CancelledError):
        await showing


@contextmanager
def _keys(leave: Callable[[], object]) -> Generator[None]:
    """Read single keys, if stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        try:
            pressed = os.read(keyboard, 1024)
        except OSError:
            pressed = b""
        # End of file: the terminal is closed.
        if not pressed or any(key in _LEAVE for key in pressed):
            leave()

    try:
        tty.setcbreak(keyboard)
        now = termios.tcgetattr(keyboard)
        for key in (termios.VSUSP, termios.VQUIT):
            now[6][key] = b"\0"  # Ctrl-Z and Ctrl-\ would end it without restoring the terminal
        termios.tcsetattr(keyboard, termios.TCSANOW, now)
        loop.add_reader(keyboard, read)
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
