"""A row that Redis refuses blocks no other: it is dead if the refusal is certain, else set aside for a while."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from evsched import process_events
from evsched.config import Config
from evsched.ledger import delivery
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.conftest import Running
from tests.support.recorder import Recorder

MEGABYTE = 1 << 20


@pytest.fixture
def config(own: EmbeddedRedis, queue: str, ledger_url: str) -> Config:
    return Config(url=own.url, queues=(queue,), ledger_url=ledger_url, payload_cap=8 * MEGABYTE)


def execute(url: str, statement: str, *words: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), words)
        return cursor.fetchall() if cursor.description else []


def insert(url: str, queue: str, job_id: str, size: int = 1, critical: int = 0) -> None:
    payload = json.dumps({"task": "t", "args": ["x" * size]})
    statement = "INSERT INTO evsched_job (queue, id, payload, critical, due) VALUES (%s, %s, %s, %s, 'infinity')"
    execute(url, statement, queue, job_id, payload, critical)


def scheduled(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.RowsScheduled))


STATES = "SELECT state, count(*) FROM evsched_job GROUP BY state ORDER BY state"


async def test_row_longer_than_redis_accepts_is_dead_and_names_the_setting(
    relaying: Running, queue: str, ledger_url: str, client: Any
) -> None:
    client.config_set("proto-max-bulk-len", 2 * MEGABYTE)
    insert(ledger_url, queue, "long", 3 * MEGABYTE, critical=9)
    insert(ledger_url, queue, "fits", MEGABYTE + 1, critical=8)
    for n in range(10):
        insert(ledger_url, queue, f"j{n}", critical=n)
    async with relaying() as recorder:
        await recorder.until(lambda: scheduled(recorder) == 11)
        refused = await recorder.wait(process_events.RowsRefused)
    assert refused.count == 1
    assert refused.first.startswith("long: the row has 31457")
    assert execute(ledger_url, STATES) == [("dead", 1), ("open", 11)]
    ((reason,),) = execute(ledger_url, "SELECT reason FROM evsched_job WHERE id = 'long'")
    assert "more than the 2097152 of Redis's setting proto-max-bulk-len: raise that" in reason
    assert not recorder.of(process_events.RedisDown)
    assert not recorder.of(process_events.RowsSetAside)


async def test_row_that_resets_the_connection_is_set_aside_without_config_rights(
    relaying: Running, queue: str, ledger_url: str, client: Any, monkeypatch: Any
) -> None:
    client.config_set("proto-max-bulk-len", 2 * MEGABYTE)
    client.execute_command("ACL", "SETUSER", "default", "-config")
    insert(ledger_url, queue, "long", 3 * MEGABYTE, critical=9)
    insert(ledger_url, queue, "j1")
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled)
        found = await recorder.wait(process_events.RowsSetAside)
        insert(ledger_url, queue, "j2", critical=9)
        await recorder.until(lambda: scheduled(recorder) == 2)
        assert execute(ledger_url, "SELECT id, state FROM evsched_job WHERE epoch = ''") == [("long", "open")]
        client.execute_command("ACL", "SETUSER", "default", "+config")
        client.config_set("proto-max-bulk-len", 4 * MEGABYTE)
        monkeypatch.setattr(delivery, "_SECONDS", 0.0)
        await recorder.until(lambda: scheduled(recorder) == 3)
    assert found.first.startswith("long: the row has 31457")
    assert "proto-max-bulk-len" in found.first
    assert len(recorder.of(process_events.RowsSetAside)) == 1
    # The reader of ends may have sent a command on the connection that the row resets.
    assert not [event for event in recorder.of(process_events.RedisDown) if event.who != "ends"]


async def test_recurrence_refused_by_redis_does_not_block_others(
    relaying: Running, queue: str, ledger_url: str, client: Any
) -> None:
    client.config_set("proto-max-bulk-len", 2 * MEGABYTE)
    client.set(f"evsched:{{{queue}}}:recurrence:bad", "x")
    statement = (
        "INSERT INTO evsched_recurrence (queue, name, rule, payload, critical) VALUES (%s, %s, '@daily', %s, %s)"
    )
    for name, size, critical in (("bad", 1, 9), ("long", 3 * MEGABYTE, 8), ("good", 1, 0)):
        execute(ledger_url, statement, queue, name, json.dumps({"task": "t", "args": ["x" * size]}), critical)
    async with relaying() as recorder:
        found = await recorder.wait(process_events.RowsSetAside)
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsDeclared)) == 2)
        insert(ledger_url, queue, "j1")
        await recorder.wait(process_events.RowsScheduled)
    assert found.first.startswith("bad: ")
    assert not recorder.of(process_events.RedisDown)
    assert client.exists(f"evsched:{{{queue}}}:recurrence:good")
    reasons = dict(execute(ledger_url, "SELECT name, reason FROM evsched_recurrence"))
    assert "proto-max-bulk-len" in reasons["long"]
    assert (reasons["bad"], reasons["good"]) == (None, None)
