"""Changes of rows: a job that its row moves or cancels, wherever it is, and whatever is lost meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from evsched import App, GiveUp, JobDead, JobMissing, current_job, process_events
from evsched.client.client import Client
from evsched.config import Config
from evsched.ledger.database import connect
from evsched.ledger.rows import write_ends
from evsched.store.relay_calls import Report
from evsched.store.store import Store
from tests.ledger.conftest import Running
from tests.ledger.test_transactions import until_blocked
from tests.support.recorder import Recorder
from tests.support.system import system

FAR, FARTHER = 2_000_000_000.0, 2_100_000_000.0


@pytest.fixture
def send(app: App) -> Any:
    @app.task
    async def send(to: str) -> None:
        pass

    return send


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def states(url: str) -> dict[str, tuple[str, str | None]]:
    return {row[0]: row[1:] for row in execute(url, "SELECT id, state, reason FROM evsched_job")}


def scheduled(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.RowsScheduled))


@pytest.mark.extra
async def test_jobs_that_wait_are_moved_and_cancelled_after_the_commit(
    relaying: Running, app: App, send: Any, queue: str, ledger_url: str, raw: Any, recorder: Recorder
) -> None:
    schedule = f"evsched:{{{queue}}}:schedule"
    with psycopg.connect(ledger_url) as connection:
        for name in "abc":
            send.using(id=name, due=FAR).enqueue_in_sync(connection, name)
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 3)
        await app.job("c").reschedule(due=FAR + 5)  # in Redis, and earlier than the row
        with psycopg.connect(ledger_url) as connection:
            app.job("a").cancel_in_sync(connection)
            app.job("b").reschedule_in_sync(connection, due=FARTHER)
            app.job("c").reschedule_in_sync(connection, due=FARTHER)
        await recorder.until(lambda: scheduled(recorder) == 5 and len(recorder.of(process_events.EndsWritten)) == 1)
        assert raw.zrange(schedule, 0, -1, withscores=True) == [(b"b", FARTHER), (b"c", FARTHER)]
        await app.job("c").reschedule(due=FAR)  # in Redis, and later than the row
        execute(ledger_url, "UPDATE evsched_job SET due = to_timestamp(2050000000) WHERE id = 'b'")
        await recorder.until(lambda: scheduled(recorder) == 6)
        assert raw.zrange(schedule, 0, -1, withscores=True) == [(b"c", FAR), (b"b", 2_050_000_000.0)]
        execute(ledger_url, "UPDATE evsched_job SET cancelled = true WHERE id = 'b'")
        await recorder.until(lambda: len(recorder.of(process_events.EndsWritten)) == 2)
    assert states(ledger_url) == {
        "a": ("cancelled", "cancelled while it waited"),
        "b": ("cancelled", "cancelled while it waited"),
        "c": ("open", None),
    }
    assert not raw.exists(f"evsched:{{{queue}}}:job:a")
    await app.close()


async def test_a_job_that_runs_is_stopped_and_not_moved(
    relaying: Running, config: Config, app: App, ledger_url: str, recorder: Recorder
) -> None:
    began = dict[str, asyncio.Event](a=asyncio.Event(), b=asyncio.Event())
    go_on = asyncio.Event()
    runs = list[str]()

    @app.task
    async def wait(name: str) -> int:
        runs.append(name)
        began[name].set()
        await go_on.wait()
        return current_job().attempt

    async with relaying(recorder), system(config, app), await psycopg.AsyncConnection.connect(ledger_url) as connection:
        jobs = await asyncio.gather(*(wait.using(id=name).enqueue_in(connection, name) for name in "ab"))
        await connection.commit()
        for name in "ab":
            await began[name].wait()
        await jobs[1].reschedule_in(connection, delay=0.01)
        await connection.commit()
        await recorder.until(lambda: scheduled(recorder) == 3)
        await jobs[0].cancel_in(connection)
        await connection.commit()
        with pytest.raises(JobDead, match="cancelled"):
            await jobs[0].result(60)
        go_on.set()
        assert await jobs[1].result(60) == 1
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 2)
    assert runs == ["a", "b"]
    assert {name: state for name, (state, _) in states(ledger_url).items()} == {"a": "cancelled", "b": "done"}
    await app.close()


@pytest.mark.extra
async def test_change_seen_after_the_job_ended_does_not_alter_its_outcome(
    relaying: Running, config: Config, app: App, send: Any, ledger_url: str, recorder: Recorder
) -> None:
    """The changes are committed while no relay runs."""
    with psycopg.connect(ledger_url) as connection:
        for name in "ab":
            send.using(id=name, due=FAR).enqueue_in_sync(connection, name)
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 2)
    with psycopg.connect(ledger_url) as connection:
        app.job("a").cancel_in_sync(connection)
        app.job("b").reschedule_in_sync(connection, due=FARTHER)
    async with system(config, app):
        for name in "ab":
            await app.job(name).reschedule()
            await app.job(name).result(60)
        async with relaying(recorder):
            await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 2)
    assert states(ledger_url) == {"a": ("done", None), "b": ("done", None)}
    await app.close()


@pytest.mark.extra
@pytest.mark.parametrize("was_scheduled", [True, False])
async def test_changes_survive_a_loss_of_redis(
    relaying: Running,
    app: App,
    send: Any,
    queue: str,
    ledger_url: str,
    raw: Any,
    recorder: Recorder,
    was_scheduled: bool,
) -> None:
    with psycopg.connect(ledger_url) as connection:
        for name in "ab":
            send.using(id=name, due=FAR).enqueue_in_sync(connection, name)
    if was_scheduled:
        async with relaying(recorder):
            await recorder.until(lambda: scheduled(recorder) == 2)
    with psycopg.connect(ledger_url) as connection:
        app.job("a").cancel_in_sync(connection)
        app.job("b").reschedule_in_sync(connection, due=FARTHER)
    for key in raw.scan_iter("evsched:*"):
        raw.delete(key)
    async with relaying(recorder):
        await recorder.wait(process_events.EndsWritten)
        await recorder.until(lambda: raw.zcard(f"evsched:{{{queue}}}:schedule") == 1)
    assert raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1, withscores=True) == [(b"b", FARTHER)]
    assert states(ledger_url) == {"a": ("cancelled", "cancelled in a transaction"), "b": ("open", None)}


@pytest.mark.extra
async def test_the_result_of_a_job_that_was_cancelled_before_it_came_to_redis(
    relaying: Running, app: App, send: Any, ledger_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        job = await send.enqueue_in(connection, "bob")
        await job.cancel_in(connection)
        await connection.commit()
        async with relaying():
            with pytest.raises(JobDead, match="cancelled"):
                await job.result(60)
        with pytest.raises(JobMissing):
            await job.cancel_in(connection)
    await app.close()


async def test_changes_of_several_jobs_never_deadlock_with_a_relay(
    app: App, send: Any, queue: str, ledger_url: str
) -> None:
    """The relay writes the ends of a and b while the program has changed b, and then changes a."""
    reports = [Report(f"{n}-0", name, f"{n}", "done", "", "0") for n, name in enumerate("ab", 1)]
    async with (
        await psycopg.AsyncConnection.connect(ledger_url) as program,
        await connect(ledger_url) as relay,
    ):
        jobs = [await send.using(id=name).enqueue_in(program, name) for name in "ab"]
        await program.commit()
        await relay.execute("SET deadlock_timeout = '60s'")  # the program would be the first to notice
        await jobs[1].cancel_in(program)
        writing = asyncio.ensure_future(write_ends(relay, queue, reports))
        await asyncio.to_thread(until_blocked, ledger_url)
        await jobs[0].cancel_in(program)
        await program.commit()
        assert await writing == 2
    assert states(ledger_url) == {"a": ("done", None), "b": ("done", None)}


@pytest.mark.extra
async def test_a_record_of_another_type_stops_no_other_cancellation(
    relaying: Running, app: App, send: Any, queue: str, ledger_url: str, raw: Any, recorder: Recorder
) -> None:
    raw.set(f"evsched:{{{queue}}}:job:a", "a string")
    with psycopg.connect(ledger_url) as connection:
        for name in "ab":
            send.using(id=name).enqueue_in_sync(connection, name)
            app.job(name).cancel_in_sync(connection)
    async with relaying(recorder):
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 2)
    assert raw.get(f"evsched:{{{queue}}}:job:a") == b"a string"
    assert {state for state, _ in states(ledger_url).values()} == {"cancelled"}


async def test_cancellation_of_a_dead_job_does_not_cancel_its_revival(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, raw: Any, recorder: Recorder
) -> None:
    @app.task
    async def fail() -> None:
        raise GiveUp("as the test wants")

    schedule = f"evsched:{{{queue}}}:schedule"
    with psycopg.connect(ledger_url) as connection:
        fail.using(id="a", due=FAR).enqueue_in_sync(connection)
    async with relaying(recorder):
        await recorder.until(lambda: scheduled(recorder) == 1)
    with psycopg.connect(ledger_url) as connection:
        app.job("a").cancel_in_sync(connection)
    async with system(config, app):
        await app.job("a").reschedule()
        with pytest.raises(JobDead, match="as the test wants"):
            await app.job("a").result(60)
    await app.close()
    async with relaying(recorder):
        await recorder.until(lambda: len(recorder.of(process_events.EndsWritten)) == 1)
        assert states(ledger_url)["a"][0] == "dead"
        client = Client(config.url)
        await client.send(Store(queue).revive(["a"]))
        await client.reschedule(queue, "a", FAR)
        await recorder.until(lambda: len(recorder.of(process_events.EndsWritten)) == 2 and scheduled(recorder) == 2)
        await client.close()
    assert states(ledger_url)["a"] == ("open", None)
    assert raw.zcard(schedule) == 1
