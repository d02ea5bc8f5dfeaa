"""The audit of the ledger: what the table and Redis say of the same jobs, compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from psycopg import AsyncConnection

from evsched.ledger import rows
from evsched.ledger.epoch import known_epoch
from evsched.ledger.identity import read_identity
from evsched.ledger.presence import Present, read_present
from evsched.ledger.rows import NO_EPOCH, Backlog
from evsched.ledger.tables import CHANNEL
from evsched.store.relay_calls import Mark
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_SLICE: Final = 1000
"""Rows that are compared at once."""

_MOST: Final = 1000
"""Differences that are reported."""

_AGAIN: Final = 2.5
"""Seconds until a difference is looked at again: an end may have been on its way."""

_LATE: Final = 60.0
"""Seconds that an end may take to reach its row."""

_OPEN: Final = """
SELECT queue, id, number FROM evsched_job
WHERE state = 'open' AND epoch = %(epoch)s AND (queue, id) > (%(queue)s, %(id)s)
ORDER BY queue, id LIMIT %(limit)s
"""

_STILL_OPEN: Final = """
SELECT job.queue, job.id, job.number FROM evsched_job AS job
JOIN unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[]) AS one (queue, id, number)
    USING (queue, id, number)
WHERE job.state = 'open' AND job.epoch = %(epoch)s
"""

_WAIT_AGAIN: Final = f"""
WITH again AS (
    UPDATE evsched_job AS job SET epoch = '' FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[])
        AS one (queue, id, number)
    WHERE job.queue = one.queue AND job.id = one.id AND job.number = one.number AND job.state = 'open'
)
SELECT pg_notify('{CHANNEL}', '')
"""  # noqa: S608 - the channel is a constant


_OLD: Final = 600.0
"""Seconds after which an open transaction is reported."""

_OLDEST: Final = """
SELECT pid, coalesce(application_name, ''), coalesce(state, ''),
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND datname = current_database() AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY xact_start LIMIT 1
"""


class Transaction(Struct, frozen=True):
    """A transaction that has been open for long."""

    pid: int
    application: str
    state: str
    seconds: float


class Row(Struct, frozen=True):
    """A row that is open, and scheduled in the present epoch."""

    queue: str
    id: str
    number: int


class Difference(Struct, frozen=True):
    """A row whose job Redis does not have (`lost`), or has ended there over a minute ago (`open`)."""

    row: Row
    what: Literal["lost", "open"]


class Attendance(Struct, frozen=True):
    """Whether there are relays that do their work."""

    waiting: Backlog
    relays: int
    """How many are connected to the database."""
    redises: int
    """How many Redises they serve."""
    serving: int
    """How many serve this Redis."""


async def attendance(connection: AsyncConnection, sender: BatchingSender) -> Attendance:
    """Return which relays there are, and what waits for them. Raises as `compare`.

    Relays that do not all serve this Redis are looked at again 2.5 s later: a failover may be under way.
    """
    epoch, present = await _present(connection, sender)
    if present.relays and (present.redises != 1 or not present.serving(epoch)):
        await asyncio.sleep(_AGAIN)
        epoch, present = await _present(connection, sender)
    waiting = await rows.backlog(connection, epoch or NO_EPOCH, None)
    return Attendance(waiting, len(present.relays), present.redises, len(present.serving(epoch)))


async def oldest_transaction(connection: AsyncConnection) -> Transaction | None:
    """Return the oldest of the transactions that have been open for over ten minutes."""
    found = await (await connection.execute(_OLDEST, [_OLD])).fetchone()
    return Transaction(*found) if found else None


async def _present(connection: AsyncConnection, sender: BatchingSender) -> tuple[str, Present]:
    epoch = await known_epoch(sender, (await read_identity(connection)).text)
    return epoch, await read_present(connection)


async def compare(connection: AsyncConnection, sender: BatchingSender) -> list[Difference]:
    """Return the differences, at most 1,000: those that are there 2.5 s later too.

    Raises:
        psycopg.Error, StoreDown, StoreRefused
    """
    epoch = await known_epoch(sender, (await read_identity(connection)).text)
    found, last = list[Row](), ("", "")
    while epoch and len(found) < _MOST:
        words = {"epoch": epoch, "queue": last[0], "id": last[1], "limit": _SLICE}
        cursor = await connection.execute(_OPEN.encode(), words)
        some = [Row(*row) for row in await cursor.fetchall()]
        found += [one.row for one in await _differences(sender, some)]
        if len(some) < _SLICE:
            break
        last = some[-1].queue, some[-1].id
    if not found:
        return []
    await asyncio.sleep(_AGAIN)
    cursor = await connection.execute(_STILL_OPEN.encode(), {"epoch": epoch, **_columns(found[:_MOST])})
    return await _differences(sender, [Row(*row) for row in await cursor.fetchall()])


async def schedule_again(connection: AsyncConnection, lost: Sequence[Row]) -> None:
    """Have the relays schedule rows again whose jobs are lost."""
    await connection.execute(_WAIT_AGAIN.encode(), _columns(lost))


async def _differences(sender: BatchingSender, some: Sequence[Row]) -> list[Difference]:
    now = await sender.send(clock())
    marks: list[Mark] = await sender.send_all([Store(row.queue).mark(row.id) for row in some])
    found = list[Difference]()
    for row, mark in zip(some, marks, strict=True):
        if mark.next_row == str(row.number):
            continue
        if mark.row != str(row.number):
            found.append(Difference(row, "lost"))
        elif mark.finished is not None and mark.finished < now - _LATE:
            found.append(Difference(row, "open"))
    return found


def _columns(some: Sequence[Row]) -> dict[str, Any]:
    return {
        "queues": [row.queue for row in some],
        "ids": [row.id for row in some],
        "numbers": [row.number for row in some],
    }
