"""Redis's data, Redis or PostgreSQL is lost for a time; afterwards no job is missing and none runs twice."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

import psycopg
import pytest

from evsched import App, process_events
from evsched.client import operations
from evsched.client.client import Client
from evsched.config import Config
from evsched.store.client_calls import New
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.conftest import Running
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.postgres import Postgres
from tests.support.recorder import Recorder
from tests.support.system import System, system
from tests.support.topology import copy_data

NEVER = "infinity"
LATER = 4e9


@pytest.fixture
def config(own: EmbeddedRedis, queue: str, ledger_url: str) -> Config:
    return Config(url=own.url, queues=(queue,), concurrency=10, shutdown_grace=0.2, ledger_url=ledger_url)


@pytest.fixture
def ran(app: App) -> list[str]:
    ran = list[str]()

    @app.task
    async def note(job: str) -> None:  # pyright: ignore[reportUnusedFunction]
        ran.append(job)

    return ran


@pytest.fixture
async def running(config: Config, app: App, ran: list[str]) -> AsyncGenerator[System]:
    async with system(config, app) as running:
        yield running


@pytest.fixture
def other() -> Generator[EmbeddedRedis]:
    """A second Redis, to which data is copied and from which it is restored."""
    with EmbeddedRedis(port=0) as server:
        yield server


def insert(url: str, queue: str, count: int, due: str = NEVER, critical: int = 0, prefix: str = "j") -> None:
    payload = json.dumps({"task": "note", "args": ["%"]})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, id, payload, due, critical) SELECT %s, %s || n, "
            "CAST(replace(%s, '%%', %s || n) AS json), %s, %s FROM generate_series(1, %s) AS n",
            [queue, prefix, payload, prefix, due, critical, count],
        )


async def count_settings(connection: psycopg.AsyncConnection) -> int:
    ((count,),) = await (await connection.execute("SELECT count(*) FROM evsched_setting")).fetchall()
    return count


def scheduled(recorder: Recorder, *, again: bool = False) -> int:
    return sum(one.count for one in recorder.of(process_events.RowsScheduled) if one.again == again)


def withdrawn(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.JobsWithdrawn))


def ended(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.EndsWritten))


async def test_after_a_flush_each_row_that_has_not_ended_is_scheduled_again_once(
    relaying: Running, running: System, queue: str, ledger_url: str, client: Any, recorder: Recorder, ran: list[str]
) -> None:
    """The relays hear of the loss from Redis: the safety cap is longer than the test waits."""
    insert(ledger_url, queue, 3, due="now", prefix="ended")
    insert(ledger_url, queue, 2000)
    async with relaying(recorder), relaying(recorder), relaying(recorder), relaying(recorder), relaying(recorder):
        await recorder.until(lambda: ended(recorder) == 3 and scheduled(recorder) == 2003)
        client.flushall()
        await recorder.until(lambda: scheduled(recorder, again=True) == 2000)
        assert client.zcard(f"evsched:{{{queue}}}:schedule") == 2000
        insert(ledger_url, queue, 1, due="now", prefix="after")
        await recorder.until(lambda: ended(recorder) == 4)
    assert sorted(ran) == ["after1", "ended1", "ended2", "ended3"]
    assert len({one.epoch for one in recorder.of(process_events.EpochFound)}) == 2


async def test_restart_that_loses_recent_writes_is_detected(
    relaying: Running, queue: str, ledger_url: str, own: EmbeddedRedis, client: Any, recorder: Recorder
) -> None:
    """The key of the epoch survives, as after a failover to a replica that lags behind."""
    insert(ledger_url, queue, 10)
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 10)
        key = client.get("evsched:{}:epoch")
        client.delete(f"evsched:{{{queue}}}:schedule", *(f"evsched:{{{queue}}}:job:j{n}" for n in range(1, 6)))
        own.restart()
        await recorder.until(lambda: scheduled(recorder, again=True) == 10)
        assert client.get("evsched:{}:epoch") == key
        assert client.zcard(f"evsched:{{{queue}}}:schedule") == 10


async def test_running_redis_loaded_with_older_data_is_detected(
    relaying: Running,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    other: EmbeddedRedis,
    client: Any,
    recorder: Recorder,
) -> None:
    """A restore without a restart: the process stays the same, and connections that are not blocked stay open."""
    insert(ledger_url, queue, 100)
    async with relaying(recorder), relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 100)
        await asyncio.to_thread(copy_data, own, other)
        await recorder.wait(process_events.EpochFound)
        insert(ledger_url, queue, 100, prefix="later")
        await recorder.until(lambda: scheduled(recorder) >= 200)
        run = client.info("server")["run_id"]
        await asyncio.to_thread(copy_data, other, own)
        assert client.info("server")["run_id"] == run
        await recorder.until(lambda: client.zcard(f"evsched:{{{queue}}}:schedule") == 200)


async def test_rows_lost_in_a_failover_are_scheduled_after_the_failback(
    relaying: Running,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    other: EmbeddedRedis,
    client: Any,
    recorder: Recorder,
) -> None:
    """A failover to a replica that lags behind, on which only critical rows are restored, and back."""
    insert(ledger_url, queue, 100)
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 100)
    copy_data(own, other)
    lagging = plain_client(other.url)
    lost = [f"j{n}" for n in range(1, 51)]
    lagging.zrem(f"evsched:{{{queue}}}:schedule", *lost)
    lagging.delete(*(f"evsched:{{{queue}}}:job:{job_id}" for job_id in lost))
    lagging.close()
    insert(ledger_url, queue, 10, critical=1, prefix="critical")
    async with relaying(recorder, url=other.url, critical_only=1):
        await recorder.until(lambda: scheduled(recorder) == 110)
    copy_data(other, own)
    assert client.zcard(f"evsched:{{{queue}}}:schedule") == 60
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder, again=True) == 110)
    assert client.zcard(f"evsched:{{{queue}}}:schedule") == 110


async def test_restoring_older_redis_data_does_not_rerun_ended_rows(
    relaying: Running,
    running: System,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    other: EmbeddedRedis,
    client: Any,
    recorder: Recorder,
    ran: list[str],
) -> None:
    """Jobs that a client replaced or enqueued itself in the older data do run."""
    insert(ledger_url, queue, 55)
    program, schedule = Client(own.url), f"evsched:{{{queue}}}:schedule"
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 55)
        await asyncio.to_thread(copy_data, own, other)
        for n in range(1, 51):
            await (program.reschedule(queue, f"j{n}") if n > 5 else program.cancel(queue, f"j{n}"))
        await recorder.until(lambda: ended(recorder) == 50)
        insert(ledger_url, queue, 50, prefix="later")
        await recorder.until(lambda: scheduled(recorder) >= 105)
    await program.close()
    older = plain_client(other.url)
    older.delete(f"evsched:{{{queue}}}:job:j6")
    older.zrem(schedule, "j6")
    older.close()
    outside = Client(other.url)
    await outside.enqueue(queue, [New("j6", b'{"task":"note"}', due=LATER)])
    await outside.enqueue(queue, [New("j7", b'{"task":"note"}', due=LATER)], "replace")
    await outside.close()
    await asyncio.to_thread(copy_data, other, own)
    async with relaying(recorder), relaying(recorder):
        await recorder.until(lambda: withdrawn(recorder) == 48 and client.zcard(schedule) == 57)
    assert sorted(ran) == sorted(f"j{n}" for n in range(6, 51))


@pytest.mark.parametrize("before", [False, True])
async def test_settings_that_operators_made_are_restored(
    relaying: Running,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    client: Any,
    recorder: Recorder,
    before: bool,
) -> None:
    """They precede the jobs and recurrences that need them; deleted settings stay deleted.

    They are copied when the relay starts, and when they are made while it runs: its safety cap is longer than the test.
    """
    insert(ledger_url, queue, 1)
    program = Client(own.url)

    async def settings() -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
        return await program.calendars(queue), await program.windows(queue), (await program.limits(queue)).fields()

    async def make() -> None:
        for name in ("holidays", "gone"):
            await program.set_calendar(queue, name, "2090-01-01 2090-12-24..2090-12-26")
        await program.set_window(queue, "night", "22:00-06:00 UTC")
        await program.limit(queue, concurrency=7)
        await program.limit(queue, group="alice", rate=2.5)

    if before:
        await make()
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 1)
        if not before:
            # By then it reads the stream of reports, to which the changes are told.
            await program.cancel(queue, "j1")
            await recorder.until(lambda: ended(recorder) == 1)
            await make()
        made = await settings()
        limit = time.monotonic() + PATIENCE
        async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
            await connection.set_autocommit(True)
            while await count_settings(connection) != 5:
                assert time.monotonic() < limit, "not copied"
            await program.remove_calendar(queue, "gone")
            while await count_settings(connection) != 4:
                assert time.monotonic() < limit, "not deleted"
    client.flushall()
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_recurrence (queue, name, rule, payload, options) "
            "VALUES (%s, 'r', '@daily', '{\"task\":\"t\"}', '{\"skip\":\"holidays\"}')",
            [queue],
        )
    async with relaying(recorder):
        await recorder.wait(process_events.RowsDeclared)
    del made[0]["gone"]
    assert await settings() == made
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        assert connection.execute("SELECT reason FROM evsched_recurrence").fetchone() == (None,)
    await program.close()


async def test_critical_rows_are_restored_first(
    relaying: Running, queue: str, ledger_url: str, client: Any, recorder: Recorder
) -> None:
    for critical in (0, 2, 1):
        insert(ledger_url, queue, 50, critical=critical, prefix=f"c{critical}-")
    async with relaying(recorder, batch=10):
        await recorder.until(lambda: scheduled(recorder) == 150)
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        order = connection.execute("SELECT critical FROM evsched_job ORDER BY scheduled_at, number").fetchall()
    assert [row[0] for row in order] == [2] * 50 + [1] * 50 + [0] * 50


async def test_critical_only_leaves_the_other_rows_in_the_table(
    relaying: Running, queue: str, ledger_url: str, client: Any, recorder: Recorder
) -> None:
    for critical in (0, 1, 2):
        insert(ledger_url, queue, 20, critical=critical, prefix=f"c{critical}-")
    schedule = f"evsched:{{{queue}}}:schedule"
    async with relaying(recorder, critical_only=1):
        await recorder.until(lambda: scheduled(recorder) == 40)
        client.flushall()
        await recorder.until(lambda: scheduled(recorder, again=True) == 40)
        assert client.zcard(schedule) == 40
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 60)
    assert client.zcard(schedule) == 60


async def test_rows_inserted_while_redis_is_down_run_after_it_returns(
    relaying: Running,
    running: System,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    recorder: Recorder,
    ran: list[str],
) -> None:
    async with relaying(recorder):
        await recorder.wait(process_events.EpochFound)
        own.stop()
        insert(ledger_url, queue, 50, due="now")
        await recorder.wait(process_events.RedisDown)
        assert ran == []
        own.start()
        await recorder.until(lambda: ended(recorder) == 50)
    assert sorted(ran) == sorted(f"j{n}" for n in range(1, 51))


@pytest.mark.extra
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_rows_run_after_postgresql_restarts(
    relaying: Running,
    running: System,
    queue: str,
    ledger_url: str,
    postgres: Postgres,
    recorder: Recorder,
    ran: list[str],
    how: signal.Signals,
) -> None:
    async with relaying(recorder):
        insert(ledger_url, queue, 300, due="now")
        await recorder.wait(process_events.RowsScheduled)
        postgres.stop(how)
        await recorder.wait(process_events.LedgerDown, lambda event: event.who == "listener")
        postgres.start()
        await recorder.wait(process_events.LedgerUp, lambda event: event.who == "listener")
        insert(ledger_url, queue, 50, due="now", prefix="after")
        await recorder.until(lambda: ended(recorder) >= 350, limit=25)
    assert sorted(ran) == sorted([f"j{n}" for n in range(1, 301)] + [f"after{n}" for n in range(1, 51)])


async def test_a_result_is_awaited_across_a_flush(
    relaying: Running,
    running: System,
    queue: str,
    ledger_url: str,
    own: EmbeddedRedis,
    client: Any,
    recorder: Recorder,
    monkeypatch: Any,
) -> None:
    """The row has `reply`, so the job pushes its outcome though Redis has forgotten the waiting client."""
    monkeypatch.setattr(operations, "_BLOCK", 1000.0)
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, id, payload, due) VALUES (%s, 'a', %s, 'infinity')",
            [queue, '{"task":"note","args":["a"],"reply":true}'],
        )
    program = Client(own.url)
    async with relaying(recorder):
        await recorder.wait(process_events.RowsScheduled)
        waiting = asyncio.ensure_future(program.result(queue, "a", None))
        while not await asyncio.to_thread(client.hexists, f"evsched:{{{queue}}}:job:a", "reply"):
            pass  # it has not asked yet
        client.flushall()
        await recorder.wait(process_events.RowsScheduled, lambda event: event.again)
        await program.reschedule(queue, "a")
        assert await waiting is None
    await program.close()
