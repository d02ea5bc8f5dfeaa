"""Inserts a job into the ledger within a transaction of the program: the job exists if and only if that commits.

The program's connection does it, by whichever library it is: psycopg, SQLAlchemy, Django, or another with cursors as
in PEP 249. They are recognised by what they can do, so none of them is imported here before the program has.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable
from typing import Any, Final

from msgspec import Struct

from evsched.client.unique import Unique
from evsched.errors import BadArguments, ConfigError, JobExists
from evsched.jobs.job import OnConflict
from evsched.store.clients import New

_INSERT: Final = """
INSERT INTO evsched_job (queue, id, payload, priority, grp, due, critical)
VALUES (
    {queue}, {id}, CAST({payload} AS json), CAST({priority} AS smallint), CAST({grp} AS text),
    coalesce(
        to_timestamp(CAST({due} AS float8)), clock_timestamp() + CAST({delay} AS float8) * interval '1 second'
    ),
    CAST({critical} AS smallint)
)
ON CONFLICT (queue, id) DO UPDATE SET
    payload = excluded.payload, priority = excluded.priority, grp = excluded.grp, due = excluded.due,
    critical = excluded.critical, state = 'open', reason = NULL, number = DEFAULT, epoch = '', report = 0,
    created = excluded.created, scheduled_at = NULL, finished_at = NULL
WHERE (evsched_job.state IN ('done', 'cancelled', 'dropped') OR (CAST({is_unique} AS boolean)
        AND evsched_job.state IN ('dead', 'expired')))
    AND evsched_job.created <= now() - CAST({within} AS float8) * interval '1 second'
RETURNING id, number
"""
"""A row whose job has ended is used again for the next job of its id, with another number."""


_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""In JSON: after an even number of backslashes."""

_EARLIEST: Final = -2e11
_LATEST: Final = 9e12
"""Unix seconds between which PostgreSQL stores every time: from the year 4368 before Christ on, for 290,000 years."""

_SQLITE: Final = ("sqlite3", "aiosqlite.core")


class Insertion(Struct, frozen=True):
    """A job to insert, and what its `enqueue_in` was told."""

    queue: str
    job: New
    critical: int | None
    on_conflict: OnConflict | None
    unique: Unique | None

    def by(self, connection: Any) -> None:
        """Insert it by a connection whose methods are not awaited.

        Raises:
            ConfigError: they are; or see `_execute`.
            JobExists: a job of that id has not ended. The transaction can go on.
        """
        if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
            raise ConfigError(f"{type(connection).__name__} is for an event loop: `await` enqueue_in instead")
        self._check(self._execute(connection))

    async def by_any(self, connection: Any) -> int | None:
        """Insert it by any connection; return the number of its row, None if another is kept. Raises as `by`."""
        found = self._execute(connection)
        row = await found if inspect.isawaitable(found) else found
        self._check(row)
        return _number_in(row)

    def _check(self, row: Any) -> None:
        if row is None and self.on_conflict != "keep":
            raise JobExists(
                f"the ledger has a row {self.job.id} of queue {self.queue} that cannot be used again: its job has not "
                "ended, or is dead or expired, or it is too new for `unique`; its column `state` says which"
            )

    def _execute(self, connection: Any) -> Any:
        """Return the row that the statement returns, None if there is none; or an awaitable of it.

        Raises:
            ConfigError: the connection is none that is known here, `on_conflict` is "replace", or the time is one
                that PostgreSQL does not store.
            BadArguments: PostgreSQL does not store the job: after its error, the transaction could not go on.
        """
        if self.on_conflict == "replace":
            raise ConfigError("on_conflict: a transaction cannot replace a job of the ledger: cancel the first one")
        due = self.job.due
        if due is not None and math.isfinite(due) and not _EARLIEST < due < _LATEST:
            raise ConfigError(f"due: PostgreSQL does not store the time {due:g}: give inf for never")
        if self.job.delay > _LATEST / 2:
            raise ConfigError(f"delay: PostgreSQL stores no time in {self.job.delay:g} s: give due=inf for never")
        if _has_nul(self.job):
            raise BadArguments(
                f"{self.job.id}: an argument, or the group, has the character NUL, which PostgreSQL does not store"
            )
        if (other := _other_database(connection)) is not None:
            raise ConfigError(f"the connection is one of {other}: the ledger needs PostgreSQL")
        if hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql"):
            return _through_sqlalchemy(connection, self._words())
        # asyncpg's connections have cursors, but of another kind: as in PEP 249, there is a `commit` too.
        if hasattr(connection, "cursor") and hasattr(connection, "commit"):
            return _through_cursor(connection, self._words())
        raise ConfigError(
            f"{type(connection).__name__} is no connection that enqueue_in knows: give it one of psycopg, SQLAlchemy "
            "or Django, or insert the row by SQL"
        )

    def _words(self) -> dict[str, Any]:
        job = self.job
        return {
            "queue": self.queue,
            "id": job.id,
            "payload": job.payload.decode(),
            "priority": job.priority,
            "grp": job.group,
            "due": job.due,
            "delay": float(job.delay),
            "critical": self.critical or 0,
            "is_unique": self.unique is not None,
            "within": 0.0 if self.unique is None else self.unique.seconds,
        }


def _has_nul(job: New) -> bool:
    return _NUL.search(job.payload) is not None or "\x00" in (job.group or "")


def _other_database(connection: Any) -> str | None:
    """Return the name of the database that a connection is for, if it is known not to be PostgreSQL."""
    bind: Any = connection.get_bind() if hasattr(connection, "get_bind") else connection
    name = getattr(getattr(bind, "dialect", None), "name", None) or getattr(bind, "vendor", None)
    if name is None and type(connection).__module__ in _SQLITE:
        name = "sqlite"
    return None if name in (None, "postgresql") else str(name)


def _number_in(row: Any) -> int | None:
    """Return the number in a row, or None: the program may have its connection return rows of any kind."""
    try:
        values: Any = list(row.values() if hasattr(row, "values") else row)
        return int(values[1]) if not isinstance(values[1], str) else None
    except (TypeError, ValueError, LookupError):
        return None


def _statement(placeholder: str, words: dict[str, Any]) -> str:
    return _INSERT.format(**{name: placeholder.format(name) for name in words})


def _through_sqlalchemy(connection: Any, words: dict[str, Any]) -> Any:
    """Insert by a session or a connection of SQLAlchemy."""
    from sqlalchemy import text  # whose connection it is

    async def first(executing: Awaitable[Any]) -> Any:
        return (await executing).first()

    done = connection.execute(text(_statement(":{}", words)), words)
    return first(done) if inspect.isawaitable(done) else done.first()


def _through_cursor(connection: Any, words: dict[str, Any]) -> Any:
    """Insert by a connection that has cursors: psycopg's, Django's, and others."""
    cursor = connection.cursor()

    async def first(executing: Awaitable[Any]) -> Any:
        await executing
        row = await cursor.fetchone()
        await cursor.close()
        return row

    done = cursor.execute(_statement("%({})s", words), words)
    if inspect.isawaitable(done):
        return first(done)
    row = cursor.fetchone()
    cursor.close()
    return row
