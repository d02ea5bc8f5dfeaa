"""For `evsched.testing`: the jobs that a test enqueues in its transactions. It takes the place of the relays.

It needs no database of its own. It looks for the rows where they were written: by the same connection, as long as that
is in a transaction, so that a test may roll back at its end all that it has done; else by a new one to the same
database, which sees committed rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched.client.client import SyncClient
from evsched.client.transaction import Statement, is_sqlalchemy
from evsched.errors import StoreRefused
from evsched.store.relay_calls import RowJob, read_ends
from evsched.store.store import Store

_ROWS: Final = """
SELECT CAST(json_build_object('number', number, 'queue', queue, 'id', id, 'payload', CAST(payload AS text),
    'priority', priority, 'grp', grp, 'due', CAST(extract(epoch FROM due) AS text), 'state', state,
    'revision', revision, 'cancelled', cancelled) AS text) AS found
FROM evsched_job WHERE number = ANY (CAST(string_to_array(CAST({numbers} AS text), ',') AS bigint[]))
"""

_END: Final = """
UPDATE evsched_job SET state = CAST({state} AS text), reason = nullif(CAST({reason} AS text), ''),
    finished_at = CASE WHEN CAST({state} AS text) <> 'open' THEN to_timestamp(CAST({now} AS float8)) END
WHERE number = CAST({number} AS bigint) AND state IN ('open', 'dead', 'expired')
RETURNING number AS written
"""

_FOR_GOOD: Final = ("done", "cancelled", "dropped")
"""The states of a row in which its job is not open again: a dead one can be revived."""

_RELAY: Final = "test"

_MOST: Final = 500
"""Reports of one call."""

_AT_ONCE: Final = 0.001
"""Seconds: 0 would wait for ever."""


class _Row(Struct, frozen=True):
    """A row as it is seen."""

    number: int
    queue: str
    id: str
    payload: str
    priority: int | None
    grp: str | None
    due: str
    state: str
    revision: int
    cancelled: bool

    def job(self) -> RowJob:
        due = float(self.due)
        return RowJob(self.id, self.payload.encode(), self.priority, self.grp, due, self.number, self.revision)


_read: Final = msgspec.json.Decoder(_Row).decode


class _Database:
    """A database of the test, to which a connection of its own is opened for each statement."""

    def __init__(self, connection: Any) -> None:
        self.key: Hashable
        self._psycopg: dict[str, Any] | None = None
        self._engine: Any = None
        self._is_async = hasattr(connection, "run_sync")
        if is_sqlalchemy(connection):
            bind = connection.get_bind() if hasattr(connection, "get_bind") else connection.engine
            engine = getattr(bind, "engine", bind)
            self._engine = self.key = getattr(engine, "sync_engine", engine)
        else:
            info = connection.info
            self._psycopg = {**info.get_parameters(), "password": info.password}
            self.key = tuple(sorted(self._psycopg.items()))

    async def execute(self, statement: Statement) -> list[Any]:
        """Execute a statement, and commit."""
        if self._psycopg is not None:
            import psycopg  # whose connection it was

            with psycopg.connect(**self._psycopg, autocommit=True) as plain:
                return statement.by(plain)
        if self._is_async:
            from sqlalchemy.ext.asyncio import AsyncEngine  # likewise

            async with AsyncEngine(self._engine).connect() as connection:
                return await connection.run_sync(_apart, statement)
        with self._engine.connect() as connection:
            return _apart(connection, statement)


def _apart(connection: Any, statement: Statement) -> list[Any]:
    """Execute and commit, and do not give the connection back to its pool, which may be closed already."""
    with connection.begin():
        found = statement.by(connection)
    connection.invalidate()
    return found


class _TestConnection:
    """A connection of the test."""

    def __init__(self, connection: Any) -> None:
        self.own: Final = connection

    @property
    def is_lasting(self) -> bool:
        """Whether it is always used: Django opens it again, and of an unknown one nothing else is known."""
        return not is_sqlalchemy(self.own) and not hasattr(getattr(self.own, "info", None), "get_parameters")

    async def execute(self, statement: Statement) -> list[Any] | None:
        """Execute a statement in the transaction of the connection; None: it is in none."""
        if is_sqlalchemy(self.own):
            if not hasattr(self.own, "run_sync"):
                return _by_sqlalchemy(self.own, statement)
            return None if getattr(self.own, "closed", False) else await self.own.run_sync(_by_sqlalchemy, statement)
        if hasattr(self.own, "inc_thread_sharing"):  # Django's, which refuses to work in the thread of an event loop
            self.own.inc_thread_sharing()
            try:
                return await asyncio.to_thread(statement.by, self.own)
            finally:
                self.own.dec_thread_sharing()
        if self.is_lasting or not (self.own.closed or self.own.info.transaction_status == 0):  # idle
            return await statement.by_any(self.own)
        return None


def _by_sqlalchemy(connection: Any, statement: Statement) -> list[Any] | None:
    """Execute by a session or a connection, if it is in a transaction; or by the connection that a session is bound to.

    A session that is bound to a connection, as in tests, takes part in the transaction of that.
    """
    if hasattr(connection, "get_bind"):
        bind = connection.get_bind()
        connection = connection.connection() if connection.in_transaction() else bind
    if not hasattr(connection, "in_transaction") or connection.closed or not connection.in_transaction():
        return None
    return statement.by(connection)


class WrittenRows:
    """The rows that a test has written, and their outcomes."""

    def __init__(self, sender: SyncClient, store: Callable[[str], Store], now: Callable[[], float]) -> None:
        self._sender = sender
        self._store = store
        self._now = now
        self._connections = list[tuple[_TestConnection, set[int]]]()
        """The connections that may be in a transaction, each with the numbers of rows that it has written."""
        self._databases: dict[Hashable, tuple[_Database, set[int]]] = {}
        """Each with the numbers of rows that were written by connections that are no longer in a transaction."""
        self._of_connection: dict[int, _Database] = {}
        self._scheduled: dict[int, _Row] = {}
        """By number, as they were when Redis got them."""
        self._followed = set[str]()

    def note(self, connection: Any, rows: Iterable[int | None]) -> None:
        """Note which rows a connection has written."""
        numbers = {row for row in rows if row is not None}
        for known, written in self._connections:
            if known.own is connection:
                written |= numbers
                return
        found = _TestConnection(connection)
        if not found.is_lasting:
            self._of_connection[id(connection)] = _Database(connection)
        self._connections.append((found, numbers))

    async def relay(self) -> None:
        """Bring Redis and the rows to agree, as the relays do."""
        await self._write_ends()
        for item in list(self._connections):
            connection, numbers = item
            if not numbers:
                continue
            texts = await connection.execute(_look_for(numbers))
            if texts is not None:
                await self._take(texts, numbers, connection.execute)
                continue
            database = self._of_connection.pop(id(connection.own))
            self._connections.remove(item)
            self._databases.setdefault(database.key, (database, set()))[1].update(numbers)
        for database, numbers in self._databases.values():
            if numbers:
                texts = await database.execute(_look_for(numbers))
                await self._take(texts, numbers, database.execute)
                numbers &= {_read(text).number for text in texts}  # the others were rolled back
        await self._write_ends()  # of jobs that were just cancelled

    async def _take(self, texts: Sequence[str], numbers: set[int], execute: Callable[[Statement], Any]) -> None:
        rows = {row.number: row for row in map(_read, texts)}
        for number, row in rows.items():
            if row.state in _FOR_GOOD:
                numbers.discard(number)
            elif row.state == "open" and self._scheduled.get(number) != row:
                await self._schedule(row, execute)
        for number in numbers - rows.keys() & self._scheduled.keys():  # rolled back since
            gone = self._scheduled.pop(number)
            self._sender.send(self._store(gone.queue).cancel_rows([(gone.id, number)]))

    async def _schedule(self, row: _Row, execute: Callable[[Statement], Any]) -> None:
        store = self._store(row.queue)
        if row.queue not in self._followed:
            self._followed.add(row.queue)
            try:
                self._sender.send(store.follow_ends())
            except StoreRefused as error:
                if error.kind != "busygroup":
                    raise
        self._scheduled[row.number] = row
        if row.cancelled:
            self._sender.send(store.cancel_rows([(row.id, row.number)]))
        elif reason := self._sender.send(store.relay([row.job()])).get(row.id):
            await execute(self._end(row.number, "dead", reason))

    async def _write_ends(self) -> None:
        for queue in self._followed:
            while reports := self._sender.send(read_ends([queue], _RELAY, _MOST, _AT_ONCE)).get(queue):
                for report in reports:
                    self._scheduled.pop(int(report.row), None)
                    for place, numbers in (*self._connections, *self._databases.values()):
                        if int(report.row) in numbers:
                            await place.execute(self._end(int(report.row), report.outcome, report.reason))
                self._sender.send(self._store(queue).settle(reports))

    def _end(self, number: int, state: str, reason: str) -> Statement:
        return Statement(_END, {"number": number, "state": state, "reason": reason, "now": self._now()})


def _look_for(numbers: set[int]) -> Statement:
    return Statement(_ROWS, {"numbers": ",".join(map(str, sorted(numbers)))})
