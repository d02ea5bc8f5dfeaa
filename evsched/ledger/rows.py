"""The statements of the relays about rows of `evsched_job`; tables.py says what a row is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, LiteralString

from msgspec import Struct, structs
from psycopg import AsyncConnection, errors

from evsched.ledger.tables import NEW
from evsched.store.relay_calls import Report, RowJob

NO_EPOCH: Final = "none"
"""An epoch that no row has: in which Redis is, as long as no relay has seen its data."""

ENDED: Final = ("done", "dead", "expired", "cancelled", "dropped")
"""The states of a row whose job has ended."""

_OPEN: Final = "open"

_OTHER_EPOCHS: Final = """
WITH RECURSIVE known (epoch) AS (
    (SELECT epoch FROM evsched_job WHERE state = 'open' ORDER BY epoch LIMIT 1)
    UNION ALL
    SELECT (SELECT job.epoch FROM evsched_job AS job
            WHERE job.state = 'open' AND job.epoch > known.epoch ORDER BY job.epoch LIMIT 1)
    FROM known WHERE known.epoch IS NOT NULL
)
SELECT epoch FROM known WHERE epoch <> %(epoch)s
"""
"""Walks the index from epoch to epoch; each is one look-up, however many rows it has."""

_SELECTED: Final = """
critical >= %(least)s AND queue <> ALL (%(avoid)s)
    AND (queue, id) NOT IN (SELECT * FROM unnest(%(aside_queues)s::text[], %(aside_ids)s::text[]))
"""

_WAITING: Final = f"state = 'open' AND epoch = %(other)s AND {_SELECTED}"

_UNSEEN_MOST: Final = 5000
"""Rows of which a claim chooses the most critical, if it takes only rows that were committed since the last look."""

_UNSEEN: Final = f"""
ctid = ANY (ARRAY(
    (SELECT ctid FROM evsched_job WHERE {NEW} AND xact >= %(next)s::text::xid8 AND {_SELECTED} LIMIT {_UNSEEN_MOST})
    UNION ALL
    (SELECT ctid FROM evsched_job WHERE {NEW} AND xact = ANY (%(running)s::text[]::xid8[]) AND {_SELECTED}
        LIMIT {_UNSEEN_MOST})
)) AND (state = 'open' AND epoch = '') IS NOT FALSE AND {_SELECTED}
"""  # noqa: S608 - the conditions are constants
"""Each subquery is one index scan. IS NOT FALSE, so that no index fits the outer condition, and the rows are found by
their ctid: they may have been taken meanwhile."""

_BYTES: Final = 8_388_608
"""Bytes of payloads in one claim; a longer payload has a claim of its own."""

_CLAIM: Final = """
UPDATE evsched_job SET epoch = %(epoch)s, scheduled_at = clock_timestamp(), report = 0
WHERE ctid = ANY (ARRAY(
    SELECT place FROM (
        SELECT place, bytes, sum(bytes) OVER (ORDER BY critical DESC, due ROWS UNBOUNDED PRECEDING) AS total
        FROM (
            SELECT ctid AS place, critical, due,
                CASE WHEN NOT cancelled AND octet_length(payload::text) <= %(cap)s
                    THEN octet_length(payload::text) ELSE 1 END AS bytes
            FROM evsched_job WHERE {waiting}
            ORDER BY critical DESC, due LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ) AS locked
    ) AS summed
    WHERE total <= %(bytes)s OR total = bytes
))
RETURNING queue, id, priority, grp, extract(epoch FROM due)::float8, number, revision, cancelled,
    octet_length(payload::text),
    CASE WHEN NOT cancelled AND octet_length(payload::text) <= %(cap)s THEN payload::text END
"""
"""By ctid: the rows are locked, so nobody moves them. Rows beyond the bytes stay as they are for the next claim."""

_REFUSE: Final = """
UPDATE evsched_job AS job SET state = 'dead', reason = refused.reason, finished_at = clock_timestamp()
FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[], %(reasons)s::text[])
    AS refused (queue, id, number, reason)
WHERE job.queue = refused.queue AND job.id = refused.id AND job.number = refused.number
    AND job.state NOT IN ('done', 'dead', 'expired', 'cancelled', 'dropped')
"""
"""No condition of this and the next two compares a queue or a state with a constant by `=`: while PostgreSQL has no
statistics, it takes these for 1 row of 200, and compares each row of the queue with each one that is given."""

_ANY_WAITING: Final = "SELECT EXISTS (SELECT FROM evsched_job WHERE {waiting})"

_SNAPSHOT: Final = """
SELECT pg_snapshot_xmax(now)::text, ARRAY(SELECT pg_snapshot_xip(now)::text) FROM pg_current_snapshot() AS now
"""

_END: Final = """
UPDATE evsched_job AS job
SET state = ended.state, reason = nullif(ended.reason, ''), report = ended.report,
    finished_at = CASE WHEN ended.state <> 'open' THEN to_timestamp(ended.at) END
FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[], %(states)s::text[], %(reasons)s::text[],
            %(reports)s::bigint[], %(ats)s::float8[]) AS ended (queue, id, number, state, reason, report, at)
WHERE job.queue = ended.queue AND job.id = ended.id AND job.number = ended.number AND job.report < ended.report
    AND job.state NOT IN ('done', 'cancelled', 'dropped')
"""

_ENDED: Final = "SELECT id, number FROM evsched_job WHERE queue = %(queue)s AND id = ANY (%(ids)s) AND state <> 'open'"

_REVIVED: Final = """
UPDATE evsched_job AS job SET cancelled = false
FROM unnest(%(queues)s::text[], %(ids)s::text[], %(numbers)s::bigint[]) AS one (queue, id, number)
WHERE job.queue = one.queue AND job.id = one.id AND job.number = one.number AND job.cancelled
    AND job.state NOT IN ('open', 'done', 'cancelled', 'dropped')
"""
"""A cancellation that came after the job had died is not for its revival. Sent apart, for few rows, since a trigger has
the relays take them again."""

_GIVE_WAY: Final = "SET LOCAL lock_timeout = '500ms'"
"""Less than the second after which PostgreSQL ends one of two transactions that wait for each other: that must not be
the program's, which changes several rows while a relay writes the ends of the same."""

_TRIES: Final = 10
"""How often ends are written while a program's transaction has changed a row and has not ended: for 5 s."""

_QUEUES: Final = """
WITH RECURSIVE of_jobs (queue) AS (
    (SELECT queue FROM evsched_job ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue FROM evsched_job AS job WHERE job.queue > of_jobs.queue ORDER BY job.queue LIMIT 1)
    FROM of_jobs WHERE of_jobs.queue IS NOT NULL
), of_recurrences (queue) AS (
    (SELECT queue FROM evsched_recurrence ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT row.queue FROM evsched_recurrence AS row WHERE row.queue > known.queue ORDER BY row.queue LIMIT 1)
    FROM of_recurrences AS known WHERE known.queue IS NOT NULL
)
SELECT queue FROM of_jobs WHERE queue IS NOT NULL UNION SELECT queue FROM of_recurrences WHERE queue IS NOT NULL
"""


_UNSCHEDULED: Final = "state = 'open' AND (epoch < %(epoch)s OR epoch > %(epoch)s OR epoch = '')"
"""If the epoch is not known, NULL, the rows that were scheduled in none."""

_BACKLOG: Final = f"""
SELECT count(*), greatest(extract(epoch FROM clock_timestamp() - min(since) FILTER (WHERE isfinite(since))), 0)::float8
FROM (
    SELECT CASE
        WHEN scheduled_at IS NULL THEN created
        WHEN epoch <> '' THEN coalesce(
            (SELECT found FROM evsched_ledger WHERE epoch = %(epoch)s), CASE WHEN %(known)s THEN scheduled_at END
        )
    END AS since
    FROM evsched_job WHERE {_UNSCHEDULED} LIMIT %(most)s
) AS waiting
"""  # noqa: S608 - likewise
"""Rows of another epoch wait since the present one was found; if the table has another one, since they were scheduled
in that. Since when other rows wait that were scheduled before, as rows that the doctor has scheduled again, is not
known."""

_STATES: Final = "SELECT state, count(*) FROM evsched_job GROUP BY state ORDER BY state"

_RECURRENCES: Final = """
SELECT count(*), count(*) FILTER (WHERE epoch = '' OR epoch <> %(epoch)s AND reason IS NULL), count(reason)
FROM evsched_recurrence
"""


class Backlog(Struct, frozen=True):
    """The rows that are committed and not scheduled."""

    rows: int
    seconds: float
    """For how long the oldest of them has been there: since its insert or, after a loss of Redis, since a relay found
    that; 0 if none has yet."""


class Refusal(Struct, frozen=True):
    """A row whose job cannot be scheduled, and why."""

    id: str
    number: int
    reason: str


class Snapshot(Struct, frozen=True):
    """Which transactions had ended at a moment: all before `next`, except `running`."""

    next: str
    running: list[str]


class Selection(Struct, frozen=True):
    """Which rows a relay takes."""

    epoch: str
    """The present one: rows of all others wait."""
    least: int
    """The least value of `critical`."""
    avoid: Sequence[str]
    """Queues that Redis refuses at the moment."""
    aside: Sequence[tuple[str, str]]
    """Queues and ids of rows that Redis does not take at the moment."""
    unseen: Snapshot | None = None
    """Only rows that wait since a transaction which had not ended then; None = all."""

    def statement(self, text: str) -> bytes:
        return text.format(waiting=_UNSEEN if self.unseen else _WAITING).encode()

    def words(self, other: str) -> dict[str, Any]:
        """Return the parameters of a statement about the rows of another epoch."""
        return {
            "epoch": self.epoch,
            "other": other,
            "least": self.least,
            "avoid": list(self.avoid),
            "aside_queues": [queue for queue, _ in self.aside],
            "aside_ids": [job_id for _, job_id in self.aside],
            **(structs.asdict(self.unseen) if self.unseen else {}),
        }


async def other_epochs(connection: AsyncConnection, epoch: str) -> list[str]:
    """Return the epochs under which open rows were scheduled, except the present one; "" = not yet."""
    return await _column(connection, _OTHER_EPOCHS, {"epoch": epoch})


async def snapshot(connection: AsyncConnection) -> Snapshot:
    return Snapshot(*(await _rows(connection, _SNAPSHOT, {}))[0])


class Claimed(Struct, frozen=True):
    """Rows of one queue that are locked."""

    jobs: list[RowJob]
    refused: list[Refusal]
    """Those that are not sent to Redis."""
    cancelled: list[tuple[str, int]]
    """Ids and numbers of the rows whose jobs are to be cancelled."""

    @property
    def count(self) -> int:
        return len(self.jobs) + len(self.refused) + len(self.cancelled)


class Limit:
    """How many rows a claim locks: PostgreSQL reads all payloads of these, also those beyond the bytes of the claim."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most

    def note(self, count: int, size: int) -> None:
        """Note the rows of a claim, and the bytes of their payloads: long ones are locked a few at a time."""
        if count:
            self.rows = self._most if size <= _BYTES // 2 else min(self._most, 2 * count)


async def claim(
    connection: AsyncConnection, selection: Selection, other: str, limit: Limit, cap: int
) -> dict[str, Claimed]:
    """Lock rows of another epoch that no relay has locked, and give them the present one; return jobs by queue.

    The most critical first, then the earliest. Within a transaction, which the caller commits when Redis has the jobs.
    `cap`: bytes that a payload may have; longer ones are not read.
    """
    words = {**selection.words(other), "limit": limit.rows, "cap": cap, "bytes": _BYTES}
    # Not prepared: a plan that is kept would not know that few rows are new.
    cursor = await connection.execute(selection.statement(_CLAIM), words, prepare=False)
    found: dict[str, Claimed] = {}
    for queue, job_id, priority, group, due, number, revision, cancelled, size, payload in await cursor.fetchall():
        claimed = found.setdefault(queue, Claimed([], [], []))
        if cancelled:
            claimed.cancelled.append((job_id, number))
        elif payload is None:
            reason = f"the payload has {size} bytes, more than {cap}: store the data elsewhere and pass a reference"
            claimed.refused.append(Refusal(job_id, number, reason))
        else:
            claimed.jobs.append(RowJob(job_id, payload.encode(), priority, group, due, number, revision))
    jobs = [job for claimed in found.values() for job in claimed.jobs]
    limit.note(len(jobs), sum(len(job.payload) for job in jobs))
    return found


async def refuse(connection: AsyncConnection, queue: str, refused: Sequence[Refusal]) -> None:
    """Mark rows as dead whose jobs cannot be scheduled."""
    if not refused:
        return
    words = {
        "queues": [queue] * len(refused),
        "ids": [one.id for one in refused],
        "numbers": [one.number for one in refused],
        "reasons": [one.reason for one in refused],
    }
    await connection.execute(_REFUSE.encode(), words)


async def any_waiting(connection: AsyncConnection, selection: Selection, others: Iterable[str]) -> bool:
    """Return whether rows wait that `claim` did not return, since other relays have locked them."""
    statement = selection.statement(_ANY_WAITING)
    for other in others:
        cursor = await connection.execute(statement, selection.words(other), prepare=False)
        if await cursor.fetchone() == (True,):
            return True
    return False


async def write_ends(connection: AsyncConnection, queue: str, reports: Iterable[Report]) -> int:
    """Write reports, and return how many rows changed. Entries that match no row are ignored."""
    last = {(one.id, one.row): one for one in reports if one.is_of_row and one.outcome in (*ENDED, _OPEN)}
    found = list(last.values())
    if not found:
        return 0
    words = {
        "queues": [queue] * len(found),
        "ids": [storable(one.id) for one in found],
        "numbers": [int(one.row) for one in found],
        "states": [one.outcome for one in found],
        "reasons": [storable(one.reason) for one in found],
        "reports": [one.order for one in found],
        "ats": [(one.order >> 20) / 1000 for one in found],
    }
    revived = [one for one in found if one.outcome == _OPEN]
    ids, numbers = [storable(one.id) for one in revived], [int(one.row) for one in revived]
    tries = 0
    while True:
        tries += 1
        try:
            async with connection.transaction():
                await connection.execute(_GIVE_WAY)
                if revived:
                    await connection.execute(_REVIVED, {"queues": [queue] * len(ids), "ids": ids, "numbers": numbers})
                return (await connection.execute(_END.encode(), words)).rowcount
        except errors.LockNotAvailable:
            if tries == _TRIES:
                raise


async def ended(connection: AsyncConnection, queue: str, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return the ids and numbers of those rows, among some ids, whose jobs have ended."""
    return await _rows(connection, _ENDED, {"queue": queue, "ids": list(ids)}) if ids else []


async def backlog(connection: AsyncConnection, epoch: str | None, most: int | None) -> Backlog:
    """Return how many open rows were not scheduled in this epoch, counted up to `most`, and how long they wait.

    `epoch`: None = it is not known, so only rows count that were never scheduled. `most`: None = all.
    """
    words = {"epoch": epoch, "known": epoch not in (None, NO_EPOCH), "most": most}
    return Backlog(*(await _rows(connection, _BACKLOG, words))[0])


async def states(connection: AsyncConnection) -> dict[str, int]:
    """Count the rows by state: as long as that takes."""
    return dict(await _rows(connection, _STATES, {}))


async def recurrences(connection: AsyncConnection, epoch: str | None) -> tuple[int, int, int]:
    """Count the recurrences: all, waiting to be declared, and refused. `epoch` as in `backlog`."""
    return (await _rows(connection, _RECURRENCES, {"epoch": epoch}))[0]


async def queues(connection: AsyncConnection) -> list[str]:
    return await _column(connection, _QUEUES, {})


async def _column(connection: AsyncConnection, statement: LiteralString, words: dict[str, Any]) -> list[Any]:
    return [row[0] for row in await _rows(connection, statement, words)]


async def _rows(connection: AsyncConnection, statement: LiteralString, words: dict[str, Any]) -> list[Any]:
    cursor = await connection.execute(statement, words)
    return await cursor.fetchall()


def storable(text: str) -> str:
    """Return a text that PostgreSQL stores: without NUL."""
    return text.replace("\x00", "\\x00")
