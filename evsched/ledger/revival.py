"""Revives dead jobs that Redis has lost, or never had: their rows still say what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import AsyncConnection

from evsched.errors import CannotStart, ConfigError
from evsched.ledger.audit import Row
from evsched.ledger.database import check_url, explain, transaction
from evsched.ledger.tables import CHANNEL
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

MOST: Final = 1000
"""Rows that are counted, and revived in one transaction."""

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
        marks = await sender.send_all([Store(row.queue).mark(row.id) for row in some])
        found += [row for row, mark in zip(some, marks, strict=True) if mark.row is None]
        if len(some) < MOST:
            break
        last = some[-1].queue, some[-1].id
    return found if len(found) <= most else found[: int(most)]


async def count_lost_dead(database: str | None, redis: str, queue: str, most: float = MOST) -> int:
    """Count these rows of a queue, up to `most`. Raises as `revive_lost_dead`."""
    sender = BatchingSender(redis)
    try:
        async with transaction(check_url(database)) as connection:
            return len(await lost_dead(connection, sender, queue, None, most))
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None
    finally:
        await sender.close()


async def revive_lost_dead(
    database: str | None, redis: str, queue: str | None, ids: Sequence[str] | None = None
) -> list[str]:
    """Have these rows scheduled, due now; return their ids. `queue`: None = that of the rows with these ids.

    Raises:
        ConfigError: no database is set, or ids are in several queues.
        CannotStart: the database cannot be reached, or refuses.
        StoreDown, StoreRefused
    """
    sender, revived = BatchingSender(redis), list[str]()
    try:
        while True:
            async with transaction(check_url(database)) as connection:
                found = await lost_dead(connection, sender, queue, ids)
                if queue is None and len(queues := sorted({row.queue for row in found})) > 1:
                    raise ConfigError(f"dead jobs of these ids are in the queues {', '.join(queues)}: name one")
                words = {
                    "queues": [row.queue for row in found],
                    "ids": [row.id for row in found],
                    "numbers": [row.number for row in found],
                }
                done = await (await connection.execute(_REVIVE.encode(), words)).fetchall()
            revived += [job_id for (job_id,) in done]
            if not done:
                return revived
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None
    finally:
        await sender.close()
