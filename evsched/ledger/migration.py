"""Creates the tables of the ledger, or adds what they lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import AsyncConnection

from evsched.errors import CannotStart
from evsched.ledger.database import check_server, check_url, connect, explain
from evsched.ledger.tables import PARTS, TABLES, Part

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
    """Check that what has the name of a table is a table with its key, not one of another program."""
    for table in TABLES:
        cursor = await connection.execute(_COLUMNS, [table.name])
        columns = {name for (name,) in await cursor.fetchall()}
        if columns and (missing := [column for column in table.key.split(", ") if column not in columns]):
            raise CannotStart(
                f"the database of the ledger: {table.name} is there and has no column {' and '.join(missing)}, so it "
                "is of another program: nothing was changed; rename it, or give the ledger another database or schema"
            )


async def _missing(connection: AsyncConnection, parts: Sequence[Part]) -> bool:
    cursor = await connection.execute(f"SELECT {' AND '.join(part.found for part in parts)}".encode())
    return (await cursor.fetchall())[0][0] is not True
