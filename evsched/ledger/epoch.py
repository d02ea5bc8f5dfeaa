"""The epoch: which data Redis has, and which relays serve it. Rows scheduled in another epoch are scheduled again.

The epoch has two parts. The first is a random key, written by the first relay that finds none, so it changes after a
FLUSHALL and on an empty server. The second is the server's `master_replid`, which names one history of writes. A
server makes a new one when it starts and when it becomes a primary: after a restart, a failover or REPLICAOF NO ONE
it has the key and may still lack the last writes. (`run_id` does not change when a running server is given other
data.) A server also makes a new one when its first replica connects, and when it had no replica for
`repl-backlog-ttl`: then the relays look once at rows that Redis has.

REPLICAOF leaves connections open but ends blocked calls with an error, so `ends.py` notices it at once. Each pass of
`relay.py` reads the epoch, so a change that no call met is noticed after `safety_cap`.

The second part belongs to the primary that serves the relays: behind Sentinel each server has its own. In a cluster
each primary has one for its slots, so one epoch could not stand for all; the ledger refuses to start there.

A Redis belongs to the ledger of one database, the first whose relay finds it: two ledgers would take each other's
ends, and mistake each other's jobs with equal ids for their own. A second key has the identity of that database. The
one row of `evsched_ledger` has the identity, and the epoch that its relays found last.

Each relay shows by advisory locks of its session which Redis it serves. PostgreSQL drops them with the session, so a
relay that died leaves nothing behind.
"""

from __future__ import annotations

import secrets
import time
import zlib
from typing import Final

from msgspec import Struct
from psycopg import AsyncConnection

from evsched import keys, process_events
from evsched.errors import CannotStart, StoreRefused
from evsched.events import Emit
from evsched.ledger.database import Database, check_server, check_sessions
from evsched.runtime.loops import Runtime
from evsched.runtime.reconnect import Reconnect
from evsched.store.relay_calls import own_key
from evsched.store.server import info
from evsched.transport.senders import BatchingSender

_READ: Final = "SELECT identity, epoch, checked FROM evsched_ledger"

_MAKE: Final = "INSERT INTO evsched_ledger DEFAULT VALUES ON CONFLICT DO NOTHING"

_FIND: Final = """
UPDATE evsched_ledger SET epoch = %(epoch)s, found = clock_timestamp() WHERE epoch = %(before)s AND epoch <> %(epoch)s
"""


class Identity(Struct, frozen=True):
    """The content of the row."""

    text: str
    """Random, made once; empty if no relay has run yet."""
    epoch: str
    """The last epoch that a relay found; empty = none has."""
    checked: str
    """The last epoch in which all jobs were compared with their rows (ends.py)."""


async def read_identity(connection: AsyncConnection) -> Identity:
    """Return who the database is; write nothing."""
    found = await (await connection.execute(_READ)).fetchone()
    return Identity(*found) if found else Identity("", "", "")


async def make_identity(connection: AsyncConnection) -> Identity:
    """Return who the database is, which is decided now if it was not before."""
    found = await read_identity(connection)
    if not found.text:
        await connection.execute(_MAKE)
        found = await read_identity(connection)
    return found


async def note_epoch(connection: AsyncConnection, epoch: str, before: str) -> None:
    """Note that an epoch was found, and when, unless another relay has done so. `before`: the epoch in the row."""
    await connection.execute(_FIND, {"epoch": epoch, "before": before})


OTHER: Final = "other-ledger"
"""The kind of the StoreRefused that says that Redis belongs to the ledger of another database."""


async def read_epoch(sender: BatchingSender, identity: str) -> str:
    """Return the present epoch. A Redis that belongs to no ledger belongs to that of `identity` from now on.

    Raises:
        StoreDown, StoreRefused: also if Redis belongs to the ledger of another database.
    """
    return await _read_epoch(sender, identity, identity, secrets.token_hex(4))


async def known_epoch(sender: BatchingSender, identity: str) -> str:
    """Return the present epoch if a relay has made its key, else an empty string; write nothing. Raises as above."""
    return await _read_epoch(sender, identity, None, None)


async def _read_epoch(sender: BatchingSender, identity: str, mine: str | None, fresh: str | None) -> str:
    calls = own_key(keys.LEDGER, mine), own_key(keys.EPOCH, fresh), info("replication")
    owner, key, server = await sender.send_all(calls)
    if owner not in ("", identity):
        raise StoreRefused(
            "this Redis belongs to the ledger of another database, and relays of two would take each other's jobs: "
            "give each ledger a Redis, or a database of Redis, of its own. If the other ledger is used no longer, stop "
            f"its relays, then: redis-cli DEL '{keys.LEDGER}'",
            kind=OTHER,
        )
    if not key:
        return ""
    history = server.get("master_replid", "")
    if not history:
        raise StoreRefused("INFO replication has no master_replid, so a change of Redis's data could not be noticed")
    return f"{key}-{history[:12]}"


async def find_database(runtime: Runtime, url: str, start: Database) -> str:
    """Wait until the database and Redis serve; return which database it is. `start`: a connection for that.

    Raises:
        CannotStart: PostgreSQL is too old, or behind a pooler in transaction mode; or Redis belongs to the ledger of
            another database.
    """
    reconnect, found = Reconnect("the start", runtime.emit), ""
    try:
        while not found:
            async with reconnect, start:
                await check_sessions(url)  # before `open` makes settings
                connection = await start.open()
                version = check_server(connection)
                try:
                    await read_epoch(runtime.sender, (await make_identity(connection)).text)
                except StoreRefused as error:
                    if error.kind == OTHER:
                        raise CannotStart(str(error)) from None
                    raise
                found = version
    finally:
        await start.close()
    return found


_CLASS: Final = 0x65767265
"""The first key of these locks. The second is 0, of a relay that is connected, or stands for an epoch."""

CONNECTED: Final = f"SELECT pg_advisory_lock_shared({_CLASS}, 0)"
"""Says that a relay is connected."""

_SERVES: Final = "SELECT pg_advisory_lock_shared(%s, %s)"
_SERVES_NO_MORE: Final = "SELECT pg_advisory_unlock_shared(%s, %s)"

_READ_PRESENT: Final = """
SELECT objid::bigint::bit(32)::integer, pid FROM pg_locks
WHERE locktype = 'advisory' AND classid = %s::oid AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY pid
"""


_GONE: Final = 10.0
"""Seconds for which no relay must have served the Redis of the table's epoch, until it is given up. Relays that lost
their connections, as by a restart of PostgreSQL, are back by then."""


class Present(Struct, frozen=True):
    """The sessions of relays, by their `pid` in pg_stat_activity."""

    relays: list[int]
    of_epochs: dict[int, list[int]]
    """By the number that stands for an epoch."""

    @property
    def redises(self) -> int:
        return len(self.of_epochs)

    def serving(self, epoch: str) -> list[int]:
        return self.of_epochs.get(_key(epoch), [])


class Presence:
    """The entry of one relay, and whether it may work while the table has the epoch of another Redis."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._connection: AsyncConnection | None = None
        self._epoch: str | None = None
        self._gone_since: float | None = None
        """Since when nobody serves the Redis of the table's epoch, by the monotonic clock; None = somebody does."""
        self.waits: str | None = None
        """Which relays this one waits for; None = for none."""

    async def serve(self, connection: AsyncConnection, epoch: str | None) -> None:
        """Say which epoch this relay's Redis has; None = it does not answer, so that the others do not wait for it."""
        held = self._epoch if connection is self._connection else None
        if held == epoch:
            return
        if held is not None:
            await connection.execute(_SERVES_NO_MORE, [_CLASS, _key(held)])
        self._connection, self._epoch = connection, None
        if epoch is not None:
            await connection.execute(_SERVES, [_CLASS, _key(epoch)])
        self._epoch = epoch

    async def is_free(self, connection: AsyncConnection, noted: str) -> bool:
        """Return whether no relay has served the Redis of the table's epoch for a while; report one that does."""
        sessions = (await read_present(connection)).serving(noted)
        if not sessions:
            self._gone_since = self._gone_since or time.monotonic()
            return time.monotonic() - self._gone_since >= _GONE
        self._gone_since = None
        if self.waits is None:
            self.waits = (
                f"another relay of this database uses another Redis, with the epoch {noted}; this one has "
                f"{self._epoch}. Jobs would run in both, so this relay waits: give all relays of a database the same "
                f"Redis. The others have these pids in pg_stat_activity: {', '.join(map(str, sessions))}"
            )
            self._emit(process_events.RelayWaits(reason=self.waits))
        return False

    def works(self) -> None:
        """Note that the table has the epoch of this relay's Redis."""
        self._gone_since = self.waits = None


async def read_present(connection: AsyncConnection) -> Present:
    """Return which relays are connected."""
    relays, of_epochs = list[int](), dict[int, list[int]]()
    for number, pid in await (await connection.execute(_READ_PRESENT, [_CLASS])).fetchall():
        (of_epochs.setdefault(number, []) if number else relays).append(pid)
    return Present(relays, of_epochs)


def _key(epoch: str) -> int:
    """Return a number for an epoch, as PostgreSQL takes the second key of a lock: 32 bits, signed, and not 0."""
    return int.from_bytes(zlib.crc32(epoch.encode()).to_bytes(4, "big"), "big", signed=True) or 1
