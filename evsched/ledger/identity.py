"""Who the database is, and which epoch its relays found last: the one row of `evsched_ledger`."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from psycopg import AsyncConnection

_READ: Final = "SELECT identity, epoch, checked FROM evsched_ledger"

_MAKE: Final = "INSERT INTO evsched_ledger DEFAULT VALUES ON CONFLICT DO NOTHING"

_FIND: Final = """
UPDATE evsched_ledger SET epoch = %(epoch)s, found = clock_timestamp() WHERE epoch = %(before)s AND epoch <> %(epoch)s
"""

_CHECKED: Final = "UPDATE evsched_ledger SET checked = epoch WHERE epoch = %s"


class Identity(Struct, frozen=True):
    """What the row says."""

    text: str
    """Random, made once; empty if no relay has run yet."""
    epoch: str
    """The last epoch that a relay found; empty = none has."""
    checked: str
    """The last epoch in which all jobs were compared with their rows (withdrawals.py)."""


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


async def note_checked(connection: AsyncConnection, epoch: str) -> None:
    """Note that the jobs of Redis were compared with their rows in this epoch, if it is still the last one."""
    await connection.execute(_CHECKED, [epoch])
