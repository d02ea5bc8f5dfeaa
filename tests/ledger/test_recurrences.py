"""Rows of recurrences are declared in Redis, changed and removed there, and declared again after a loss."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from evsched import Retry, process_events
from evsched.config import Config
from evsched.jobs.retry import write_policy
from evsched.recurrence.recurrence import Declared
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.ledger.conftest import Running
from tests.support.recorder import Recorder


@pytest.fixture
def config(own: EmbeddedRedis, queue: str, ledger_url: str) -> Config:
    return Config(url=own.url, queues=(queue,), ledger_url=ledger_url)


def execute(url: str, statement: str, **words: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), words)
        return cursor.fetchall() if cursor.description else []


def insert(url: str, queue: str, name: str, rule: str, /, **options: Any) -> None:
    execute(
        url,
        "INSERT INTO evsched_recurrence (queue, name, rule, payload, options) "
        'VALUES (%(queue)s, %(name)s, %(rule)s, \'{"task":"t"}\', %(options)s)',
        queue=queue,
        name=name,
        rule=rule,
        options=json.dumps(options),
    )


async def declared(recorder: Recorder, count: int) -> None:
    await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsDeclared)) == count)


async def test_rows_are_declared_changed_restored_and_removed(
    relaying: Running, queue: str, ledger_url: str, own: EmbeddedRedis, client: Any
) -> None:
    key = f"evsched:{{{queue}}}:recurrence:nightly"
    insert(ledger_url, queue, "nightly", "0 3 * * *", overlap="wait", priority=7)
    async with relaying() as recorder:
        await declared(recorder, 1)
        assert client.hmget(key, "rule", "overlap", "priority") == [b"0 3 * * *", b"wait", b"7"]
        execute(ledger_url, "UPDATE evsched_recurrence SET rule = '0 4 * * *'")
        await declared(recorder, 2)
        assert client.hget(key, "rule") == b"0 4 * * *"
        sender = BatchingSender(own.url)
        await sender.send(Store(queue).hold("nightly", True))
        await sender.close()
        client.flushall()
        await declared(recorder, 3)
        insert(ledger_url, queue, "hourly", "@hourly")
        await declared(recorder, 4)
        assert client.hget(key, "rule") == b"0 4 * * *"
        execute(ledger_url, "UPDATE evsched_recurrence SET removed = true WHERE name = 'nightly'")
        await declared(recorder, 5)
        assert not client.exists(key)
    assert execute(ledger_url, "SELECT name FROM evsched_recurrence") == [("hourly",)]


@pytest.mark.extra
@pytest.mark.parametrize(
    ("rule", "options", "reason"),
    [
        ("at noon", {}, "at noon"),
        ("@daily", {"overlap": "maybe"}, "overlap is 'maybe': give 'allow' or 'skip' or 'wait'"),
        ("@daily", {"misfire": 7}, "misfire is 7: give 'skip' or 'once' or 'all'"),
        ("@daily", {"after": "start"}, "after is 'start': give 'end'"),
        ("1s", {}, "every 90"),
        ("@daily", {"colour": 1}, "colour, which is not an option"),
        ("@daily", {"zone": "Europe/Berlin", "rule": "@hourly"}, "rule, zone: write that into the column"),
        ("@daily", {"payload": "{}"}, "payload"),
        ("@daily", {"name": "other", "queue": "other"}, "queue, name"),
        ("@daily", {"count": "x"}, "count"),
        ("@daily", {"skip": "holidays"}, "holidays"),
    ],
)
async def test_invalid_recurrence_row_records_the_reason_and_blocks_no_other(
    relaying: Running, queue: str, ledger_url: str, client: Any, rule: str, options: dict[str, Any], reason: str
) -> None:
    insert(ledger_url, queue, "bad", rule, **options)
    insert(ledger_url, queue, "good", "@hourly")
    async with relaying() as recorder:
        await declared(recorder, 2)
        assert client.exists(f"evsched:{{{queue}}}:recurrence:good")
        ((why,),) = execute(ledger_url, "SELECT reason FROM evsched_recurrence WHERE name = 'bad'")
        assert reason in why
        execute(ledger_url, "UPDATE evsched_recurrence SET rule = '@daily', options = '{}' WHERE name = 'bad'")
        await declared(recorder, 3)
    assert client.exists(f"evsched:{{{queue}}}:recurrence:bad")
    assert execute(ledger_url, "SELECT reason FROM evsched_recurrence WHERE name = 'bad'") == [(None,)]


async def test_refused_recurrence_row_stays_refused_after_redis_loses_its_data(
    relaying: Running, queue: str, ledger_url: str, own: EmbeddedRedis, client: Any
) -> None:
    """The relay declares before a worker has rewritten the retry policies of its tasks."""
    sender = BatchingSender(own.url)
    await sender.send(Store(queue).set_policies({"t": write_policy(Retry(attempts=5, interval=60))}))
    await sender.close()
    insert(ledger_url, queue, "often", "every 2")
    insert(ledger_url, queue, "good", "@hourly")
    refused = "SELECT reason FROM evsched_recurrence WHERE name = 'often'"
    async with relaying() as recorder:
        await declared(recorder, 2)
        ((why,),) = execute(ledger_url, refused)
        client.flushall()
        await declared(recorder, 3)
        assert client.zrange(f"evsched:{{{queue}}}:recurrences", 0, -1) == [b"good"]
        assert execute(ledger_url, refused) == [(why,)]
        execute(ledger_url, "UPDATE evsched_recurrence SET rule = '@daily' WHERE name = 'often'")
        await declared(recorder, 4)
    assert client.exists(f"evsched:{{{queue}}}:recurrence:often")
    assert execute(ledger_url, refused) == [(None,)]


async def test_row_does_not_override_a_recurrence_declared_in_code(
    relaying: Running, queue: str, ledger_url: str, own: EmbeddedRedis, client: Any
) -> None:
    sender = BatchingSender(own.url)
    in_code = Declared(name="mine", rule="@daily", payload=b'{"task":"t"}')
    await sender.send(Store(queue).declare(in_code, "shop"))
    record = client.hgetall(f"evsched:{{{queue}}}:recurrence:mine")
    insert(ledger_url, queue, "mine", "@hourly")
    async with relaying() as recorder:
        await declared(recorder, 1)
        ((why,),) = execute(ledger_url, "SELECT reason FROM evsched_recurrence")
        assert "the code of app shop declares it" in why
        execute(ledger_url, "UPDATE evsched_recurrence SET removed = true")
        await declared(recorder, 2)
        assert execute(ledger_url, "SELECT name FROM evsched_recurrence") == []
        assert client.hgetall(f"evsched:{{{queue}}}:recurrence:mine") == record
        await sender.send(Store(queue).retire("mine", "shop", None))
        insert(ledger_url, queue, "mine", "@hourly")
        await declared(recorder, 3)
    await sender.close()
    assert client.hget(f"evsched:{{{queue}}}:recurrence:mine", "rule") == b"@hourly"
