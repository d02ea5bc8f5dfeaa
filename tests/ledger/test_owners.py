"""A Redis belongs to the ledger of one database, and all relays of a database use the same Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from evsched import events, keys
from evsched.config import Config
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.conftest import Running
from tests.support.cli import Cli
from tests.support.postgres import Postgres


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


async def test_the_relay_of_a_second_database_is_refused_at_its_start(
    relaying: Running, queue: str, ledger_url: str, second_url: str, client: Any, own: EmbeddedRedis, tmp_path: Any
) -> None:
    async with relaying() as recorder:
        await recorder.wait(events.EpochFound)
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
        await recorder.wait(events.RowsScheduled)


async def test_a_relay_waits_when_redis_comes_to_belong_to_another_database(
    relaying: Running, queue: str, ledger_url: str, client: Any
) -> None:
    """As when all its data was lost, and a relay of the other database was the first to notice."""
    async with relaying() as recorder:
        await recorder.wait(events.EpochFound)
        insert(ledger_url, queue)
        await recorder.wait(events.RowsScheduled)
        while not (await asyncio.to_thread(client.info, "clients"))["blocked_clients"]:
            pass  # it does not wait for ends yet
        pipe = client.pipeline()
        pipe.flushall()
        pipe.set(keys.LEDGER, "other")
        pipe.execute()
        refused = await recorder.wait(events.CallRefused, lambda event: event.who == "relay")
        assert "another database" in refused.reason
        await recorder.wait(events.CallRefused, lambda event: event.who == "ends")
        assert not client.exists(keys.schedule(queue), keys.ends(queue))
        client.delete(keys.LEDGER)
        await recorder.wait(events.RowsScheduled, lambda event: event.again)


async def test_a_relay_waits_while_another_one_of_its_database_uses_another_redis(
    relaying: Running, queue: str, ledger_url: str, server: EmbeddedRedis, client: Any
) -> None:
    async with relaying() as first:
        await first.wait(events.EpochFound)
        async with relaying(url=server.url) as second:
            await second.wait(events.EpochFound)
            insert(ledger_url, queue)
            await second.wait(events.RowsScheduled)
            refused = await first.wait(events.CallRefused)
    assert "another Redis" in refused.reason
    assert not client.exists(keys.schedule(queue))
