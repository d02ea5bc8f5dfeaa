"""Old snapshots, which make PostgreSQL keep dead index entries, and long open transactions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import psycopg
import pytest
from msgspec.structs import replace

from evsched.config import Config
from evsched.events import Events
from evsched.ledger import rows
from evsched.ledger.database import connect
from evsched.ledger.relay import Relay
from evsched.ledger.rows import Selection
from evsched.runtime.loops import Runtime
from evsched.transport.senders import BatchingSender
from tests.ledger.test_losses import insert, scheduled
from tests.support.recorder import Recorder


class Stepping(Protocol):
    async def __call__(self, critical_only: int = 0) -> Relay: ...


async def blocks(url: str, selection: Selection) -> int:
    """Return how many blocks PostgreSQL reads to see whether rows wait."""
    async with await connect(url) as connection:
        read = selection.statement("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT FROM evsched_job WHERE {waiting}")
        cursor = await connection.execute(read, selection.words(""), prepare=False)
        (((found,),),) = await cursor.fetchall()
        return found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_search_for_new_rows_does_not_read_ended_rows(ledger_url: str, queue: str, analyzed: bool) -> None:
    """With an old snapshot, the index of all open rows has an entry for each of them."""
    with psycopg.connect(ledger_url) as old, psycopg.connect(ledger_url, autocommit=True) as program:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        insert(ledger_url, queue, 3000)
        program.execute("UPDATE evsched_job SET epoch = 'E'")
        program.execute("UPDATE evsched_job SET state = 'done'")
        if analyzed:
            program.execute("ANALYZE evsched_job")
        async with await connect(ledger_url) as connection:
            seen = await rows.snapshot(connection)
        insert(ledger_url, queue, 1, prefix="new")
        every = await blocks(ledger_url, Selection("E", 0, [], []))
        assert await blocks(ledger_url, Selection("E", 0, [], [], seen)) < 20 < every


@pytest.fixture
async def stepping(config: Config, recorder: Recorder) -> AsyncGenerator[Stepping]:
    """Return a function that makes a relay and has it look once. It looks again only when the test calls `step`."""
    assert config.ledger_url
    url, sender, relays = config.ledger_url, BatchingSender(config.url), list[Relay]()

    async def first_look(critical_only: int = 0) -> Relay:
        runtime = Runtime(replace(config, critical_only=critical_only), sender, Events(recorder).emit)
        relays.append(relay := Relay(runtime, url))
        await relay.step()
        return relay

    yield first_look
    for relay in relays:
        await relay.database.close()
    await sender.close()


async def test_a_row_whose_transaction_was_open_during_later_looks_is_scheduled(
    stepping: Stepping, queue: str, ledger_url: str, recorder: Recorder
) -> None:
    statement = "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, '{\"task\":\"t\"}', 'infinity')"
    relay = await stepping()
    with psycopg.connect(ledger_url) as slow:
        slow.execute("SAVEPOINT a")
        slow.execute(statement, [queue, "slow"])
        for n in range(1, 4):
            insert(ledger_url, queue, 1, prefix=f"quick{n}-")
            await relay.step()
            assert scheduled(recorder) == n
    await relay.step()
    assert scheduled(recorder) == 4


async def test_row_reopened_with_sql_is_scheduled_at_once(
    stepping: Stepping, queue: str, ledger_url: str, recorder: Recorder
) -> None:
    """As docs/ledger.md says for rows that were refused."""
    relay = await stepping()
    insert(ledger_url, queue, 2)
    await relay.step()
    with psycopg.connect(ledger_url, autocommit=True) as program:
        program.execute("UPDATE evsched_job SET state = 'dead', reason = 'x'")
        insert(ledger_url, queue, 1, prefix="other")
        await relay.step()
        assert scheduled(recorder) == 3
        program.execute("UPDATE evsched_job SET state = 'open', reason = NULL, epoch = '' WHERE state = 'dead'")
    await relay.step()
    assert scheduled(recorder) == 5


async def test_a_critical_row_is_found_behind_many_others(
    stepping: Stepping, queue: str, ledger_url: str, recorder: Recorder
) -> None:
    relay = await stepping(critical_only=1)
    with psycopg.connect(ledger_url) as program:
        program.execute(
            "INSERT INTO evsched_job (queue, id, payload, due, critical) SELECT %s, 'c' || n, '{\"task\":\"t\"}', "
            "'infinity', n / 6000 FROM generate_series(1, 6000) AS n",
            [queue],
        )
    await relay.step()
    assert scheduled(recorder) == 1
