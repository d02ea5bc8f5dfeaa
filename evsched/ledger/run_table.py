"""The table `evsched_run`: its partitions, one for each day, and how ends are written into it exactly once.

A row is known by its queue, its end, and its place in the history of Redis. If Redis has lost its last moments, other
ends get the places of lost ones, and they ended later. So whatever is read once more changes nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct
from psycopg import AsyncConnection, errors

from evsched import process_events
from evsched.events import Emit
from evsched.ledger.database import LedgerLoop
from evsched.ledger.rows import fetch, storable
from evsched.runtime.loops import Runtime
from evsched.store.history_calls import HistoryEntry, PastJob

DAY: Final = 86400.0

_AHEAD: Final = 2
"""Days whose partitions are made ahead: longer than any outage of the writer in which another program may insert."""

_FUTURE: Final = 7
"""Days by which Redis's clock may be ahead of the database's."""

_REFRESH: Final = 3600.0
"""Seconds between two looks at the partitions."""

_LATEST: Final = 1e11
"""Unix seconds of the last moment that a job has, as in lua/_prelude.lua."""

_TODAY: Final = "SELECT floor(extract(epoch FROM now()) / 86400)::integer"

_PARTITIONS: Final = """
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = to_regclass('evsched_run')
"""

_NAME: Final = re.compile(r"evsched_run_(\d{4})(\d\d)(\d\d)")

_BEGIN: Final = date(1970, 1, 1)

_MAKE: Final = """
CREATE TABLE {name} (LIKE evsched_run INCLUDING DEFAULTS);
ALTER TABLE evsched_run ATTACH PARTITION {name} FOR VALUES FROM ('{day}+00') TO ('{next}+00')
"""
"""Attached, because to create it as a partition would wait for all who read the table, and have others wait."""

_INSERT: Final = """
WITH written AS (
    INSERT INTO evsched_run (
        queue, ended, entry, place, id, task, outcome, due, started, attempt, worker, grp, enqueued_by, tags, error,
        location
    )
    SELECT queue, to_timestamp(ended), entry, place, id, task, outcome, to_timestamp(due), to_timestamp(started),
        attempt, worker, grp, enqueued_by, tags, error, location
    FROM json_to_recordset(%s::json) AS one (
        queue text, ended float8, entry bigint, place integer, id text, task text, outcome text, due float8,
        started float8, attempt bigint, worker text, grp text, enqueued_by text, tags text[], error text, location text
    )
    ON CONFLICT DO NOTHING
    RETURNING queue
)
SELECT queue, count(*) FROM written GROUP BY queue
"""

_NOTE: Final = """
INSERT INTO evsched_run_position (queue, entry, digest) SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])
ON CONFLICT (queue) DO UPDATE SET entry = excluded.entry, digest = excluded.digest
"""

_POSITIONS: Final = "SELECT queue, entry, digest FROM evsched_run_position WHERE queue = ANY (%s)"


class Position(Struct, frozen=True):
    """The last entry of a queue's history that is written, and the hash of its content."""

    entry: str
    digest: str


async def positions(connection: AsyncConnection, queues: Iterable[str]) -> dict[str, Position]:
    """Return the positions of these queues; a queue of which nothing is written has none."""
    found = await fetch(connection, _POSITIONS, [list(queues)])
    return {queue: Position(entry, digest) for queue, entry, digest in found}


class RunTable:
    """Writes rows, and makes the partitions for them. `keep`: seconds for which they are kept."""

    def __init__(self, keep: float, emit: Emit) -> None:
        self._keep = keep
        self._emit = emit
        self._today = 0
        """Days since 1970, by the database's clock."""
        self._days = set[int]()
        """The days that have a partition."""
        self._refresh_at = -math.inf

    async def write(self, connection: AsyncConnection, found: Mapping[str, list[HistoryEntry]]) -> None:
        """Write entries of the histories of queues, and the positions behind them, in one transaction."""
        await self._refresh(connection)
        rows = list[dict[str, Any]]()
        for queue, entries in found.items():
            ends = [(entry.number, place, job) for entry in entries for place, job in enumerate(reversed(entry.jobs))]
            # An end that is too old would make a partition that is dropped at once.
            known = [end for end in ends if end[0] < 1 << 63 and _day(end[2]) <= self._today + _FUTURE]
            if len(known) < len(ends):
                self._emit(process_events.RunsLeftOut(queue=queue, count=len(ends) - len(known)))
            oldest = first_day(self._today, self._keep)
            rows += [_row(*end) for end in known if _day(end[2]) >= oldest]
        await self._make(connection, {int(row["ended"] // DAY) for row in rows})
        last = [(queue, entries[-1].id, entries[-1].digest) for queue, entries in found.items()]
        async with connection.transaction():
            written = await fetch(connection, _INSERT, [msgspec.json.encode(rows).decode()])
            await connection.execute(_NOTE, [list(column) for column in zip(*last, strict=True)])
        for queue, count in written:
            self._emit(process_events.RunsWritten(queue=queue, count=count))

    async def _refresh(self, connection: AsyncConnection) -> None:
        """Make the partitions of the next days, from time to time."""
        if time.monotonic() < self._refresh_at:
            return
        [(self._today,)] = await fetch(connection, _TODAY)
        self._days = await days(connection)
        await self._make(connection, range(self._today, self._today + _AHEAD + 1))
        self._refresh_at = time.monotonic() + _REFRESH

    async def _make(self, connection: AsyncConnection, days: Iterable[int]) -> None:
        for day in sorted({*days} - self._days):
            made = _MAKE.format(name=partition(day), day=_date(day), next=_date(day + 1))
            async with connection.transaction():
                await connection.execute(made.encode())
            self._days.add(day)

    def forget(self) -> None:
        """Look at the partitions again: another process may have made or dropped some."""
        self._refresh_at = -math.inf


def first_day(today: int, keep: float) -> int:
    """Return the first day that is kept."""
    return today - math.ceil(keep / DAY)


async def days(connection: AsyncConnection) -> set[int]:
    """Return the days that have partitions, in days since 1970."""
    names = [_NAME.fullmatch(name) for (name,) in await fetch(connection, _PARTITIONS)]
    return {(date(*map(int, name.groups())) - _BEGIN).days for name in names if name}


def partition(day: int) -> str:
    return f"evsched_run_{_date(day):%Y%m%d}"


def _date(day: int) -> date:
    return _BEGIN + timedelta(days=day)


def _day(job: PastJob) -> float:
    return job.ended // DAY


def _row(entry: int, place: int, job: PastJob) -> dict[str, Any]:
    return {
        "queue": job.queue,
        "ended": job.ended,
        "entry": entry,
        "place": place,
        "id": storable(job.id),
        "task": storable(job.task),
        "outcome": storable(job.outcome),
        "due": _moment(job.due),
        "started": _moment(job.started),
        "attempt": max(-1 << 63, min(job.attempt, (1 << 63) - 1)),
        "worker": storable(job.worker),
        "grp": storable(job.group),
        "enqueued_by": storable(job.by),
        "tags": [storable(tag) for tag in job.tags],
        "error": storable(job.error),
        "location": storable(job.location),
    }


def _moment(moment: float | None) -> float | None:
    """Return a moment that PostgreSQL can store; None for one that no job has."""
    return moment if moment is not None and 0 <= moment < _LATEST else None


_HOUR: Final = 3600.0

_LOCK: Final = "SELECT pg_try_advisory_lock(1702258285, 0)"
"""Held by the process that prunes, until its session ends. The number is "evzm"."""

_BLOCKS: Final = "SELECT pg_relation_size('evsched_job') / current_setting('block_size')::integer"

_SLICE: Final = 100
"""Blocks of `evsched_job` that one statement reads: some thousand rows at most."""

_DELETE: Final = """
DELETE FROM evsched_job
WHERE ctid >= %s::tid AND ctid < %s::tid AND state IN ('done', 'cancelled', 'dropped')
    AND finished_at < now() - %s * interval '1 second'
"""
"""In the order of the blocks, because no index finds these rows: an index would cost each end of a job."""

_DROP: Final = "SET LOCAL lock_timeout = '2s'; DROP TABLE {name}"
"""While this waits, all who come later wait too."""


class Pruning(LedgerLoop):
    """Drops the days of the history that are too old, hourly, and deletes rows of ended jobs, daily.

    Rows of jobs that are dead or expired stay: they may be revived.
    """

    def __init__(self, runtime: Runtime, url: str, keep: float) -> None:
        super().__init__(runtime, url, "pruning")
        self._keep = keep
        self._prunes_on: AsyncConnection | None = None
        """The connection that holds the lock."""
        self._jobs_at = -math.inf

    async def step(self) -> float:
        """Prune, unless another process does it."""
        connection = await self.database.open()
        if connection is not self._prunes_on and await fetch(connection, _LOCK) != [(True,)]:
            return _HOUR
        self._prunes_on = connection
        dropped, deleted = await self._drop_days(connection), 0
        if self._jobs_at <= time.monotonic():
            deleted = await self._delete_jobs(connection)
            self._jobs_at = time.monotonic() + DAY
        if dropped or deleted:
            self._runtime.emit(process_events.LedgerPruned(days=dropped, jobs=deleted))
        return _HOUR

    async def _drop_days(self, connection: AsyncConnection) -> int:
        [(today,)] = await fetch(connection, _TODAY)
        old = sorted(day for day in await days(connection) if day < first_day(today, self._keep))
        for count, day in enumerate(old):
            try:
                async with connection.transaction():
                    await connection.execute(_DROP.format(name=partition(day)).encode())
            except errors.LockNotAvailable:
                self._runtime.emit(process_events.PruningWaits(partition=partition(day)))
                return count
        return len(old)

    async def _delete_jobs(self, connection: AsyncConnection) -> int:
        [(blocks,)] = await fetch(connection, _BLOCKS)
        count = 0
        for block in range(0, blocks, _SLICE):
            self.pulse.expect()
            words = [f"({block},0)", f"({block + _SLICE},0)", self._keep]
            count += (await connection.execute(_DELETE.encode(), words)).rowcount
        return count
