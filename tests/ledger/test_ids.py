"""Ids that Redis knows from before, and payloads that it would refuse: each row runs its own job, or says why not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from evsched import App, process_events
from evsched.config import Config
from evsched.errors import ConfigError
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.ledger.conftest import Running
from tests.support.recorder import Recorder
from tests.support.system import system


def execute(url: str, statement: str, *words: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), words)
        return cursor.fetchall() if cursor.description else []


def insert(url: str, queue: str, job_id: str, word: str, due: str = "now") -> None:
    payload = json.dumps({"task": "note", "args": [word]})
    statement = "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, %s, %s, %s)"
    execute(url, statement, queue, job_id, payload, due)


def states(url: str) -> list[tuple[Any, ...]]:
    return execute(url, "SELECT id, state, reason FROM evsched_job ORDER BY id")


def scheduled(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.RowsScheduled))


def ended(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.EndsWritten))


@pytest.fixture
def ran(app: App) -> list[str]:
    ran = list[str]()

    @app.task
    async def note(word: str) -> None:  # pyright: ignore[reportUnusedFunction]
        ran.append(word)

    return ran


async def test_redis_still_has_the_job_of_an_earlier_use_of_the_row(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str]
) -> None:
    """As after a failover to a replica that lags behind: the table says that it has ended, and Redis that it waits."""
    insert(ledger_url, queue, "a", "first", "infinity")
    async with relaying() as recorder, system(config, app):
        await recorder.until(lambda: scheduled(recorder) == 1)
        payload = json.dumps({"task": "note", "args": ["second"]})
        changes = "number = DEFAULT, payload = %s, due = now(), epoch = ''"
        execute(ledger_url, f"UPDATE evsched_job SET {changes}", payload)
        execute(ledger_url, "NOTIFY evsched_ledger")
        await recorder.until(lambda: ended(recorder) == 1)
    assert ran == ["second"]
    assert states(ledger_url) == [("a", "done", None)]


async def test_a_row_is_deleted_and_inserted_again_while_its_job_runs(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str]
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(word: str) -> None:  # pyright: ignore[reportUnusedFunction]
        begun.set()
        await go.wait()
        ran.append(word)

    payload = json.dumps({"task": "slow", "args": ["first"]})
    execute(ledger_url, "INSERT INTO evsched_job (queue, id, payload) VALUES (%s, 'a', %s)", queue, payload)
    async with relaying() as recorder, system(config, app):
        await begun.wait()
        execute(ledger_url, "DELETE FROM evsched_job")
        insert(ledger_url, queue, "a", "second")
        await recorder.until(lambda: scheduled(recorder) == 2)
        go.set()
        await recorder.until(lambda: ended(recorder) == 1)
    assert ran == ["first", "second"]
    assert states(ledger_url) == [("a", "done", None)]


async def test_row_with_the_id_of_a_foreign_job_is_dead_and_blocks_no_other(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str], sender: BatchingSender
) -> None:
    payload = b'{"task":"note","args":["direct"]}'
    await sender.send(Store(queue).enqueue([New("a", payload, delay=3600)]))
    async with relaying() as recorder, system(config, app) as working:
        insert(ledger_url, queue, "a", "lost")
        insert(ledger_url, queue, "b", "kept")
        refused = await recorder.wait(process_events.RowsRefused)
        await sender.send(Store(queue).reschedule("a", None))
        await working.recorder.until(lambda: len(ran) == 2)
        await recorder.until(lambda: ended(recorder) == 1)
    assert (refused.queue, refused.count) == (queue, 1)
    assert sorted(ran) == ["direct", "kept"]
    ((_, state, reason), second) = states(ledger_url)
    assert (state, second) == ("dead", ("b", "done", None))
    assert "not of this ledger" in reason


async def test_row_that_is_too_long_is_dead_and_blocks_no_other(
    relaying: Running, queue: str, ledger_url: str, raw: Any
) -> None:
    """Redis closes the connection if an argument is longer than its `proto-max-bulk-len`."""
    config = raw.config_get("proto-max-bulk-len")
    raw.config_set("proto-max-bulk-len", 1 << 20)
    try:
        insert(ledger_url, queue, "long", "x" * (2 << 20), "infinity")
        for n in range(30):
            insert(ledger_url, queue, f"j{n:02}", "x" * (100 << 10), "infinity")
        execute(
            ledger_url,
            "INSERT INTO evsched_recurrence (queue, name, rule, payload) SELECT %s, name, '@daily', "
            "json_build_object('task', 't', 'args', json_build_array(repeat('x', size))) "
            "FROM (VALUES ('long', 2000000), ('short', 9)) AS one (name, size)",
            queue,
        )
        async with relaying() as recorder:
            await recorder.until(lambda: scheduled(recorder) == 30)
            await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsDeclared)) == 2)
    finally:
        raw.config_set("proto-max-bulk-len", config["proto-max-bulk-len"])
    assert not recorder.of(process_events.RedisDown)
    *others, (job_id, state, reason) = states(ledger_url)
    assert {one[1:] for one in others} == {("open", None)}
    assert (job_id, state) == ("long", "dead")
    assert reason.startswith("the payload has 2097")
    assert "more than 262144" in reason
    reasons = dict(execute(ledger_url, "SELECT name, reason FROM evsched_recurrence"))
    assert "more than 262144" in reasons["long"]
    assert reasons["short"] is None


@pytest.mark.parametrize("name", [".", ".."])
def test_ids_and_queues_that_a_url_cannot_name_are_refused(ledger_url: str, queue: str, app: App, name: str) -> None:
    for where in ((queue, name), (name, "a")):
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(ledger_url, *where, "x")

    @app.task
    async def note(word: str) -> None: ...

    with app.sync() as client, psycopg.connect(ledger_url) as connection:
        with pytest.raises(ConfigError, match=r"not \. or \.\."):
            note.using(id=name).enqueue_in_sync(connection, "x")
        with pytest.raises(ConfigError, match=r"not \. or \.\."):
            client.enqueue(note.using(id=name), "x")
    insert(ledger_url, queue, "...", "x")
