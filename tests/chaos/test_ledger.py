"""The ledger: relays are killed, and Redis loses all its data. Each transaction that commits is one job, done once."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.chaos.app import app, work
from tests.chaos.conftest import Fleet
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

TRANSACTIONS = 10_000
RELAYS = 3
SCHEDULE = "evsched:{chaos}:schedule"
INSERT = "INSERT INTO evsched_job (queue, id, payload, due, critical) VALUES (%s, %s, %s, now(), %s)"


def count(url: str, condition: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(f"SELECT count(*) FROM evsched_job WHERE {condition}".encode()).fetchone()
    assert row is not None
    return row[0]


def wait_for(url: str, condition: str, wanted: int, limit: float) -> float:
    """Wait until so many rows meet a condition; return how long that took."""
    begin = time.monotonic()
    while (found := count(url, condition)) != wanted:
        assert time.monotonic() - begin < limit, f"{found} of {wanted}: {condition}"
        time.sleep(0.1)
    return time.monotonic() - begin


@pytest.mark.timeout(240)
def test_killed_relays_neither_lose_nor_double_a_commit(fleet: Fleet, ledger_url: str) -> None:
    fleet.start("dispatcher")
    fleet.start("worker", "tests.chaos.app:app", "--concurrency", "100")
    relays = [fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url) for _ in range(RELAYS)]
    payload = json.dumps({"task": "work", "args": [0.001], "retention": 0})
    numbers, inserting = itertools.count(), threading.Event()

    def insert() -> None:
        with psycopg.connect(ledger_url) as connection:
            while (n := next(numbers)) < TRANSACTIONS:
                connection.execute(INSERT, ["chaos", f"t{n}", payload, 0])
                if n % 2:
                    connection.rollback()
                else:
                    connection.commit()
                time.sleep(0.004)

    def kill() -> int:
        rng, kills = random.Random(7), 0
        while not inserting.is_set():
            time.sleep(rng.uniform(0.1, 0.7))
            victim = rng.randrange(RELAYS)
            relays[victim].kill()
            relays[victim].wait()
            relays[victim] = fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url)
            kills += 1
        return kills

    with ThreadPoolExecutor(5) as threads:
        killing = threads.submit(kill)
        for done in [threads.submit(insert) for _ in range(4)]:
            done.result()
        inserting.set()
        kills = killing.result()
    wait_for(ledger_url, "state = 'done'", TRANSACTIONS // 2, 180)
    runs = Counter(job for what, job, *_ in fleet.lines() if what == "start")
    assert kills > 10
    assert runs == Counter({f"t{n}": 1 for n in range(0, TRANSACTIONS, 2)})
    assert count(ledger_url, "true") == TRANSACTIONS // 2


def status(fleet: Fleet, url: str) -> Any:
    command = [sys.executable, "-m", "evsched", "ledger", "status", "--json"]
    environment = {**os.environ, "EVSCHED_URL": fleet.url, "EVSCHED_LEDGER_URL": url}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.timeout(240)
def test_ledger_survives_a_minute_without_redis(own: EmbeddedRedis, tmp_path: Path, ledger_url: str) -> None:
    fleet = Fleet(own.url, tmp_path / "oracle")
    try:
        fleet.start("dispatcher")
        fleet.start("worker", "tests.chaos.app:app", "--concurrency", "100")
        for _ in range(2):
            fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url)
        payload = json.dumps({"task": "work", "args": [0.001]})
        with psycopg.connect(ledger_url, autocommit=True) as connection:
            connection.execute(INSERT, ["chaos", "before", payload, 0])
            wait_for(ledger_url, "state = 'done'", 1, 60)
            own.stop()
            begin, seen = time.monotonic(), [0.0]
            for n in range(600):
                connection.execute(INSERT, ["chaos", f"t{n}", payload, 0])
                time.sleep(0.1)
                if n % 150 == 149:
                    found = status(fleet, ledger_url)
                    assert found["waiting"]["rows"] == n + 1
                    seen.append(found["waiting"]["seconds"])
                    assert seen[-1] == pytest.approx(time.monotonic() - begin, abs=5)
            own.start()
            took = wait_for(ledger_url, "state = 'done'", 601, 120)
        print(f"rows waited for {seen[-1]:.0f} s, and were done {took:.1f} s after Redis was back")
        assert seen == sorted(seen)
        assert status(fleet, ledger_url)["waiting"]["rows"] == 0
        runs = Counter(job for what, job, *_ in fleet.lines() if what == "start")
        assert runs == Counter(["before", *(f"t{n}" for n in range(600))])
    finally:
        fleet.stop()


@pytest.fixture
def client(server: EmbeddedRedis) -> Any:
    return plain_client(server.url)


@pytest.mark.timeout(300)
def test_five_relays_restore_each_row_once_after_a_flush_critical_first(
    fleet: Fleet, ledger_url: str, client: Any
) -> None:
    rows, critical = 100_000, 5_000
    for _ in range(5):
        fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url)
    fleet.start("dispatcher")
    fleet.start("worker", "tests.chaos.app:app", "--concurrency", "100")
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_job (queue, id, payload, due, critical) SELECT 'chaos', 'f' || n, %s, 'infinity', "
            "CASE WHEN n %% %s = 0 THEN 1 ELSE 0 END FROM generate_series(1, %s) AS n",
            [json.dumps({"task": "work", "args": [0]}), rows // critical, rows],
        )
        wait_for(ledger_url, "epoch <> ''", rows, 120)
        before = connection.execute("SELECT max(scheduled_at) FROM evsched_job").fetchone()
        assert before is not None
        old = client.get("evsched:{}:epoch").decode()
        client.flushall()
        connection.execute(INSERT, ["chaos", "due", json.dumps({"task": "work", "args": [0]}), 1])
        took = wait_for(ledger_url, f"state = 'open' AND epoch NOT LIKE '{old}%'", rows, 180)
        assert client.zcard("evsched:{chaos}:schedule") == rows
        wait_for(ledger_url, "id = 'due' AND state = 'done'", 1, 30)
        (last, ahead) = connection.execute(
            "WITH last AS (SELECT max(scheduled_at) AS at FROM evsched_job WHERE critical = 1 AND state = 'open') "
            "SELECT extract(epoch FROM last.at - %s)::float8, (SELECT count(*) FROM evsched_job "
            "WHERE critical = 0 AND scheduled_at < last.at) FROM last",
            before,
        ).fetchone() or (0.0, 0)
    print(f"critical rows after {last:.2f} s, all after {took:.2f} s")
    assert ahead <= 5 * 2 * 250, "each relay may have begun other rows while one wrote the last critical ones"
    assert [job for what, job, *_ in fleet.lines() if what == "start"] == ["due"]


@pytest.mark.timeout(300)
def test_only_committed_changes_apply_across_relay_kills_and_a_flush(
    fleet: Fleet, ledger_url: str, client: Any
) -> None:
    """Jobs that are never due are moved, made due, and cancelled, some of them in transactions that are rolled back."""
    per_thread, changes = 400, 300
    fleet.start("dispatcher")
    fleet.start("worker", "tests.chaos.app:app", "--concurrency", "100")
    relays = [fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url) for _ in range(RELAYS)]
    changing = threading.Event()

    def change(thread: int) -> dict[str, float | None]:
        """Return the due of each job as it was committed last, None if it was cancelled."""
        rng, dues = random.Random(thread), dict[str, float | None]()
        with psycopg.connect(ledger_url) as connection:
            for n in range(per_thread):
                job_id = f"c{thread}-{n}"
                work.using(id=job_id, due=math.inf).enqueue_in_sync(connection, 0.001)
                dues[job_id] = math.inf
            connection.commit()
            for _ in range(changes):
                changed = dict[str, float | None]()
                far = sorted(job_id for job_id, due in dues.items() if due)
                for job_id in rng.sample(far, min(2, len(far))):
                    changed[job_id] = rng.choice([None, 0.0, 4e9 + rng.randrange(1000), math.inf])
                    if (due := changed[job_id]) is None:
                        app.job(job_id).cancel_in_sync(connection)
                    else:
                        app.job(job_id).reschedule_in_sync(connection, due)
                if rng.random() < 0.3:
                    connection.rollback()
                else:
                    connection.commit()
                    dues |= changed
                time.sleep(0.004)
        return dues

    def kill() -> None:
        rng = random.Random(7)
        while not changing.is_set():
            time.sleep(rng.uniform(0.1, 0.7))
            victim = rng.randrange(RELAYS)
            relays[victim].kill()
            relays[victim].wait()
            relays[victim] = fleet.start("ledger", "run", EVSCHED_LEDGER_URL=ledger_url)

    with ThreadPoolExecutor(5) as threads:
        killing = threads.submit(kill)
        working = [threads.submit(change, thread) for thread in range(4)]
        until = time.monotonic() + PATIENCE
        while (old := client.get("evsched:{}:epoch")) is None:
            assert time.monotonic() < until, "no relay has come"
            time.sleep(0.1)
        client.flushall()
        dues = {job_id: due for done in working for job_id, due in done.result().items()}
        changing.set()
        killing.result()
    run, cancelled = ([job_id for job_id, due in dues.items() if due == wanted] for wanted in (0.0, None))
    wait_for(ledger_url, "state = 'done'", len(run), 120)
    wait_for(ledger_url, "state = 'cancelled'", len(cancelled), 120)
    wait_for(ledger_url, f"state = 'open' AND (epoch = '' OR epoch LIKE '{old.decode()}%')", 0, 60)
    assert {job for what, job, *_ in fleet.lines() if what == "start"} == set(run)
    waiting = {member.decode(): due for member, due in client.zrange(SCHEDULE, 0, -1, withscores=True)}
    assert waiting == {job_id: due for job_id, due in dues.items() if due}
    print(f"{len(run)} run, {len(cancelled)} cancelled, {len(waiting)} wait")
