"""A relay's connection: it sets what it needs, whatever the role has by default, and collisions are no outage."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from evsched import events
from evsched.ledger.database import Database
from tests.support.recorder import Recorder

INSERT = "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, '{\"task\":\"t\"}', 'infinity')"
UPDATE = "UPDATE evsched_job SET critical = 1 WHERE id = %s"


def execute(url: str, statement: str, *words: object) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode(), words)


async def waits(connection: psycopg.AsyncConnection, other: psycopg.AsyncConnection) -> bool:
    """Return whether a connection waits for a lock."""
    asked = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
    ((waiting,),) = await (await connection.execute(asked, [other.info.backend_pid])).fetchall()
    return waiting


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_relay_whose_role_has_another_isolation_reads_committed_rows(ledger_url: str, isolation: str) -> None:
    execute(
        ledger_url, f"CREATE ROLE strict LOGIN; ALTER ROLE strict SET default_transaction_isolation = '{isolation}'"
    )
    try:
        strict = ledger_url.replace("evsched@", "strict@")
        database = Database(strict, "test", lambda _: None)
        cursor = await (await database.open()).execute("SHOW transaction_isolation")
        assert await cursor.fetchone() == ("read committed",)
        await database.close()
    finally:
        execute(ledger_url, "DROP ROLE strict")


async def test_a_deadlock_is_retried_and_not_reported(ledger_url: str, queue: str, recorder: Recorder) -> None:
    execute(ledger_url, INSERT, queue, "a")
    execute(ledger_url, INSERT, queue, "b")
    database = Database(ledger_url, "test", recorder, "SET deadlock_timeout = '1ms'")
    first = await database.open()
    done = 0
    async with await psycopg.AsyncConnection.connect(ledger_url) as other:
        # The other one waits for the row `a` when this one asks for `b`, and it does not look for deadlocks.
        await other.execute("SET deadlock_timeout = '1h'")
        await other.execute(UPDATE, ["b"])
        waiting: asyncio.Future[Any] | None = None
        async with database:
            async with first.transaction():
                await first.execute(UPDATE, ["a"])
                waiting = asyncio.ensure_future(other.execute(UPDATE, ["a"]))
                while not await waits(first, other):
                    pass
                await first.execute(UPDATE, ["b"])
            done += 1
        assert waiting is not None
        await waiting
        await other.commit()
    assert done == 0
    assert database.reason is None
    async with database:
        assert await database.open() is first
        await first.execute(UPDATE, ["b"])
        done += 1
    assert done == 1
    assert not recorder.of(events.LedgerDown)
    await database.close()


async def test_collisions_that_do_not_end_are_reported(ledger_url: str, recorder: Recorder) -> None:
    database = Database(ledger_url, "test", recorder)
    while not recorder.of(events.LedgerDown):
        async with database:
            raise psycopg.errors.SerializationFailure("could not serialize access")
    assert database.reason == "could not serialize access"
    async with database:
        await database.open()
    assert recorder.of(events.LedgerUp)
    await database.close()
