"""The statements about rows of `evsched_job` that relays and commands share; tables.py says what a row is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs
from psycopg import AsyncConnection, errors

from evsched.ledger.tables import NEW
from evsched.store.relay_calls import Report, RowJob

NO_EPOCH: Final = "none"
"""An epoch that no row has: in which Redis is, as long as no relay has seen its data."""

ENDED: Final = ("done", "dead", "expired", "cancelled", "dropped")
"""The states of a row whose job has ended."""

_OPEN: Final = "open"

_IS_OPEN: Final = "state = 'open'"


def _each(column: str, table: str, where: str = "true") -> str:
    """Return a query for the distinct values of a column. It walks an index: one look-up for each value."""
    return f"""
WITH RECURSIVE known (value) AS (
    (SELECT {column} FROM {table} WHERE {where} ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT {column} FROM {table} WHERE {where} AND {column} > known.value ORDER BY {column} LIMIT 1)
    FROM known WHERE known.value IS NOT NULL
)
SELECT value FROM known WHERE value IS NOT NULL
"""  # noqa: S608 - the parts are constants


_OTHER_EPOCHS: Final = f"SELECT * FROM ({_each('epoch', 'evsched_job', _IS_OPEN)}) AS one WHERE value <> %(epoch)s"  # noqa: S608

_QUEUES: Final = f"({_each('queue', 'evsched_job')}) UNION ({_each('queue', 'evsched_recurrence')})"


def given(**more: str) -> str:
    """Return the table of the rows that a statement is given by `arrays`. `more`: the types of its other columns."""
    kinds = {"queue": "text", "id": "text", "number": "bigint", **more}
    arrays = ", ".join(f"%({name}s)s::{kind}[]" for name, kind in kinds.items())
    return f"unnest({arrays}) AS given ({', '.join(kinds)})"


def arrays(rows: Collection[Sequence[Any]], *more: str) -> dict[str, Any]:
    """Return the parameters that `given` reads. Each row has its queue, id and number, and the columns `more`."""
    return {f"{name}s": [row[at] for row in rows] for at, name in enumerate(("queue", "id", "number", *more))}


SAME: Final = "job.queue = given.queue AND job.id = given.id AND job.number = given.number"
"""The condition that a row is given, and was not used again meanwhile. No condition beside it compares a queue or a
state with a constant by `=`: while PostgreSQL has no statistics, it takes these for 1 row of 200, and compares each row
of the queue with each one that is given."""

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

_REFUSE: Final = f"""
UPDATE evsched_job AS job SET state = 'dead', reason = given.reason, finished_at = clock_timestamp()
FROM {given(reason="text")}
WHERE {SAME} AND job.state NOT IN ('done', 'dead', 'expired', 'cancelled', 'dropped')
"""  # noqa: S608 - likewise

_ANY_WAITING: Final = "SELECT EXISTS (SELECT FROM evsched_job WHERE {waiting})"

_SNAPSHOT: Final = """
SELECT pg_snapshot_xmax(now)::text, ARRAY(SELECT pg_snapshot_xip(now)::text) FROM pg_current_snapshot() AS now
"""

_END: Final = f"""
UPDATE evsched_job AS job
SET state = given.state, reason = nullif(given.reason, ''), report = given.report,
    finished_at = CASE WHEN given.state <> 'open' THEN to_timestamp(given.at) END
FROM {given(state="text", reason="text", report="bigint", at="float8")}
WHERE {SAME} AND job.report < given.report AND job.state NOT IN ('done', 'cancelled', 'dropped')
"""  # noqa: S608 - likewise

_ENDED: Final = "SELECT id, number FROM evsched_job WHERE queue = %(queue)s AND id = ANY (%(ids)s) AND state <> 'open'"

_REVIVED: Final = f"""
UPDATE evsched_job AS job SET cancelled = false FROM {given()}
WHERE {SAME} AND job.cancelled AND job.state NOT IN ('open', 'done', 'cancelled', 'dropped')
"""  # noqa: S608 - likewise
"""A cancellation that came after the job had died is not for its revival. Sent apart, for few rows, since a trigger has
the relays take them again."""

SLICE: Final = 1000
"""Rows that are read at once by commands."""

_GIVE_WAY: Final = "SET LOCAL lock_timeout = '500ms'"
"""Less than the second after which PostgreSQL ends one of two transactions that wait for each other: that must not be
the program's, which changes several rows while a relay writes the ends of the same."""

_TRIES: Final = 10
"""How often ends are written while a program's transaction has changed a row and has not ended: for 5 s."""

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

STATES: Final = "SELECT state, count(*) FROM evsched_job GROUP BY state ORDER BY state"

_RECURRENCES: Final = """
SELECT count(*), count(*) FILTER (WHERE epoch = '' OR epoch <> %(epoch)s AND reason IS NULL), count(reason)
FROM evsched_recurrence
"""


class Row(NamedTuple):
    """Which row it is."""

    queue: str
    id: str
    number: int


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


async def fetch(
    connection: AsyncConnection, statement: str | bytes, words: Any = (), *, prepare: bool | None = None
) -> list[Any]:
    """Execute a statement, and return its rows."""
    text = statement.encode() if isinstance(statement, str) else statement
    return await (await connection.execute(text, words, prepare=prepare)).fetchall()


async def slices(connection: AsyncConnection, statement: str, words: dict[str, Any]) -> AsyncGenerator[list[Row]]:
    """Yield the rows of a statement, at most SLICE at a time, in the order of their queues and ids."""
    last = Row("", "", 0)
    while True:
        after = {"after_queue": last.queue, "after_id": last.id, "limit": SLICE}
        found = [Row(*row) for row in await fetch(connection, statement, words | after)]
        yield found
        if len(found) < SLICE:
            return
        last = found[-1]


async def other_epochs(connection: AsyncConnection, epoch: str) -> list[str]:
    """Return the epochs under which open rows were scheduled, except the present one; "" = not yet."""
    return [other for (other,) in await fetch(connection, _OTHER_EPOCHS, {"epoch": epoch})]


async def snapshot(connection: AsyncConnection) -> Snapshot:
    (row,) = await fetch(connection, _SNAPSHOT)
    return Snapshot(*row)


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
    rows = await fetch(connection, selection.statement(_CLAIM), words, prepare=False)
    found: dict[str, Claimed] = {}
    for queue, job_id, priority, group, due, number, revision, cancelled, size, payload in rows:
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
    if refused:
        rows = [(queue, one.id, one.number, one.reason) for one in refused]
        await connection.execute(_REFUSE.encode(), arrays(rows, "reason"))


async def any_waiting(connection: AsyncConnection, selection: Selection, others: Iterable[str]) -> bool:
    """Return whether rows wait that `claim` did not return, since other relays have locked them."""
    statement = selection.statement(_ANY_WAITING)
    for other in others:
        if await fetch(connection, statement, selection.words(other), prepare=False) == [(True,)]:
            return True
    return False


async def write_ends(connection: AsyncConnection, queue: str, reports: Iterable[Report]) -> int:
    """Write reports, and return how many rows changed. Entries that match no row are ignored."""
    last = {(one.id, one.row): one for one in reports if one.is_of_row and one.outcome in (*ENDED, _OPEN)}
    if not last:
        return 0
    found = [
        (queue, storable(job), int(row), one.outcome, storable(one.reason), one.order, (one.order >> 20) / 1000)
        for (job, row), one in last.items()
    ]
    words = arrays(found, "state", "reason", "report", "at")
    revived = arrays([row for row in found if row[3] == _OPEN])
    tries = 0
    while True:
        tries += 1
        try:
            async with connection.transaction():
                await connection.execute(_GIVE_WAY)
                if revived["ids"]:
                    await connection.execute(_REVIVED.encode(), revived)
                return (await connection.execute(_END.encode(), words)).rowcount
        except errors.LockNotAvailable:
            if tries == _TRIES:
                raise


async def ended(connection: AsyncConnection, queue: str, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return the ids and numbers of those rows, among some ids, whose jobs have ended."""
    return await fetch(connection, _ENDED, {"queue": queue, "ids": list(ids)}) if ids else []


async def backlog(connection: AsyncConnection, epoch: str | None, most: int | None) -> Backlog:
    """Return how many open rows were not scheduled in this epoch, counted up to `most`, and how long they wait.

    `epoch`: None = it is not known, so only rows count that were never scheduled. `most`: None = all.
    """
    words = {"epoch": epoch, "known": epoch not in (None, NO_EPOCH), "most": most}
    (row,) = await fetch(connection, _BACKLOG, words)
    return Backlog(*row)


async def recurrences(connection: AsyncConnection, epoch: str | None) -> tuple[int, int, int]:
    """Count the recurrences: all, waiting to be declared, and refused. `epoch` as in `backlog`."""
    return (await fetch(connection, _RECURRENCES, {"epoch": epoch}))[0]


async def queues(connection: AsyncConnection) -> list[str]:
    return [queue for (queue,) in await fetch(connection, _QUEUES)]


def storable(text: str) -> str:
    """Return a text that PostgreSQL stores: without NUL."""
    return text.replace("\x00", "\\x00")
