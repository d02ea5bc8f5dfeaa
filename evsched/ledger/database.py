"""A loop of the ledger, its connection to the database, how it waits while the database is down, and the migration.

`migrate` creates the tables of the ledger, or adds the parts that they lack.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Connection, conninfo

from evsched import process_events
from evsched.errors import CannotStart, ConfigError
from evsched.events import Emit
from evsched.ledger.rows import fetch
from evsched.ledger.tables import KEYS, OLDEST, PARTS, Part
from evsched.runtime.loops import Runtime, Wakeup
from evsched.runtime.reconnect import Reconnect
from evsched.transport.redis_errors import reconnect_delay

_CONNECTION: Final = {
    "application_name": "evsched ledger",
    "connect_timeout": 5,
    # A server that is gone without a word is noticed within 25 s.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""The parameters of each connection; those in the URL win."""

_MOST_REASONS: Final = 10
"""Reasons that are reported while the database does not serve."""

_COLLISIONS: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
"""Errors that say that another transaction was in the way: the same statements succeed when they are sent again."""

_MOST_COLLISIONS: Final = 5
"""Collisions in a row that are not reported."""

_SCHEME: Final = re.compile(r"^postgres(ql)?(\+\w+)?://")
_IS_PLAIN: Final = re.compile(r"^\w+ *=")
"""The other form that libpq takes: host=db dbname=shop."""
_IS_PORT: Final = re.compile(r"[0-9,]*")

_SESSION: Final = """
SET default_transaction_isolation = 'read committed';
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SET idle_in_transaction_session_timeout = '60s'; SET lock_timeout = '5s'
"""
"""The isolation, because relays read newly committed rows, whatever the role's default. The others so that
the server frees the rows of a relay soon whose machine is gone, or which was suspended; and so that a relay that waits
for a lock says so, instead of looking as if there was nothing to do."""

_TRANSACTION: Final = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'"
"""The same for one transaction. It leaves nothing behind, so a pooler may give the session to another program."""

_SESSION_OF: Final = "SELECT pg_backend_pid()"

_POOLED: Final = 5.0
"""Seconds for a statement that needs no time, while a pooler may have no server connection left for it."""


_FORM: Final = (
    "write postgresql://USER:PASSWORD@HOST:PORT/NAME, with the options of libpq after a `?`; in a password, "
    "percent-encode characters with a meaning in a URL: %2F for /, %23 for #, %3F for ?, %40 for @, %3A for :, "
    "%25 for %"
)


def check_url(url: str | None) -> str:
    """Return the URL of the database, as libpq takes it. SQLAlchemy's form, which names a driver, is accepted.

    Raises:
        ConfigError: it is missing, or it cannot be read; the message quotes nothing of it, as it may be secret.
    """
    if not url:
        raise ConfigError("the ledger needs a database: set EVSCHED_LEDGER_URL, or --ledger-url postgresql://HOST/NAME")
    if not _IS_PLAIN.match(url):
        url = _SCHEME.sub("postgresql://", url)
        if "://" in url and not url.startswith("postgresql://"):
            raise ConfigError(f"EVSCHED_LEDGER_URL is not the URL of a PostgreSQL database: {_FORM}")
    try:
        words = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(f"EVSCHED_LEDGER_URL cannot be read: {_FORM}") from None
    # libpq takes a part of a password that is not encoded for one of these, and would show it.
    places = str(words.get("host") or ""), str(words.get("dbname") or "")
    if any("@" in place for place in places) or not _IS_PORT.fullmatch(str(words.get("port") or "")):
        raise ConfigError(f"EVSCHED_LEDGER_URL cannot be read: {_FORM}")
    return url


async def connect(url: str) -> AsyncConnection:
    """Open a connection. Each statement is a transaction of its own, unless `connection.transaction()` begins one.

    Raises:
        psycopg.Error
    """
    words: dict[str, Any] = {**_CONNECTION, **conninfo.conninfo_to_dict(url)}
    return await AsyncConnection.connect(**words, autocommit=True)


def open_connection(url: str | None) -> Connection:
    """Open a connection that is not awaited, for a command that reads. Each statement is a transaction of its own.

    Raises:
        ConfigError, psycopg.Error
    """
    words: dict[str, Any] = {**_CONNECTION, **conninfo.conninfo_to_dict(check_url(url))}
    return Connection.connect(**words, autocommit=True)


@asynccontextmanager
async def transaction(url: str) -> AsyncGenerator[AsyncConnection]:
    """Open a connection for one transaction, as commands need it.

    Raises:
        psycopg.Error
    """
    async with await connect(url) as connection, connection.transaction():
        await connection.execute(_TRANSACTION)
        yield connection


async def check_sessions(url: str) -> None:
    """Check that a connection is one session of the server: loops hold locks in it, and listen.

    Behind a pooler in transaction mode, such as PgBouncer, another program gets the server's session as soon as a
    transaction has ended. A second connection with an open transaction shows that: it has the session of the first one
    meanwhile, or the first one has another.

    Raises:
        CannotStart: it is not.
        psycopg.Error
    """
    async with await connect(url) as first, await connect(url) as second:
        before = await fetch(first, _SESSION_OF)
        async with second.transaction():
            other = await fetch(second, _SESSION_OF)
            try:
                async with asyncio.timeout(_POOLED):
                    after = await fetch(first, _SESSION_OF)
            except TimeoutError:
                raise psycopg.OperationalError(
                    f"no answer within {_POOLED:g} s while another connection has a transaction open: this is "
                    "a connection pooler in transaction mode, or one with few connections, or the server is overloaded"
                ) from None
    if other == before or after != before:
        raise CannotStart(
            "EVSCHED_LEDGER_URL leads to a connection pooler in transaction mode, where notifications of new rows are "
            "lost and the relay's settings reach other programs: give the relay the URL of PostgreSQL itself, or of a "
            "pool in session mode (PgBouncer: pool_mode = session). Programs that insert rows may use the pooler"
        )


class Database:
    """The connection of one loop. Put `async with` around each pass that uses it.

    It reports each error of the database once while it lasts, backs off, and swallows it, as `runtime/reconnect.py`
    does for Redis. A new connection is opened after each error. A collision with another transaction is not an outage:
    the next pass follows on the same connection, and only several in a row are reported.
    """

    def __init__(self, url: str, who: str, emit: Emit, setup: str = "") -> None:
        self._url = url
        self._who = who
        self._emit = emit
        self._setup = setup
        """A statement for each new connection."""
        self._connection: AsyncConnection | None = None
        self._down_since: float | None = None
        self._failures = 0
        self._collisions = 0
        """In a row."""
        self._reported = set[str]()
        """The reasons that were reported since the database was last known to serve."""
        self.reason: str | None = None
        """Why the last pass failed; None = it succeeded."""

    async def open(self) -> AsyncConnection:
        """Return the connection, which is opened if it is not open.

        Raises:
            psycopg.Error
        """
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._url)
            await self._connection.execute(_SESSION)
            if self._setup:
                await self._connection.execute(self._setup.encode())
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None:
            self.passed()
        elif isinstance(error, _COLLISIONS) and self._collisions < _MOST_COLLISIONS:
            self._collisions += 1
            await asyncio.sleep(reconnect_delay(self._collisions))
            return True
        elif isinstance(error, psycopg.Error):
            await self.close()
            await asyncio.sleep(self._failed(error))
            return True
        return False

    def _failed(self, error: psycopg.Error) -> float:
        self._failures += 1
        self.reason = explain(error)
        if self._down_since is None:
            self._down_since = time.monotonic()
        # The first reason is often that the connection was closed, and a later one why it cannot be opened again.
        if self.reason not in self._reported and len(self._reported) < _MOST_REASONS:
            self._reported.add(self.reason)
            self._emit(process_events.LedgerDown(who=self._who, reason=self.reason))
        return reconnect_delay(self._failures)

    def passed(self) -> None:
        """Note that the database serves."""
        if self._down_since is not None:
            self._emit(process_events.LedgerUp(who=self._who, seconds=time.monotonic() - self._down_since))
        self._failures, self._collisions, self._down_since, self.reason = 0, 0, None, None
        self._reported.clear()


class LedgerLoop(ABC):
    """A loop that works with the database and Redis. A failure of either is reported, and ends the pass alone.

    `setup`: a statement for each new connection.
    """

    def __init__(self, runtime: Runtime, url: str, who: str, setup: str = "") -> None:
        self._runtime = runtime
        self.who = who
        self.database = Database(url, who, runtime.emit, setup)
        self.reconnect = Reconnect(who, runtime.emit)
        self._wakeup = Wakeup()
        self.pulse = self.reconnect.pulse

    def ring(self) -> None:
        """Begin a pass now, or after the one that is under way."""
        self._wakeup.ring()

    async def run(self) -> None:
        """Make passes for ever."""
        try:
            while True:
                rest = 0.0  # after a failure, `_reconnect` or `database` has waited
                async with self.reconnect, self.database:
                    rest = await self.step()
                self.pulse.expect(rest)
                await self._wakeup.sleep(time.monotonic() + rest)
        finally:
            await self.close()

    @abstractmethod
    async def step(self) -> float:
        """Make one pass; return the seconds until the next one.

        Raises:
            StoreDown, StoreRefused, psycopg.Error: the next pass does what this one has not done.
        """

    async def close(self) -> None:
        await self.database.close()


def explain(error: psycopg.Error) -> str:
    """Return an error's message on one line, and what to do where PostgreSQL does not say it."""
    # Only the message of a failed statement: the text after it quotes the statement.
    text = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        text += ": run `evsched ledger migrate`"
    elif isinstance(error, psycopg.errors.LockNotAvailable):
        text += ": another session has locked a table or a row for over 5 s; pg_locks and pg_stat_activity say which"
    return text


def check_server(connection: AsyncConnection) -> str:
    """Return which server answers, such as "PostgreSQL 15.4".

    Raises:
        CannotStart: it is too old.
    """
    version = connection.info.server_version
    if version < OLDEST:
        raise CannotStart(f"PostgreSQL {version // 10000} is too old: the ledger needs {OLDEST // 10000} or newer")
    return f"PostgreSQL {version // 10000}.{version % 10000}"


_LOCK: Final = 0x65767363
"""The advisory lock of a migration: two at once would collide in the catalog."""

_PATIENCE: Final = "SET LOCAL lock_timeout = '2s'"
"""For the locks of the tables. While one is waited for, all who come later wait too, such as the programs' inserts."""

_COLUMNS: Final = (
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)


async def migrate(url: str | None) -> None:
    """Bring the tables up to date, in one transaction. Nothing is locked if nothing is missing.

    Raises:
        ConfigError: no database is set.
        CannotStart: it cannot be reached, is too old, or refuses; or another transaction uses a table that must
            change, or a table of that name is not one of the ledger.
    """
    part = None
    try:
        async with await connect(check_url(url)) as connection:
            check_server(connection)
            if not await _missing(connection, PARTS):
                return
            await _check_owner(connection)
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = 0")  # another migration takes as long as it takes
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                await connection.execute(_PATIENCE)
                for part in PARTS:
                    if await _missing(connection, [part]):
                        await connection.execute(part.make.encode())
    except psycopg.errors.LockNotAvailable:
        raise CannotStart(
            f"the database of the ledger: the {part.name if part else 'tables'} cannot be made while another "
            "transaction uses the table: nothing was changed; run it again when that has ended, see pg_stat_activity"
        ) from None
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None


async def _check_owner(connection: AsyncConnection) -> None:
    """Check that the relation of this name is a table with its key, not one of another program."""
    for table, key in KEYS.items():
        columns = {name for (name,) in await fetch(connection, _COLUMNS, [table])}
        if columns and (missing := [column for column in key.split(", ") if column not in columns]):
            raise CannotStart(
                f"the database of the ledger: {table} is there and has no column {' and '.join(missing)}, so it is of "
                "another program: nothing was changed; rename it, or give the ledger another database or schema"
            )


async def _missing(connection: AsyncConnection, parts: Sequence[Part]) -> bool:
    return await fetch(connection, f"SELECT {' AND '.join(part.found for part in parts)}") != [(True,)]
