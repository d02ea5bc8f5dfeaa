"""Writes to the ledger within a transaction of the program: they take effect if and only if it commits.

The program's connection does it, by whichever library it is: psycopg, SQLAlchemy, Django, or another with cursors as
in PEP 249. They are recognised by their methods, so none of them is imported here before the program has.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from evsched.client.option_values import Unique
from evsched.errors import BadArguments, ConfigError, JobExists, JobMissing
from evsched.jobs.job import OnConflict, encode
from evsched.store.client_calls import New

_NOW: Final = "coalesce(to_timestamp(CAST({now} AS float8)), clock_timestamp())"

_USABLE: Final = """(
    (evsched_job.state IN ('done', 'cancelled', 'dropped')
        OR (CAST({is_unique} AS boolean) AND evsched_job.state IN ('dead', 'expired')))
    AND evsched_job.created
        <= coalesce(to_timestamp(CAST({now} AS float8)), now()) - CAST({within} AS float8) * interval '1 second'
)"""

_INSERT: Final = f"""
WITH given AS (
    SELECT * FROM json_to_recordset(CAST({{jobs}} AS json)) AS one (
        place integer, id text, payload text, priority smallint, grp text, due text, delay float8
    )
), taken AS (
    SELECT FROM given WHERE (
        SELECT NOT {_USABLE} FROM evsched_job
        WHERE evsched_job.queue = CAST({{queue}} AS text) AND evsched_job.id = given.id
    )
)
INSERT INTO evsched_job (queue, id, payload, priority, grp, due, critical, created)
SELECT CAST({{queue}} AS text), id, CAST(payload AS json), priority, grp,
    coalesce(to_timestamp(CAST(due AS float8)), {_NOW} + delay * interval '1 second'),
    CAST({{critical}} AS smallint), coalesce(to_timestamp(CAST({{now}} AS float8)), now())
FROM given WHERE CAST({{keep}} AS boolean) OR NOT EXISTS (SELECT FROM taken)
ORDER BY place
ON CONFLICT (queue, id) DO UPDATE SET
    payload = excluded.payload, priority = excluded.priority, grp = excluded.grp, due = excluded.due,
    critical = excluded.critical, state = 'open', reason = NULL, number = DEFAULT, epoch = '', report = 0,
    created = excluded.created, scheduled_at = NULL, finished_at = NULL, cancelled = false
WHERE {_USABLE}
RETURNING id || ' ' || number AS written
"""  # noqa: S608 - all parts are constants
"""A row whose job has ended is used again for the next job of its id, with another number. One text has all jobs, so
that each library sends them in one statement. Each id is looked up by itself: a join would read the whole queue if
PostgreSQL does not know yet how long the table is."""

_OPEN: Final = "queue = CAST({queue} AS text) AND id = CAST({id} AS text) AND state = 'open' AND NOT cancelled"

_CANCEL: Final = f"UPDATE evsched_job SET cancelled = true WHERE {_OPEN} RETURNING number AS written"  # noqa: S608 - likewise

_RESCHEDULE: Final = f"""
UPDATE evsched_job
SET due = coalesce(to_timestamp(CAST({{due}} AS float8)), {_NOW} + CAST({{delay}} AS float8) * interval '1 second')
WHERE {_OPEN}
RETURNING CAST(extract(epoch FROM due) AS float8) AS written
"""  # noqa: S608 - likewise
"""A trigger of the table counts the change, and has the relays take the row once more."""


_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""In JSON: after an even number of backslashes."""

EARLIEST: Final = -2e11
LATEST: Final = 9e12
"""Unix seconds between which PostgreSQL stores every time: from the year 4368 before Christ on, for 290,000 years."""

_SQLITE: Final = ("sqlite3", "aiosqlite.core")


class Statement(Struct, frozen=True):
    """A statement, with the names of its parameters in braces, and their values."""

    text: str
    words: dict[str, Any]

    def by(self, connection: Any) -> list[Any]:
        """Execute it by a connection whose methods are not awaited; return the first column of each row."""
        return [_first(row) for row in self._execute(connection)]

    async def by_any(self, connection: Any) -> list[Any]:
        """Execute it by any connection; return the first column of each row. Raises as `_execute`."""
        found = self._execute(connection)
        return [_first(row) for row in (await found if inspect.isawaitable(found) else found)]

    def _execute(self, connection: Any) -> Any:
        """Return the rows that the statement returns, or an awaitable of them.

        Raises:
            ConfigError: the connection is of an unknown library, or not to PostgreSQL.
        """
        if (other := _other_database(connection)) is not None:
            raise ConfigError(f"the connection is one of {other}: the ledger needs PostgreSQL")
        if is_sqlalchemy(connection):
            return _through_sqlalchemy(connection, self._with(":{}"), self.words)
        # asyncpg's connections have cursors, but of another kind: as in PEP 249, there is a `commit` too.
        if hasattr(connection, "cursor") and hasattr(connection, "commit"):
            return _through_cursor(connection, self._with("%({})s"), self.words)
        raise ConfigError(
            f"{type(connection).__name__} is not a connection that the ledger can use: give it one of psycopg, "
            "SQLAlchemy or Django, or write the row by SQL"
        )

    def _with(self, placeholder: str) -> str:
        return self.text.format(**{name: placeholder.format(name) for name in self.words})


class Insertion(Struct, frozen=True):
    """Jobs to insert, and the options of their `enqueue_in`. `now`: a test's clock; None = PostgreSQL's."""

    queue: str
    jobs: Sequence[New]
    critical: int | None
    on_conflict: OnConflict | None
    unique: Unique | None
    now: float | None = None

    def statement(self) -> Statement:
        """Return the statement that inserts the jobs.

        Raises:
            ConfigError: `on_conflict` is "replace", or a time is one that PostgreSQL does not store.
            BadArguments: PostgreSQL does not store a job: after its error, the transaction could not go on.
            JobExists: two of the jobs have the same id.
        """
        if self.on_conflict == "replace":
            raise ConfigError(
                "on_conflict: a transaction cannot replace a job of the ledger: use job.reschedule_in, or "
                "job.cancel_in and another id"
            )
        jobs = {job.id: job for job in reversed(self.jobs)}
        if len(jobs) < len(self.jobs) and self.on_conflict != "keep":
            raise JobExists(f"two of the {len(self.jobs)} jobs have the same id: the ledger has one row for each id")
        for job in jobs.values():
            _check_time(job.due, job.delay)
            if _NUL.search(job.payload) is not None or "\x00" in (job.group or ""):
                raise BadArguments(
                    f"{job.id}: an argument, or the group, has the character NUL, which PostgreSQL does not store"
                )
        rows = [_row(place, job) for place, job in enumerate(reversed(jobs.values()))]
        words = {
            "queue": self.queue,
            "jobs": encode(rows).decode(),
            "critical": self.critical or 0,
            "keep": self.on_conflict == "keep",
            "is_unique": self.unique is not None,
            "within": 0.0 if self.unique is None else self.unique.seconds,
            "now": self.now,
        }
        return Statement(_INSERT, words)

    def read(self, written: Iterable[Any]) -> list[int | None]:
        """Return the numbers of the jobs' rows, None if another job is kept, or if rows are of an unknown kind.

        Raises:
            JobExists: a row was not written. The transaction can go on.
        """
        texts = list(written)
        if len(texts) < len(self.jobs) and self.on_conflict != "keep":
            which = f"a row {self.jobs[0].id}" if len(self.jobs) == 1 else f"rows of {len(self.jobs)} ids, and one"
            raise JobExists(
                f"the ledger has {which} of queue {self.queue} that cannot be used again: its job has not "
                "ended, or is dead or expired, or it is too new for `unique`; its column `state` says which"
            )
        numbers = dict(text.split(" ") for text in texts if isinstance(text, str))
        return [int(numbers[job.id]) if job.id in numbers else None for job in self.jobs]


class Change(Struct, frozen=True):
    """A change of the row of a job. `now`: as in `Insertion`."""

    queue: str
    id: str
    now: float | None = None

    def cancellation(self) -> Statement:
        return Statement(_CANCEL, {"queue": self.queue, "id": self.id})

    def reschedule(self, due: float | None, delay: float) -> Statement:
        """Return the statement that gives the job another due.

        Raises:
            ConfigError: PostgreSQL does not store the time.
        """
        _check_time(due, delay)
        words = {"queue": self.queue, "id": self.id, "due": due, "delay": float(delay), "now": self.now}
        return Statement(_RESCHEDULE, words)

    def read(self, written: Sequence[Any]) -> Any:
        """Return the rows that the statement wrote.

        Raises:
            JobMissing: there is no such row. The transaction can go on.
        """
        if not written:
            raise JobMissing(
                f"the ledger has no open row {self.id} of queue {self.queue}: its job has ended or was cancelled, or "
                "it was not enqueued by enqueue_in; then cancel or reschedule it directly, after the commit"
            )
        return written[0]


def without_loop(connection: Any) -> Any:
    """Return a connection whose methods are not awaited.

    Raises:
        ConfigError: they are.
    """
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise ConfigError(f"{type(connection).__name__} is for an event loop: await the method without `_sync`")
    return connection


def is_sqlalchemy(connection: Any) -> bool:
    return hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql")


def _row(place: int, job: New) -> dict[str, Any]:
    return {
        "place": place,
        "id": job.id,
        "payload": job.payload.decode(),
        "priority": job.priority,
        "grp": job.group,
        "due": None if job.due is None else repr(float(job.due)),
        "delay": float(job.delay),
    }


def _check_time(due: float | None, delay: float) -> None:
    if due is not None and math.isfinite(due) and not EARLIEST < due < LATEST:
        raise ConfigError(f"due: PostgreSQL does not store the time {due:g}: give inf for never")
    if delay > LATEST / 2:
        raise ConfigError(f"delay: PostgreSQL stores no time in {delay:g} s: give due=inf for never")


def _other_database(connection: Any) -> str | None:
    """Return the name of the database that a connection is for, if it is known not to be PostgreSQL."""
    bind: Any = connection.get_bind() if hasattr(connection, "get_bind") else connection
    name = getattr(getattr(bind, "dialect", None), "name", None) or getattr(bind, "vendor", None)
    if name is None and type(connection).__module__ in _SQLITE:
        name = "sqlite"
    return None if name in (None, "postgresql") else str(name)


def _first(row: Any) -> Any:
    """Return the one column of a row, or None: the program may have its connection return rows of any kind."""
    if isinstance(row, str | int | float):
        return row
    try:
        return next(iter(row.values() if hasattr(row, "values") else row))
    except (TypeError, StopIteration):
        return next(iter(getattr(row, "__dict__", {}).values()), None)


def _through_sqlalchemy(connection: Any, statement: str, words: dict[str, Any]) -> Any:
    """Execute by a session or a connection of SQLAlchemy."""
    from sqlalchemy import text  # whose connection it is

    async def rows(executing: Awaitable[Any]) -> Any:
        return (await executing).all()

    done = connection.execute(text(statement), words)
    return rows(done) if inspect.isawaitable(done) else done.all()


def _through_cursor(connection: Any, statement: str, words: dict[str, Any]) -> Any:
    """Execute by a connection that has cursors: psycopg's, Django's, and others."""
    cursor = connection.cursor()

    async def rows(executing: Awaitable[Any]) -> Any:
        await executing
        found = await cursor.fetchall()
        await cursor.close()
        return found

    done = cursor.execute(statement, words)
    if inspect.isawaitable(done):
        return rows(done)
    found = cursor.fetchall()
    cursor.close()
    return found
