"""Creates the tables of the ledger, or adds what they lack."""

from __future__ import annotations

from typing import Final

import psycopg

from evsched.errors import CannotStart
from evsched.ledger.database import check_server, check_url, connect, explain
from evsched.ledger.tables import STATEMENTS

_LOCK: Final = 0x65767363
"""The advisory lock of a migration: two at once would collide in the catalog."""


async def migrate(url: str | None) -> None:
    """Bring the tables up to date, in one transaction.

    Raises:
        ConfigError: no database is set.
        CannotStart: it cannot be reached, is too old, or refuses.
    """
    try:
        async with await connect(check_url(url)) as connection:
            check_server(connection)
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                for statement in STATEMENTS:
                    await connection.execute(statement.encode())
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None
