"""Each committed row becomes one job, and receives its outcome."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from evsched import App, GiveUp, events, process_events, shard_map
from evsched.config import Config
from evsched.lease import DEFAULT
from evsched.store import server as redis_server
from evsched.store.relay_calls import RowJob
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.ledger.conftest import Running
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system
from tests.support.topology import pause


def insert(url: str, queue: str, job_id: str, task: str = "note", due: str = "now()", **columns: Any) -> None:
    """Insert a row by plain SQL, as a program in any language does."""
    named = {"queue": queue, "id": job_id, "payload": json.dumps({"task": task, "args": [job_id]}), **columns}
    places = ", ".join(f"%({name})s" for name in named)
    with psycopg.connect(url, autocommit=True) as connection:
        statement = f"INSERT INTO evsched_job ({', '.join(named)}, due) VALUES ({places}, {due})"
        connection.execute(statement.encode(), named)


def states(url: str) -> dict[str, str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return dict(connection.execute("SELECT id, state FROM evsched_job").fetchall())


@pytest.fixture
def ran(app: App) -> list[str]:
    """Give the app tasks that note which jobs ran, or fail."""
    ran = list[str]()

    @app.task
    async def note(job: str) -> None:  # pyright: ignore[reportUnusedFunction]
        ran.append(job)

    @app.task
    async def fail(job: str) -> None:  # pyright: ignore[reportUnusedFunction]
        ran.append(job)
        raise GiveUp("as the test wants")

    return ran


async def test_row_becomes_a_job_and_receives_its_outcome(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str], raw: Any
) -> None:
    async with relaying() as recorder, system(config, app):
        await recorder.wait(process_events.EpochFound)
        insert(ledger_url, queue, "a")
        insert(ledger_url, queue, "b", "fail")
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 2)
    assert sorted(ran) == ["a", "b"]
    assert states(ledger_url) == {"a": "done", "b": "dead"}
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        (row,) = connection.execute("SELECT reason FROM evsched_job WHERE id = 'b'").fetchall()
        (times,) = connection.execute(
            "SELECT scheduled_at <= finished_at, finished_at < now() FROM evsched_job WHERE id = 'a'"
        ).fetchall()
    assert "as the test wants" in row[0]
    assert times == (True, True)
    assert raw.xlen(f"evsched:{{{queue}}}:ends") == 0
    assert 0 < raw.ttl(f"evsched:{{{queue}}}:job:a") <= 300


async def test_foreign_entries_in_the_stream_do_not_block_outcomes(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str], raw: Any
) -> None:
    stream = f"evsched:{{{queue}}}:ends"
    rows = ["", "-1", "1.5", "1e3", "9" * 18, "9" * 19, "٣", "1\0", "x" * 5000]
    async with relaying() as recorder, system(config, app):
        await recorder.wait(process_events.EpochFound)
        insert(ledger_url, queue, "a")
        for row in rows:
            raw.xadd(stream, {"id": "a", "row": row, "outcome": "done", "reason": "\0", "retention": "-inf"})
        for retention in ("soon", "1_0", "nan", "0x10", " 1"):
            raw.xadd(stream, {"id": "a", "row": "", "outcome": "done", "retention": retention})
        raw.xadd(stream, {"nonsense": b"\xff"})
        insert(ledger_url, queue, "b")
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 2)
        raw.xadd(stream, {"id": "a", "row": "1", "outcome": "done"}, id=f"{2**63}-1")
        await recorder.until(lambda: recorder.of(process_events.EndsWritten)[-1].count == 0)
        async with asyncio.timeout(PATIENCE):
            while raw.xlen(stream):  # all are settled
                await asyncio.to_thread(pause)
    assert sorted(ran) == ["a", "b"]
    assert states(ledger_url) == {"a": "done", "b": "done"}
    assert not recorder.of(process_events.LedgerDown)
    raw.delete(stream)  # Redis adds nothing behind the largest of its ids


async def test_rows_that_are_rolled_back_never_become_jobs(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str, ran: list[str]
) -> None:
    async with relaying() as recorder, system(config, app):
        for n in range(200):
            with psycopg.connect(ledger_url) as connection:
                statement = "INSERT INTO evsched_job (queue, id, payload) VALUES (%s, %s, %s)"
                connection.execute(statement, [queue, f"j{n}", json.dumps({"task": "note", "args": [f"j{n}"]})])
                if n % 2:
                    connection.rollback()
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.EndsWritten)) == 100)
    assert sorted(ran) == sorted(f"j{n}" for n in range(0, 200, 2))


async def test_relay_follows_a_change_of_the_lease_in_redis(
    relaying: Running, own: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_map, "_AGAIN", 0.0)
    monkeypatch.setattr(shard_map, "_SELDOM", 0.0)
    sender = BatchingSender(own.url)
    async with relaying(url=own.url) as recorder:
        async with asyncio.timeout(PATIENCE):
            while await sender.send(redis_server.lease()) is None:  # the relay has read that there is none
                pass
        await sender.send(redis_server.set_lease(10 * DEFAULT))
        changed = await recorder.wait(process_events.LeaseChanged)
        assert changed.lease == 10 * DEFAULT
    await sender.close()


async def test_rows_inserted_before_the_relay_started_are_scheduled(
    relaying: Running, queue: str, ledger_url: str, raw: Any
) -> None:
    insert(ledger_url, queue, "a", due="to_timestamp(1900000000.25)", priority=7, grp="g")
    async with relaying() as recorder:
        await recorder.wait(process_events.RowsScheduled)
    assert raw.zrange(f"evsched:{{{queue}}}:schedule", 0, -1, withscores=True) == [(b"a", 1900000000.25)]
    record = raw.hgetall(f"evsched:{{{queue}}}:job:a")
    assert (record[b"priority"], record[b"group"], record[b"ledger"]) == (b"7", b"g", b"1")


@pytest.mark.parametrize("retention", [0, 300])
@pytest.mark.parametrize("task", ["note", "fail"])
async def test_a_relay_that_died_before_it_committed_causes_no_second_run(
    relaying: Running,
    config: Config,
    app: App,
    queue: str,
    ledger_url: str,
    ran: list[str],
    sender: BatchingSender,
    retention: int,
    task: str,
) -> None:
    """It leaves a job that Redis has, and a row that does not say so. Meanwhile the job runs and ends."""
    payload = json.dumps({"task": task, "args": ["a"], "retention": retention})
    insert(ledger_url, queue, "a", payload=payload)
    await sender.send(Store(queue).relay([RowJob("a", payload.encode(), None, None, 0.0, 1)]))
    async with system(config, app) as running:
        await running.recorder.until(
            lambda: running.recorder.of(events.Completed if task == "note" else events.JobBuried)
        )
        async with relaying() as recorder:
            await recorder.wait(process_events.EndsWritten)
            await recorder.wait(process_events.EpochFound)
    assert ran == ["a"]
    assert states(ledger_url) == {"a": "done" if task == "note" else "dead"}


async def test_a_queue_that_redis_refuses_does_not_stop_the_others(
    relaying: Running, queue: str, ledger_url: str, raw: Any
) -> None:
    raw.set(f"evsched:{{{queue}-b}}:schedule", "x")
    async with relaying() as recorder:
        await recorder.wait(process_events.EpochFound)
        insert(ledger_url, f"{queue}-b", "a", critical=9)
        insert(ledger_url, queue, "b")
        await recorder.wait(process_events.RowsScheduled, lambda event: event.queue == queue)
        refused = await recorder.wait(process_events.CallRefused)
        assert refused.queue == f"{queue}-b"
        raw.delete(f"evsched:{{{queue}-b}}:schedule")
        await recorder.wait(process_events.RowsScheduled, lambda event: event.queue == f"{queue}-b")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO evsched_job (queue, id, payload, number) VALUES ('q', 'b', '{\"task\":\"t\"}', 1)",
        "UPDATE evsched_job SET number = 1",
    ],
)
def test_a_program_cannot_set_the_number_of_a_row(ledger_url: str, queue: str, statement: str) -> None:
    """Each job of a row needs a number of its own: the end of another one's would be taken for its end."""
    insert(ledger_url, queue, "a")
    with (
        psycopg.connect(ledger_url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.GeneratedAlways, match='"number"'),
    ):
        connection.execute(statement.encode())
    assert states(ledger_url) == {"a": "open"}


async def test_five_relays_schedule_each_row_once(
    relaying: Running, queue: str, ledger_url: str, raw: Any, recorder: Recorder
) -> None:
    count = 3000
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, id, payload, due) SELECT %s, 'j' || n, '{\"task\":\"t\"}', 'infinity' "
            "FROM generate_series(1, %s) AS n",
            [queue, count],
        )
    async with (
        relaying(recorder),
        relaying(recorder),
        relaying(recorder),
        relaying(recorder),
        relaying(recorder),
    ):
        await recorder.until(lambda: sum(one.count for one in recorder.of(process_events.RowsScheduled)) == count)
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == count


async def test_the_result_of_a_job_is_there_right_after_its_commit(
    relaying: Running, config: Config, app: App, queue: str, ledger_url: str
) -> None:
    """For a new id, and for one whose earlier job has left a result."""

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with await psycopg.AsyncConnection.connect(ledger_url) as connection:
        client = app.client  # the worker gives the app another one
        first = await double.using(id="a").enqueue_in(connection, 1)
        await connection.commit()
        waiting = asyncio.ensure_future(first.result(60))
        with pytest.raises(TimeoutError, match="did not come to Redis in time"):
            await first.result(0.05)
        async with relaying() as recorder, system(config, app):
            assert await waiting == 2
            await recorder.wait(process_events.EndsWritten)
            second = await double.using(id="a").enqueue_in(connection, 2)
            await connection.commit()
            assert await second.result(60) == 4
    await client.close()
    await app.close()
