"""A relay's connection overrides the defaults of its role, and collisions do not count as an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from evsched import process_events
from evsched.config import Config
from evsched.errors import CannotStart
from evsched.events import Events
from evsched.ledger.database import Database, migrate
from evsched.ledger.relay import Service
from evsched.ledger.row_audit import read_status
from evsched.runtime.loops import Runtime
from evsched.transport.senders import BatchingSender
from tests.ledger.conftest import Running
from tests.support.postgres import PgBouncer, find_pgbouncer
from tests.support.recorder import Recorder

INSERT = "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, '{\"task\":\"t\"}', 'infinity')"
UPDATE = "UPDATE evsched_job SET critical = 1 WHERE id = %s"


@pytest.fixture
def pooled(ledger_url: str) -> Generator[Callable[[str], str]]:
    """Return a function that starts a pooler in a mode, and returns the URL of the database through it."""
    if (program := find_pgbouncer()) is None:
        pytest.skip("PgBouncer is not installed (Debian: pgbouncer)")
    with ExitStack() as poolers:
        yield lambda mode: poolers.enter_context(PgBouncer(program, ledger_url, mode)).url


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
    assert not recorder.of(process_events.LedgerDown)
    await database.close()


async def test_collisions_that_do_not_end_are_reported(ledger_url: str, recorder: Recorder) -> None:
    database = Database(ledger_url, "test", recorder)
    while not recorder.of(process_events.LedgerDown):
        async with database:
            raise psycopg.errors.SerializationFailure("could not serialize access")
    assert database.reason == "could not serialize access"
    async with database:
        await database.open()
    assert recorder.of(process_events.LedgerUp)
    await database.close()


async def test_a_pooler_in_transaction_mode_is_refused_and_gets_no_settings(
    pooled: Callable[[str], str], config: Config, recorder: Recorder
) -> None:
    url, sender = pooled("transaction"), BatchingSender(config.url)
    service = Service(Runtime(replace(config, ledger_url=url), sender, Events(recorder).emit))
    starting = asyncio.ensure_future(service.run("Redis"))
    started = asyncio.ensure_future(recorder.wait(process_events.LedgerStarted))
    await asyncio.wait([starting, started], return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    started.cancel()
    with pytest.raises(CannotStart, match="pool_mode = session"):
        await starting
    await sender.close()
    with psycopg.connect(url, autocommit=True) as program:
        for name, value in (("synchronous_commit", "on"), ("lock_timeout", "0")):
            assert program.execute(f"SHOW {name}".encode()).fetchone() == (value,)
        assert program.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


async def test_commands_leave_no_settings_in_a_pooler(pooled: Callable[[str], str], config: Config) -> None:
    url = pooled("transaction")
    await migrate(url)
    await read_status(url, config.url)
    with psycopg.connect(url, autocommit=True) as program:
        assert program.execute("SHOW lock_timeout").fetchone() == ("0",)


async def test_relays_work_behind_a_pooler_in_session_mode(
    relaying: Running, pooled: Callable[[str], str], queue: str, ledger_url: str
) -> None:
    async with relaying(ledger_url=pooled("session")) as recorder:
        await recorder.wait(process_events.EpochFound)
        execute(ledger_url, INSERT, queue, "a")
        await recorder.wait(process_events.RowsScheduled)
