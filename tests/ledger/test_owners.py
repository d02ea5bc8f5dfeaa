"""A Redis belongs to the ledger of one database, and all relays of a database use the same Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from evsched import keys, process_events
from evsched.config import Config
from evsched.ledger import epoch, relay
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.conftest import Running
from tests.support.cli import Cli
from tests.support.postgres import Postgres
from tests.support.recorder import Recorder


@pytest.fixture
def config(own: EmbeddedRedis, queue: str, ledger_url: str) -> Config:
    return Config(url=own.url, queues=(queue,), ledger_url=ledger_url)


@pytest.fixture
def second_url(postgres: Postgres) -> Generator[str]:
    """Another database with a ledger."""
    with postgres.ledger() as url:
        yield url


def insert(url: str, queue: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, payload, due) VALUES (%s, '{\"task\":\"t\"}', 'infinity')", [queue]
        )


@pytest.mark.extra
async def test_the_relay_of_a_second_database_is_refused_at_its_start(
    relaying: Running, queue: str, ledger_url: str, second_url: str, client: Any, own: EmbeddedRedis, tmp_path: Any
) -> None:
    async with relaying() as recorder:
        await recorder.wait(process_events.EpochFound)
    insert(second_url, queue)
    cli = Cli(own.url, tmp_path)
    cli.environment["EVSCHED_LEDGER_URL"] = second_url
    done = cli.process("ledger", "run")
    assert done.returncode != 0
    assert "belongs to the ledger of another database" in done.stderr
    assert "redis-cli DEL" in done.stderr
    assert "Redis is of another ledger" in cli.run("ledger", "status").stdout
    assert cli.json("ledger", "status")["foreign"]
    assert "another database" in cli.run("doctor", "--queue", queue).stdout
    assert not client.exists(keys.schedule(queue))
    client.delete(keys.LEDGER)
    async with relaying(ledger_url=second_url) as recorder:
        await recorder.wait(process_events.RowsScheduled)


async def test_a_relay_waits_when_redis_comes_to_belong_to_another_database(
    relaying: Running, queue: str, ledger_url: str, client: Any
) -> None:
    """As when all its data was lost, and a relay of the other database was the first to notice."""
    async with relaying() as recorder:
        await recorder.wait(process_events.EpochFound)
        insert(ledger_url, queue)
        await recorder.wait(process_events.RowsScheduled)
        while not (await asyncio.to_thread(client.info, "clients"))["blocked_clients"]:
            pass  # it does not wait for ends yet
        pipe = client.pipeline()
        pipe.flushall()
        pipe.set(keys.LEDGER, "other")
        pipe.execute()
        refused = await recorder.wait(process_events.CallRefused, lambda event: event.who == "relay")
        assert "another database" in refused.reason
        await recorder.wait(process_events.CallRefused, lambda event: event.who == "ends")
        assert not client.exists(keys.schedule(queue), keys.ends(queue))
        client.delete(keys.LEDGER)
        await recorder.wait(process_events.RowsScheduled, lambda event: event.again)


async def test_relay_waits_while_another_of_its_database_uses_another_redis(
    relaying: Running, queue: str, ledger_url: str, server: EmbeddedRedis, client: Any
) -> None:
    async with relaying() as first:
        await first.wait(process_events.EpochFound)
        async with relaying(url=server.url) as second:
            await second.wait(process_events.EpochFound)
            insert(ledger_url, queue)
            await second.wait(process_events.RowsScheduled)
            waits = await first.wait(process_events.RelayWaits)
            with psycopg.connect(ledger_url) as connection:
                sessions = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'evsched ledger'"
                ).fetchall()
            assert not client.exists(keys.schedule(queue))
    assert "another Redis" in waits.reason
    assert any(waits.reason.endswith(f": {pid}") for (pid,) in sessions)


async def test_relays_resume_when_relays_on_another_redis_are_gone(
    relaying: Running, queue: str, ledger_url: str, server: EmbeddedRedis, client: Any, monkeypatch: Any
) -> None:
    """Three use one Redis, and two that start later another one; one of these leaves later than the other."""
    monkeypatch.setattr(epoch, "_GONE", 0.0)
    monkeypatch.setattr(relay, "_LOOK", 0.05)
    right = Recorder()
    async with relaying(right), relaying(right), relaying(right):
        await right.wait(process_events.EpochFound, count=3)
        async with relaying(url=server.url) as wrong:
            await wrong.wait(process_events.EpochFound)
            async with relaying(url=server.url) as later:
                await later.wait(process_events.EpochFound)
            insert(ledger_url, queue)
            await wrong.wait(process_events.RowsScheduled)
            await right.wait(process_events.RelayWaits, count=3)
            assert not client.exists(keys.schedule(queue))
        insert(ledger_url, queue)
        await right.until(lambda: sum(one.count for one in right.of(process_events.RowsScheduled)) == 2)
    assert client.zcard(keys.schedule(queue)) == 2


async def test_relay_without_its_redis_does_not_block_other_relays(
    relaying: Running, queue: str, ledger_url: str, server: EmbeddedRedis, own: EmbeddedRedis, monkeypatch: Any
) -> None:
    monkeypatch.setattr(epoch, "_GONE", 0.0)
    monkeypatch.setattr(relay, "_LOOK", 0.05)
    async with relaying(url=server.url) as right:
        await right.wait(process_events.EpochFound)
        async with relaying() as wrong:
            await wrong.wait(process_events.EpochFound)
            insert(ledger_url, queue)
            await right.wait(process_events.RelayWaits)
            own.stop()
            await right.wait(process_events.RowsScheduled)


async def test_redis_of_vanished_relays_keeps_its_claim_for_a_while(
    relaying: Running, queue: str, ledger_url: str, server: EmbeddedRedis, monkeypatch: Any
) -> None:
    """After a restart of PostgreSQL, a relay that waited may be the first that is back."""
    monkeypatch.setattr(relay, "_LOOK", 0.05)
    monkeypatch.setattr(epoch, "_GONE", 1e6)
    looked = "SELECT max(query_start) FROM pg_stat_activity WHERE query LIKE '%FROM pg_locks%' AND state = 'idle'"
    async with relaying(url=server.url) as wrong:
        await wrong.wait(process_events.EpochFound)
        async with relaying() as right:
            found = await right.wait(process_events.EpochFound)
            insert(ledger_url, queue)
            await wrong.wait(process_events.RelayWaits)
        with psycopg.connect(ledger_url, autocommit=True) as connection:
            for _ in range(3):
                before = connection.execute(looked).fetchone()
                while await asyncio.to_thread(lambda: connection.execute(looked).fetchone()) == before:
                    pass
            assert connection.execute("SELECT epoch FROM evsched_ledger").fetchone() == (found.epoch,)
        insert(ledger_url, queue)
        async with relaying() as right:
            await right.wait(process_events.RowsScheduled)
        assert (len(wrong.of(process_events.EpochFound)), wrong.of(process_events.RowsScheduled)) == (1, [])
