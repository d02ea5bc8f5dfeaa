"""The search of the ledger, for older ends than Redis keeps: within a time, and with a reason if it cannot be done.

The ledger, and the library for PostgreSQL that it needs, are imported when somebody searches it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from evsched.client.history import HistoryFilter, search_rows, written_queues
from evsched.console.page import Visit
from evsched.errors import ConfigError
from evsched.store.history_calls import PastJob

_TIME: Final = 3.0
"""Seconds for which a page waits for PostgreSQL."""

_TOGETHER: Final = 2
"""Searches of one console at the same time; the others wait for them."""

_ROWS: Final = 1000
"""Rows that a search reads at most, besides the rows of the same moment that earlier pages have shown."""

_OF_EACH: Final = 10_000
"""The same of all queues together: each is read by itself."""

_LEAST: Final = 60
"""The same if there are many queues: more than a page has."""

_DAYS: Final = (1, 7, 30, math.inf)
"""How far back it searches at first, and how far then if it has found too few. The rows found in time are shown."""

_DAY: Final = 86400.0

_AHEAD: Final = 3600.0
"""Seconds by which clocks may be ahead."""

_SKIP_MOST: Final = 20_000
"""Ends of one moment that earlier pages have shown, at most."""

_BEGIN: Final = (
    f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {_TIME * 1000:.0f}"
)
"""For one transaction, as a pooler may give the session to another program. Its statements see one moment."""

_NARROW: Final = "give a queue, an id or a time, so that less is searched"

T = TypeVar("T")


class LedgerUnread(Exception):
    """The ledger was not searched; the message says why, and what to do."""


class LedgerTooSlow(LedgerUnread):
    """PostgreSQL did not answer in time."""


class LedgerRows(Struct, frozen=True):
    """The rows that a search has found."""

    jobs: list[PastJob]
    """The newest first."""
    written: dict[str, str]
    """The last entry of each queue and shard that the ledger has."""
    back_to: float | None
    """There may be more rows that ended then or earlier; None = these are all."""


class LedgerReader:
    """Searches the database of the ledger, for all pages of a console."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free = asyncio.Semaphore(_TOGETHER)
        self._tasks = set[asyncio.Task[Any]]()

    async def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return the result of `work`, which reads by a connection.

        Raises:
            LedgerUnread
        """
        try:
            import psycopg

            from evsched.ledger.database import explain
        except ImportError:
            raise LedgerUnread("it needs psycopg: pip install 'evsched[ledger]'") from None
        task = asyncio.ensure_future(self._ask(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait([task], timeout=_TIME)
        finally:
            task.cancel()  # it ends by itself: psycopg waits for a server that does not answer
        if not task.done():
            raise LedgerTooSlow(f"PostgreSQL did not answer within {_TIME:g} s: {_NARROW}; or look whether it runs")
        try:
            return task.result()
        except psycopg.errors.QueryCanceled:
            raise LedgerTooSlow(f"PostgreSQL was not ready within {_TIME:g} s: {_NARROW}") from None
        except psycopg.OperationalError as error:
            raise LedgerUnread(
                f"{explain(error)}: look whether PostgreSQL runs where EVSCHED_LEDGER_URL says"
            ) from None
        except (psycopg.Error, ConfigError) as error:
            raise LedgerUnread(explain(error) if isinstance(error, psycopg.Error) else str(error)) from None

    async def _ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        from evsched.ledger.database import check_url, connect

        async with self._free, await connect(check_url(self._url)) as connection, connection.transaction():
            await connection.execute(_BEGIN.encode())
            return await work(connection)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # somebody has heard of it, or nobody waits any more

    async def close(self) -> None:
        """End the searches that nobody waits for."""
        for task in self._tasks:
            task.cancel()


async def search_ledger(
    visit: Visit, queues: Sequence[str], matching: HistoryFilter, span: tuple[float, float], skip: int, now: float
) -> LedgerRows:
    """Search the ledger of this console. `queues`: the ones to search; none = all that it serves.

    Raises:
        LedgerUnread
    """
    url, client = visit.console.config.ledger_url, visit.client
    if url is None:
        raise LedgerUnread("this console has none: set EVSCHED_LEDGER_URL, or --ledger-url")
    reader: LedgerReader = visit.console.memory.setdefault("ledger", LedgerReader(url))
    wanted = {*(queues or visit.console.config.queues)}
    since, until, found = span[0], min(span[1], now + _AHEAD), LedgerRows([], {}, None)

    async def work(connection: Any) -> None:
        nonlocal found
        names = await client.run(written_queues(connection))
        served = [name for name in names if not wanted or {name, client.shards.whole(name)} & wanted]
        most = max(_LEAST, min(_ROWS, _OF_EACH // max(len(served), 1))) + min(skip, _SKIP_MOST)
        end, jobs = until, list[PastJob]()
        for days in _DAYS:
            start = max(since, until - days * _DAY)
            rows, written = await client.run(search_rows(served, matching, (start, end), most - len(jobs), connection))
            jobs += [job for job in rows if end == until or job.ended < end]
            full, end = len(jobs) >= most, start
            found = LedgerRows(jobs.copy(), written, jobs[-1].ended if full else start if start > since else None)
            if full or start == since:
                return

    try:
        await reader.ask(work)
    except LedgerTooSlow:
        if found.back_to is None:
            raise
    return found
