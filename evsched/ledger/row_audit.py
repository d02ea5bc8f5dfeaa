"""The jobs that Redis lacks, for commands, and the state of the ledger.

Redis lacks a job if it lost it, or if no relay has scheduled it yet. Commands ask for its row when Redis does not know
an id; they also revive or drop such jobs if they are dead, and cancel open ones. `evsched ledger status` shows the
state of the ledger at one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

import psycopg
from msgspec import Struct
from psycopg import AsyncConnection

from evsched.errors import CannotStart, ConfigError, StoreDown, StoreRefused
from evsched.ledger import rows
from evsched.ledger.database import check_url, explain, transaction
from evsched.ledger.epoch import OTHER, known_epoch, read_identity, read_present
from evsched.ledger.rows import SAME, SLICE, Backlog, Row, arrays, fetch, given
from evsched.ledger.tables import CHANNEL
from evsched.store.store import Store
from evsched.transport.redis_errors import unless_mistyped
from evsched.transport.senders import BatchingSender

_FIND: Final = """
SELECT queue, id, number, state, cancelled, reason, payload ->> 'task', grp, extract(epoch FROM due)::float8,
    extract(epoch FROM created)::float8, extract(epoch FROM scheduled_at)::float8,
    extract(epoch FROM finished_at)::float8, extract(epoch FROM now())::float8
FROM evsched_job WHERE queue = ANY (%(queues)s) AND id = %(id)s ORDER BY queue
"""

_CANCEL: Final = """
UPDATE evsched_job SET cancelled = true
WHERE queue = %(queue)s AND id = %(id)s AND number = %(number)s AND state = 'open' AND NOT cancelled
"""

_DEAD: Final = """
SELECT queue, id, number FROM evsched_job
WHERE state IN ('dead', 'expired') AND (queue, id) > (%(after_queue)s, %(after_id)s)
    AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
ORDER BY queue, id LIMIT %(limit)s
"""

_REVIVE: Final = f"""
WITH revived AS (
    UPDATE evsched_job AS job
    SET state = 'open', reason = NULL, number = DEFAULT, epoch = '', report = 0, due = now(), finished_at = NULL,
        cancelled = false
    FROM {given()} WHERE {SAME} AND job.state IN ('dead', 'expired')
    RETURNING job.id
), notified AS (SELECT pg_notify('{CHANNEL}', ''))
SELECT id FROM revived, notified
"""  # noqa: S608 - the parts are constants
"""With another number: if Redis gets the dead job back, as from a backup, the one of this number replaces it."""

_DROP: Final = f"""
UPDATE evsched_job AS job SET state = 'dropped', reason = 'dropped from the ledger', finished_at = now()
FROM {given()} WHERE {SAME} AND job.state IN ('dead', 'expired')
RETURNING job.id
"""  # noqa: S608 - likewise

_CHANGES: Final = {"revive": _REVIVE, "drop": _DROP}

Change = Literal["revive", "drop"]


class LostRow(Struct, frozen=True):
    """The row of a job that Redis does not have. The moments are Unix seconds."""

    queue: str
    id: str
    number: int
    state: str
    cancelled: bool
    """A program has cancelled the job in a transaction; the row is `cancelled` once a relay has seen to it."""
    reason: str | None
    task: str
    group: str | None
    due: float
    created: float
    scheduled: float | None
    """When a relay scheduled it last; None = none has."""
    finished: float | None
    now: float
    relays: int = 0
    """How many are connected to the database."""


_Row = TypeVar("_Row", Row, LostRow)


async def lost_dead(
    connection: AsyncConnection,
    sender: BatchingSender,
    queue: str | None,
    ids: Sequence[str] | None = None,
    most: float = SLICE,
) -> list[Row]:
    """Return dead and expired rows whose jobs Redis does not have, at most `most`. None: of all queues, of all ids.

    Raises:
        psycopg.Error, StoreDown, StoreRefused
    """
    found = list[Row]()
    async for some in rows.slices(connection, _DEAD, {"queue": queue, "ids": None if ids is None else list(ids)}):
        found += await _lost(sender, some)
        if len(found) >= most:
            return found[: int(most)]
    return found


async def _lost(sender: BatchingSender, found: Sequence[_Row]) -> list[_Row]:
    """Return those of some rows whose jobs Redis does not have."""
    marks = await sender.send_all([Store(row.queue).mark(row.id) for row in found])
    return [row for row, mark in zip(found, marks, strict=True) if mark.row is None]


@asynccontextmanager
async def _opened(database: str | None, redis: str) -> AsyncGenerator[tuple[AsyncConnection, BatchingSender]]:
    """Yield a transaction of the ledger, and a sender to Redis.

    Raises:
        ConfigError: no database is set.
        CannotStart: the database cannot be reached, or refuses.
    """
    sender = BatchingSender(redis)
    try:
        async with transaction(check_url(database)) as connection:
            yield connection, sender
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None
    finally:
        await sender.close()


async def count_lost_dead(database: str | None, redis: str, queue: str, most: float = SLICE) -> int:
    """Count these rows of a queue, up to `most`. Raises as `change_lost_dead`."""
    async with _opened(database, redis) as (connection, sender):
        return len(await lost_dead(connection, sender, queue, None, most))


async def change_lost_dead(
    database: str | None, redis: str, change: Change, queue: str | None, ids: Sequence[str] | None = None
) -> list[str]:
    """Drop these rows, or have them scheduled, due now; return their ids. `queue`: None = that of the rows of `ids`.

    Raises:
        ConfigError: no database is set, or ids are in several queues.
        CannotStart: the database cannot be reached, or refuses.
        StoreDown, StoreRefused
    """
    changed = list[str]()
    while True:
        async with _opened(database, redis) as (connection, sender):
            found = await lost_dead(connection, sender, queue, ids)
            _check_queue(queue, found)
            done = await fetch(connection, _CHANGES[change], arrays(found))
        changed += [job_id for (job_id,) in done]
        if not done:
            return changed


async def find_lost(
    database: str | None, redis: str, queue: str | None, job_id: str, *, cancel: bool = False
) -> LostRow | None:
    """Return the row of a job that Redis does not have; None if there is no such row. `queue`: None = any.

    `cancel`: cancel it, if it is open and not cancelled yet; the row is returned as it was.

    Raises:
        As `change_lost_dead`.
    """
    async with _opened(database, redis) as (connection, sender):
        queues = await rows.queues(connection) if queue is None else [queue]
        words = {"queues": queues, "id": job_id}
        relays = len((await read_present(connection)).relays)
        found = await _lost(sender, [LostRow(*row, relays=relays) for row in await fetch(connection, _FIND, words)])
        _check_queue(queue, found)
        if not found:
            return None
        (row,) = found
        if cancel:
            await connection.execute(_CANCEL, {"queue": row.queue, "id": row.id, "number": row.number})
        return row


def _check_queue(queue: str | None, found: Sequence[Row | LostRow]) -> None:
    if queue is None and len(queues := sorted({row.queue for row in found})) > 1:
        raise ConfigError(f"jobs of this id are in the queues {', '.join(queues)} of the ledger: name one by --queue")


class Status(Struct, frozen=True):
    """The state in the table and in Redis."""

    epoch: str
    """The present one; empty = no relay has seen this Redis, or its data is lost, or it is down."""
    compared: bool
    """Whether relays have removed, in this epoch, the jobs whose rows have ended."""
    away: str | None
    """Why Redis does not answer, or is not the one of this ledger; None = it answers."""
    foreign: bool
    """The reason is that this Redis belongs to the ledger of another database."""
    states: dict[str, int]
    """How many rows are in each state."""
    waiting: Backlog
    """The rows that are not scheduled in this epoch. While Redis is down: rows that were never copied."""
    recurrences: int
    undeclared: int
    """Recurrences that wait to be declared."""
    refused: int
    """Recurrences that cannot be declared: their rows have the reason."""
    relays: int
    """How many are connected to the database."""
    redises: int
    """How many Redises they serve, which must not be more than one."""
    unwritten: dict[str, int]
    """By queue: how many ends Redis has that the table does not have yet. Empty while Redis is down."""
    lost_dead: int
    """Dead and expired rows whose jobs Redis does not have, counted up to 1,000. 0 while it does not answer."""


async def read_status(database: str | None, redis: str) -> Status:
    """Read the state of the ledger. It counts all rows, which takes as long as they are many.

    Raises:
        ConfigError: no database is set.
        CannotStart: it cannot be reached, or refuses.
        StoreRefused
    """
    async with _opened(database, redis) as (connection, sender):
        epoch, compared, unwritten, away, foreign = "", False, dict[str, int](), None, False
        lost = list[Row]()
        try:
            noted = await read_identity(connection)
            epoch = await known_epoch(sender, noted.text)
            compared = epoch == noted.checked
            lost = await lost_dead(connection, sender, None)
            unwritten = await _unwritten(sender, await rows.queues(connection))
        except (StoreDown, StoreRefused) as error:
            foreign = error.kind == OTHER
            if not foreign and not isinstance(error, StoreDown):
                raise
            away = str(error).removeprefix("Redis: ")
        present = await read_present(connection)
        present_epoch = None if away else epoch or rows.NO_EPOCH
        return Status(
            epoch,
            compared,
            away,
            foreign,
            dict(await fetch(connection, rows.STATES)),
            await rows.backlog(connection, present_epoch, None),
            *(await rows.recurrences(connection, present_epoch)),
            len(present.relays),
            present.redises,
            unwritten,
            len(lost),
        )


async def _unwritten(sender: BatchingSender, queues: Sequence[str]) -> dict[str, int]:
    counts = await asyncio.gather(*(unless_mistyped(sender.send(Store(queue).count_ends())) for queue in queues))
    return {queue: count for queue, count in zip(queues, counts, strict=True) if count}
