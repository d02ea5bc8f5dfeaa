"""Which relays are connected, and which Redis each of them serves.

Each relay says so by advisory locks of its session, which it shares with the others. PostgreSQL drops them when the
session ends, so a relay that is gone leaves nothing behind that others would wait for.
"""

from __future__ import annotations

import time
import zlib
from typing import Final

from msgspec import Struct
from psycopg import AsyncConnection

from evsched import events
from evsched.events import Emit

_CLASS: Final = 0x65767265
"""The first key of these locks. The second is 0, of a relay that is connected, or stands for an epoch."""

CONNECTED: Final = f"SELECT pg_advisory_lock_shared({_CLASS}, 0)"
"""Says that a relay is connected."""

_SERVES: Final = "SELECT pg_advisory_lock_shared(%s, %s)"
_SERVES_NO_MORE: Final = "SELECT pg_advisory_unlock_shared(%s, %s)"

_READ: Final = """
SELECT objid::bigint, pid FROM pg_locks
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
        """Return how many Redises, or states of Redis's data, they serve."""
        return len(self.of_epochs)

    def serving(self, epoch: str) -> list[int]:
        """Return those that serve the Redis that has this epoch."""
        return self.of_epochs.get(_number(epoch), [])


class Presence:
    """What one relay says of itself, and whether it may work while the table has the epoch of another Redis."""

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
            self._emit(events.RelayWaits(reason=self.waits))
        return False

    def works(self) -> None:
        """Note that the table has the epoch of this relay's Redis."""
        self._gone_since = self.waits = None


async def read_present(connection: AsyncConnection) -> Present:
    """Return which relays are connected."""
    relays, of_epochs = list[int](), dict[int, list[int]]()
    for number, pid in await (await connection.execute(_READ, [_CLASS])).fetchall():
        (of_epochs.setdefault(number, []) if number else relays).append(pid)
    return Present(relays, of_epochs)


def _number(epoch: str) -> int:
    """Return 32 bits that stand for an epoch, and are not 0."""
    return zlib.crc32(epoch.encode()) or 1


def _key(epoch: str) -> int:
    """Return the same as PostgreSQL takes it: a signed number."""
    number = _number(epoch)
    return number - (1 << 32) if number >= 1 << 31 else number
