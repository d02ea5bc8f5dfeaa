"""The history for long: each end is one row of the ledger, and searches there find the same as in Redis."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import DictRow, dict_row

from evsched import HistoryFilter, process_events
from evsched.client.client import Client, SyncClient
from evsched.jobs.job import Buried, Done
from evsched.ledger.run_table import DAY
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.ledger.conftest import Running
from tests.support.cli import Cli, terminate
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.topology import pause
from tests.support.web import get

CONF = Path(__file__).parents[2] / "redis.conf"

Ends = Callable[..., None]

OUTCOMES: tuple[Literal["dead", "expired"], ...] = ("dead", "expired")


@pytest.fixture
def end(server: EmbeddedRedis, queue: str) -> Ends:
    """Return a function that ends jobs by cancelling them."""
    return ending(server, queue)


def ending(server: EmbeddedRedis | Cluster, queue: str) -> Ends:
    def end(*ids: str, at: float | None = None, **payload: Any) -> None:
        sender, store = SyncSender(server.url), Store(queue).at(at)
        text = json.dumps({"task": "t"} | payload).encode()
        for job_id in ids:
            sender.send(store.enqueue([New(job_id, text, due=4e9)]))
            sender.send(store.cancel(job_id))
        sender.close()

    return end


def rows(url: str, columns: str = "id") -> list[Any]:
    """Return the rows of the table, in the order of their ends."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(f"SELECT {columns} FROM evsched_run ORDER BY ended, entry, place".encode())
        return [row[0] if len(row) == 1 else row for row in found.fetchall()]


def written(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.RunsWritten))


async def test_each_end_is_one_row_whatever_redis_keeps(
    writing: Running, end: Ends, queue: str, ledger_url: str, raw: Any
) -> None:
    end("a", tags=["x"])
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 1)
        end("b")
        await recorder.until(lambda: written(recorder) == 2)
        raw.delete(f"evsched:{{{queue}}}:history")
        end("c", "d")
        await recorder.until(lambda: written(recorder) == 4)
    async with writing() as recorder:  # the next one goes on behind them
        end("e")
        await recorder.until(lambda: written(recorder) == 1)
    assert rows(ledger_url, "id, task, outcome, tags")[0] == ("a", "t", "cancelled", ["x"])
    assert rows(ledger_url) == ["a", "b", "c", "d", "e"]
    assert not recorder.of(process_events.RunsMissed)


async def test_ends_that_get_the_ids_of_lost_ones_are_written(
    writing: Running, end: Ends, queue: str, ledger_url: str, raw: Any
) -> None:
    key = f"evsched:{{{queue}}}:history"
    end("a")
    before = raw.dump(key)
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 1)
        end("b", "c")
        await recorder.until(lambda: written(recorder) == 3)
        # As after a restart: the stream lacks its last moments, and all connections are new.
        raw.restore(key, 0, before, replace=True)
        end("d")
        raw.client_kill_filter(_type="normal", skipme=True)
        await recorder.until(lambda: written(recorder) == 4)
        end("e", "f")
        await recorder.until(lambda: written(recorder) == 6)
    assert rows(ledger_url) == ["a", "b", "c", "d", "e", "f"]
    assert not recorder.of(process_events.RunsMissed)


async def test_flushed_redis_costs_no_end(
    writing: Running, own: EmbeddedRedis, client: Any, ledger_url: str, queue: str
) -> None:
    end = ending(own, queue)
    end("a", "b")
    async with writing(url=own.url) as recorder:
        await recorder.until(lambda: written(recorder) == 2)
        client.flushall()
        end("c")
        await recorder.until(lambda: written(recorder) == 3)
        own.stop()
        own.start()
        end("d")
        await recorder.until(lambda: written(recorder) == 4)
    assert rows(ledger_url) == ["a", "b", "c", "d"]


async def test_ends_that_redis_no_longer_has_are_counted(
    writing: Running, end: Ends, queue: str, ledger_url: str, server: EmbeddedRedis, raw: Any
) -> None:
    end("a")
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 1)
    sender = SyncSender(server.url)
    sender.send(Store(queue).limit({"history": 3}))
    end(*(f"j{n}" for n in range(10)))
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 3)
    assert [one.count for one in recorder.of(process_events.RunsMissed)] == [7]
    raw.delete(f"evsched:{{{queue}}}:history")
    end(*(f"k{n}" for n in range(5)))
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 3)
    assert [one.count for one in recorder.of(process_events.RunsMissed)] == [2]
    assert rows(ledger_url) == ["a", "j7", "j8", "j9", "k2", "k3", "k4"]
    sender.close()


async def test_one_process_writes_and_another_takes_over(writing: Running, end: Ends, ledger_url: str) -> None:
    second = Recorder()
    async with AsyncExitStack() as stack:
        async with writing() as first:
            await first.wait(process_events.HistoryWrites)
            await stack.enter_async_context(writing(second))
            await second.wait(process_events.HistoryStandsBy)
            end("a")
            await first.until(lambda: written(first) == 1)
        end("b")
        await second.until(lambda: written(second) == 1)
        third = await stack.enter_async_context(writing())
        await third.wait(process_events.HistoryStandsBy)
        with psycopg.connect(ledger_url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        await third.wait(process_events.HistoryWrites)
        end("c")
        await third.until(lambda: written(third) == 1)
    assert not second.of(process_events.RunsWritten)[1:]
    assert rows(ledger_url) == ["a", "b", "c"]


async def test_hostile_entries_and_keys_stop_no_other(
    writing: Running, end: Ends, queue: str, ledger_url: str, server: EmbeddedRedis, raw: Any
) -> None:
    key, other = f"evsched:{{{queue}}}:history", f"{queue}-other"
    raw.set(f"evsched:{{{other}}}:history", "x")
    good = '[["a\\u0000",["t"],null,null,1]]'
    for ended, jobs in (
        ("inf", good),
        ("-1", good),
        ("1e300", good),
        ("nan", good),
        ("1e10", good),
        (b"\xff", b"\xff"),
        ("1", '[["a",["\\ud800"],1e300,-5,1]]'),
    ):
        raw.xadd(key, {"outcome": "done\0", "worker": b"\xff", "ended": ended, "jobs": jobs})
    moment = raw.time()[0]
    raw.xadd(
        key, {"outcome": "done\0", "ended": f"{moment}", "jobs": '[["b",["t"],1e300,-5,1000000000000000000,"\\u0000"]]'}
    )
    raw.xadd(key, {"outcome": "done", "ended": f"{moment}", "jobs": f'[["c",["t"],null,null,{10**30}]]'})
    raw.xadd(key, {"outcome": "done", "ended": f"{moment}", "jobs": '[["d",["t"],1,2,9]]'}, id=f"{2**64 - 1}-1")
    async with writing(queues=(queue, other)) as recorder:
        await recorder.wait(process_events.RunsWritten)
        await recorder.wait(process_events.CallRefused, lambda one: one.queue == other)
        raw.delete(key, f"evsched:{{{other}}}:history")
    async with writing(queues=(queue, other)) as recorder:
        ending(server, other)("e")
        end("f")
        await recorder.until(lambda: written(recorder) == 2)
        assert not recorder.of(process_events.LedgerDown)
    assert rows(ledger_url, "id, outcome, grp")[0] == ("b", "done\\x00", "\\x00")
    assert sorted(rows(ledger_url))[-2:] == ["e", "f"]


async def test_old_days_and_old_jobs_are_pruned(
    writing: Running, end: Ends, queue: str, ledger_url: str, raw: Any
) -> None:
    now = raw.time()[0]
    for days in (0, 3, 9, 40):
        end(f"d{days}", at=now - days * DAY)
    states = {"done": 9, "dropped": 9, "dead": 9, "open": 9, "cancelled": 3}
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        for state, days in states.items():
            connection.execute(
                "INSERT INTO evsched_job (queue, id, payload, state, finished_at, due) "
                "VALUES (%s, %s, '{\"task\":\"t\"}', %s, now() - %s * interval '1 day', 'infinity')",
                [queue, state, state, days],
            )
        async with writing(keep=20 * DAY) as recorder:
            await recorder.until(lambda: written(recorder) == 3)
        assert rows(ledger_url) == ["d9", "d3", "d0"]
        async with writing(keep=5 * DAY) as recorder:
            pruned = await recorder.wait(process_events.LedgerPruned)
        assert (pruned.days, pruned.jobs) == (1, 2)
        assert rows(ledger_url) == ["d3", "d0"]
        left = connection.execute("SELECT id FROM evsched_job ORDER BY id").fetchall()
        ahead = connection.execute(
            "SELECT to_regclass('evsched_run_' || to_char(now() AT TIME ZONE 'UTC' + interval '2 days', 'YYYYMMDD'))"
        ).fetchall()
    assert [row[0] for row in left] == ["cancelled", "dead", "open"]
    assert ahead != [(None,)]


def make_ends(server: EmbeddedRedis, queue: str, rng: random.Random, now: float, many: int) -> None:
    """End jobs in all ways: in batches, with and without a run, with names and times at random."""
    sender, store = SyncSender(server.url), Store(queue)
    for n in range(many):
        # Ends follow each other, some in the same moment, as on a clock; the last of them now.
        ended = now - (many - n) // 2 * 3000.25
        began = round(ended - rng.choice([0, 0.001, 0.5, 70.25]), 6)
        due = round(began - rng.choice([0, 0.001, 0.5, 3.75, 9000]), 6)
        jobs = list[New]()
        for at in range(rng.randrange(1, 4)):
            tags = rng.sample(["x", "y", "patient:42", 'a"b\\'], rng.randrange(3))
            payload = json.dumps({"task": rng.choice(["t", "mail.send", "ü"]), "tags": tags}).encode()
            job_id = f"j{n}-{at}" if at or rng.random() < 0.6 else "same"
            jobs.append(New(job_id, payload, due=due, group=rng.choice([None, "g"])))
        sender.send(store.at(due).enqueue(jobs))
        if rng.random() < 0.2:
            for job in jobs:
                sender.send(store.at(ended).cancel(job.id))
            continue
        sender.send(store.at(due).dispatch(limit=100, cap=10_000))
        runs = sender.send(store.at(began).start("w", (), hold=9, lease=15)).jobs
        after = store.at(ended)
        if rng.random() < 0.5:
            error = rng.choice(["lib.Timeout", "Timeout", "a.b.Other", ""])
            outcome = rng.choice(OUTCOMES)
            sender.send(after.bury("w", [(run, Buried("x", False, outcome=outcome, error=error)) for run in runs]))
            sender.send(after.drop([run.id for run in runs]))
        else:
            label = json.dumps(["t", "x"]).encode()
            sender.send(after.complete("w", [(run, Done(b"1", 0.0, False, label=label)) for run in runs]))
    sender.close()


def some_filter(rng: random.Random, now: float) -> dict[str, Any]:
    """Return the conditions of a filter, each of them in some."""
    values: dict[str, list[Any]] = {
        "id": ["same", "j3-0", "none"],
        "task": ["t", "mail.send", "ü", "v"],
        "group": ["g", "h"],
        "outcome": ["done", "dead", "expired", "cancelled"],
        "tag": ["x", 'a"b\\', "patient:42", "z"],
        "error": ["Timeout", "lib.Timeout", "b.Other", "Other", "imeout"],
        "since": [now - 6000.5, now - 50_000],
        "until": [now - 6000.5, now - 50_000],
    }
    return {name: rng.choice(some) for name, some in values.items() if rng.random() < 0.2}


@pytest.mark.seeded
async def test_searches_in_the_ledger_and_in_redis_have_the_same_answers(
    writing: Running, queue: str, ledger_url: str, server: EmbeddedRedis, raw: Any
) -> None:
    rng, now = random.Random(int(os.environ.get("EVSCHED_TEST_SEED", "1"))), float(raw.time()[0])
    make_ends(server, queue, rng, now, 60)
    client = Client(server.url)
    asked = [(some_filter(rng, now), rng.choice([1, 5, 1000])) for _ in range(150)]
    spans = [{"since": now - rng.choice([7200, 100_000]), "task": rng.choice([None, "t", "z"])} for _ in range(20)]

    async def answers(**more: Any) -> list[Any]:
        found = [await client.history(queue, HistoryFilter(**one), limit=limit, **more) for one, limit in asked]
        return [*found, *[await client.history_counts(queue, **span, **more) for span in spans]]

    alone = await answers()
    assert len({len(found) for found in alone}) > 5
    async with writing() as recorder, await psycopg.AsyncConnection.connect(ledger_url, autocommit=True) as ledger:
        assert await answers(ledger=ledger) == alone  # nothing is written yet, or a part, or all
        total = len(await client.history(queue, limit=1000))
        await recorder.until(lambda: written(recorder) == total)
        assert await answers(ledger=ledger) == alone
        hours = raw.keys(f"evsched:{{{queue}}}:hour:*")
        raw.delete(f"evsched:{{{queue}}}:history", *hours)
        assert await client.history(queue) == []
        assert await answers(ledger=ledger) == alone
    await client.close()


def writer(cli: Cli) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*cli.command("ledger", "history"), "--log-level", "CRITICAL"], env=cli.environment)


@pytest.mark.seeded
async def test_writers_that_are_killed_write_each_end_once(
    end: Ends, queue: str, ledger_url: str, server: EmbeddedRedis, tmp_path: Path, writing: Running
) -> None:
    rng, cli = random.Random(int(os.environ.get("EVSCHED_TEST_SEED", "1"))), Cli(server.url, tmp_path)
    cli.environment |= {"EVSCHED_LEDGER_URL": ledger_url, "EVSCHED_QUEUES": queue}
    ids = [f"j{n}" for n in range(300)]

    def end_all() -> None:
        for job_id in ids:
            end(job_id)
            pause()

    ending, kills = threading.Thread(target=end_all), 0
    ending.start()
    while ending.is_alive():
        child = writer(cli)
        # Killed while it starts, or while it writes the next rows, or the ones after them.
        for _ in range(rng.choice([0, 1, 2])):
            before = len(rows(ledger_url))
            while ending.is_alive() and len(rows(ledger_url)) == before:
                pause()
        child.kill()
        child.wait()
        kills += 1
    assert kills > 2
    async with writing() as recorder:
        await recorder.wait(process_events.HistoryWrites)
        end("last")
        async with asyncio.timeout(PATIENCE):
            while "last" not in rows(ledger_url):
                await asyncio.to_thread(pause)
    assert rows(ledger_url) == [*ids, "last"]
    assert not recorder.of(process_events.RunsMissed)


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path, ledger_url: str) -> Cli:
    cli = Cli(server.url, tmp_path)
    cli.environment["EVSCHED_LEDGER_URL"] = ledger_url
    return cli


async def test_commands_search_in_the_ledger(writing: Running, cli: Cli, end: Ends, queue: str, raw: Any) -> None:
    def read(*words: str) -> Any:
        return cli.json("history", *words, "--queue", queue)

    end("a", "b", tags=["x"])
    before = await asyncio.to_thread(lambda: (read(), read("counts")))
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 2)
    raw.delete(*raw.keys(f"evsched:{{{queue}}}:*"))
    raw.srem("evsched:{}:queues", queue)
    assert [job["id"] for job in before[0]] == ["b", "a"]
    assert await asyncio.to_thread(lambda: (read(), read("counts"))) == before
    assert [job["id"] for job in read("--limit", "1", "--tag", "x")] == ["b"]
    assert {job["id"] for job in cli.json("history", "--tag", "x") if job["queue"] == queue} == {"a", "b"}
    lost = cli.run("history", "--queue", queue, EVSCHED_LEDGER_URL="postgresql:///none?host=/none")
    assert "the ledger was not searched, only the last ends, which Redis has: " in lost.stderr


@pytest.mark.extra
def test_commands_do_without_tables_that_are_not_migrated(cli: Cli, end: Ends, queue: str, ledger_url: str) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("DROP TABLE evsched_run, evsched_run_position")
    end("a")
    done = cli.run("history", "--queue", queue)
    assert done.returncode == 0
    assert "evsched ledger migrate" in done.stderr
    assert done.stdout.splitlines()[1].split("\t")[2] == "a"


@pytest.mark.parametrize("keep", ["1h", "soon"])
def test_history_is_kept_for_a_day_at_least(cli: Cli, keep: str) -> None:
    done = cli.run("ledger", "history", "--keep", keep)
    assert done.returncode == 2
    assert keep in done.stderr


async def test_connections_of_other_libraries_search_too(
    writing: Running, end: Ends, queue: str, ledger_url: str, server: EmbeddedRedis, raw: Any
) -> None:
    end("a")
    async with writing() as recorder:
        await recorder.until(lambda: written(recorder) == 1)
    raw.delete(f"evsched:{{{queue}}}:history")
    client = SyncClient(server.url)
    engine = sqlalchemy.create_engine(ledger_url.replace("postgresql://", "postgresql+psycopg://"))
    with psycopg.Connection[DictRow].connect(ledger_url, row_factory=dict_row) as one, engine.connect() as two:
        for ledger in (one, two):
            (job,) = client.history(queue, HistoryFilter(error=None, since=timedelta(days=1)), ledger=ledger)
            (counted,) = client.history_counts(queue, ledger=ledger)
            assert (job.id, job.outcome, counted.cancelled) == ("a", "cancelled", 1)
            (early,) = client.history(queue, HistoryFilter(since=-inf, until=1e300), ledger=ledger)
            assert (early, client.history_counts(queue, since=-inf, ledger=ledger)) == (job, [counted])
    client.close()
    engine.dispose()


async def test_writer_under_its_own_user_serves_its_page(own: EmbeddedRedis, cli: Cli, queue: str, client: Any) -> None:
    (rules,) = re.findall(r"^# user ledger (.*)$", CONF.read_text(), re.MULTILINE)
    client.execute_command("ACL", "SETUSER", "ledger", *rules.split())
    cli.environment["EVSCHED_URL"] = own.url.replace("redis://", "redis://ledger:change-me@")
    client.sadd("evsched:{}:queues", queue)
    ending(own, queue)("a")
    with cli.started("ledger", "history", "--metrics-port", "0") as (child, log):
        url = (await asyncio.to_thread(log.until, "Listening"))["url"]
        page = ""
        async with asyncio.timeout(PATIENCE):
            while f'evsched_ledger_runs_written_total{{queue="{queue}"}} 1.0' not in page:
                _, page = await get(f"{url}/metrics")
        assert (await get(f"{url}/readyz"))[0] == 200
        assert await asyncio.to_thread(terminate, child) == 0
    assert "evsched_ledger_history_up 1.0" in page
    assert "evsched_ledger_up NaN" in page
    assert client.execute_command("ACL", "LOG") == []


@pytest.mark.extra
async def test_all_nodes_of_a_cluster_are_read(writing: Running, ledger_url: str) -> None:
    with Cluster() as cluster:
        names = ("mail", "mail:0", "mail:1", "mail:2", "other", "third")
        ends = {name: ending(cluster, name) for name in names}
        for name in names[:-1]:
            ends[name](f"{name}-1")
        async with writing(url=cluster.url, queues=names) as recorder:
            await recorder.until(lambda: written(recorder) == 5)
            for name in names:
                ends[name](f"{name}-2")
            await recorder.until(lambda: written(recorder) == 11)
    assert Counter(rows(ledger_url)) == Counter([f"{name}-2" for name in names] + [f"{name}-1" for name in names[:-1]])
