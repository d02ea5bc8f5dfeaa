"""The jobs that Redis does not have, since it lost them or no relay has scheduled them yet: what their rows say.

Commands ask when Redis does not know an id. They also revive or drop such jobs if they are dead, and cancel open ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

import psycopg
from msgspec import Struct
from psycopg import AsyncConnection

from evsched.errors import CannotStart, ConfigError
from evsched.ledger import rows
from evsched.ledger.audit import Row
from evsched.ledger.database import check_url, explain, transaction
from evsched.ledger.presence import read_present
from evsched.ledger.tables import CHANNEL
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

MOST: Final = 1000
"""Rows that are counted, and changed in one transaction."""

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
    FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[]) AS one (queue, id, number)
    WHERE job.queue = one.queue AND job.id = one.id AND job.number = one.number AND job.state IN ('dead', 'expired')
    RETURNING job.id
), notified AS (SELECT pg_notify('{CHANNEL}', ''))
SELECT id FROM revived, notified
"""  # noqa: S608 - the channel is a constant
"""With another number: if Redis gets the dead job back, as from a backup, the one of this number replaces it."""

_DROP: Final = """
UPDATE evsched_job AS job SET state = 'dropped', reason = 'dropped from the ledger', finished_at = now()
FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[]) AS one (queue, id, number)
WHERE job.queue = one.queue AND job.id = one.id AND job.number = one.number AND job.state IN ('dead', 'expired')
RETURNING job.id
"""

_CHANGES: Final = {"revive": _REVIVE, "drop": _DROP}

Change = Literal["revive", "drop"]


class LostRow(Struct, frozen=True):
    """What the row of a job says that Redis does not have. The moments are Unix seconds."""

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
    most: float = MOST,
) -> list[Row]:
    """Return dead and expired rows whose jobs Redis does not have, at most `most`. None: of all queues, of all ids.

    Raises:
        psycopg.Error, StoreDown, StoreRefused
    """
    found, last = list[Row](), ("", "")
    words = {"queue": queue, "ids": None if ids is None else list(ids), "limit": MOST}
    while len(found) < most:
        cursor = await connection.execute(_DEAD.encode(), {**words, "after_queue": last[0], "after_id": last[1]})
        some = [Row(*row) for row in await cursor.fetchall()]
        found += await _lost(sender, some)
        if len(some) < MOST:
            break
        last = some[-1].queue, some[-1].id
    return found if len(found) <= most else found[: int(most)]


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


async def count_lost_dead(database: str | None, redis: str, queue: str, most: float = MOST) -> int:
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
            words = {
                "queues": [row.queue for row in found],
                "ids": [row.id for row in found],
                "numbers": [row.number for row in found],
            }
            done = await (await connection.execute(_CHANGES[change].encode(), words)).fetchall()
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
        cursor = await connection.execute(_FIND, {"queues": queues, "id": job_id})
        relays = len((await read_present(connection)).relays)
        found = await _lost(sender, [LostRow(*row, relays=relays) for row in await cursor.fetchall()])
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
