"""A real Prometheus scrapes a dispatcher, a worker and a relay during failures: every panel and rule has data.

With EVSCHED_TEST_PICTURE=FILE the run is longer, and the data of the overview's panels is written to that file, which
grafana/picture draws.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from evsched import App
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli, Log, terminate
from tests.support.prometheus import PROGRAM, Prometheus
from tests.support.web import get

pytestmark = pytest.mark.anyio

GRAFANA = Path(__file__).parents[2] / "grafana"
PICTURE = os.environ.get("EVSCHED_TEST_PICTURE")
STEP = "0.25"
"""Seconds between the times for which a query is evaluated. Scrapes are further apart, so each of them counts."""
SECONDS = 90 if PICTURE else 6
WAVES = 16
"""After so many waves of the load, jobs of each kind were enqueued."""

TASKS = """
import asyncio, random
from evsched import App, GiveUp, Retry

app = App()

@app.task
async def send_mail(n: int) -> int:
    await asyncio.sleep(random.uniform(0.005, 0.05))
    return n

@app.task(retry=Retry(attempts=3, interval=0.2, jitter=0.2))
async def charge(n: int) -> int:
    if random.random() < 0.4:
        raise ConnectionError("the bank does not answer")
    return n

@app.task
async def ship(n: int) -> None:
    raise GiveUp("the address is unknown")

@app.task
async def report() -> None:
    await asyncio.sleep(0.2)
"""


@pytest.fixture
def redis() -> Generator[EmbeddedRedis]:
    kind: Kind | None = os.environ.get("EVSCHED_TEST_SERVER")  # pyright: ignore[reportAssignmentType]
    with EmbeddedRedis(find_server(kind)) as server:
        yield server


def start(cli: Cli, *words: str, port: str = "0") -> tuple[subprocess.Popen[str], str]:
    """Start a service; return it, and the address of its metrics port."""
    child = cli.start(*words, "--metrics-port", port, environment={"EVSCHED_SHUTDOWN_GRACE": "0.5"})
    url = Log(child).until("Listening")["url"]
    assert child.stderr is not None
    # Its further log must be read, or the pipe would fill up and block it.
    asyncio.get_running_loop().run_in_executor(None, child.stderr.read)
    return child, url.removeprefix("http://")


async def load(url: str, ledger: str, seconds: float) -> None:
    """Enqueue, in waves, jobs that succeed, jobs that fail and are retried, jobs that are dead, and rows.

    The ids of some rows are taken in Redis, so they are refused. On a slow machine it takes longer: each kind of job is
    enqueued, whatever a wave takes.
    """
    app = App(url)

    @app.task(name="send_mail")
    async def send_mail(n: int) -> None: ...
    @app.task(name="charge")
    async def charge(n: int) -> None: ...
    @app.task(name="ship")
    async def ship(n: int) -> None: ...
    @app.task(name="unknown")
    async def unknown(n: int) -> None: ...

    until = time.monotonic() + seconds
    n = 0
    while time.monotonic() < until or n < WAVES:
        n += 1
        await send_mail.using(delay=0.1).enqueue_many([(i,) for i in range(20 + 15 * (n % 20 > 12))])
        await charge.using(delay=0.05).enqueue_many([(i,) for i in range(5)])
        async with await AsyncConnection.connect(ledger) as connection:
            await send_mail.enqueue_in(connection, n)
            taken = send_mail.using(id=f"taken-{n}", on_conflict="keep", delay=3600)
            await taken.enqueue(n)
            await taken.enqueue_in(connection, n)
        if n % 8 == 0:
            await ship.enqueue(n)
            async with app.batch() as batch:
                await batch.add(ship, n)
        if n % 16 == 0:
            await unknown.enqueue(n)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
    await send_mail.using(delay=3600).enqueue(0)
    await app.close()


def lose_a_job(url: str) -> None:
    """Write the record of a job that is in no place."""
    sender = SyncSender(url)
    sender.send(Call(("HSET", "evsched:{default}:job:lost", "payload", "{}", "due", "5"), raw))
    sender.close()


def queries() -> dict[str, list[str]]:
    """Return the queries of the panels, by dashboard and title."""
    found = dict[str, list[str]]()
    for path in (GRAFANA / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] != "row":
                found[f"{path.stem}: {panel['title']}"] = [target["expr"] for target in panel["targets"]]
    return found


def filled(expr: str) -> str:
    """Return a query as Grafana sends it."""
    values = {"$job": ".*", "$queue": "default", "$task": ".*", "$__rate_interval": "5s"}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


@pytest.mark.extra
@pytest.mark.skipif(PROGRAM is None, reason="no prometheus (Debian: prometheus)")
async def test_every_panel_and_rule_has_data(redis: EmbeddedRedis, tmp_path: Path, ledger_url: str) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    cli = Cli(redis.url, tmp_path)
    assert cli.run("recurrences", "add", "nightly", "report", "--rule", "every 1").returncode == 0
    dispatcher, dispatches = start(cli, "dispatcher")
    worker, works = start(cli, "worker", "tasks:app", "--concurrency", "32")
    doctor, examines = start(cli, "doctor", "--watch", "--every", "0.1s")
    cli.environment["EVSCHED_LEDGER_URL"] = ledger_url
    relay, relays = start(cli, "ledger", "run")
    writer, writes = start(cli, "ledger", "history")
    targets = {
        "evsched-ledger": relays,
        "evsched-history": writes,
        "evsched-dispatcher": dispatches,
        "evsched-worker": works,
        "evsched-doctor": examines,
    }
    began = time.time()
    try:
        async with Prometheus(tmp_path, targets, GRAFANA / "prometheus/alerts.yml") as prometheus:
            await prometheus.until('up{job="evsched-worker"} == 1 and on () up{job="evsched-dispatcher"} == 1')
            await load(redis.url, ledger_url, SECONDS / 2)
            lose_a_job(redis.url)
            await prometheus.until('evsched_doctor_findings{check="orphan"} == 1')
            assert cli.run("pause", "default").returncode == 0
            await prometheus.until("evsched_queue_paused == 1")
            assert cli.run("resume", "default").returncode == 0
            redis.kill()
            await prometheus.until("max(evsched_redis_up) == 0")
            redis.start()
            await prometheus.until("min(evsched_redis_up) == 1")
            await load(redis.url, ledger_url, SECONDS / 2)
            await prometheus.until('evsched_queue_jobs{place="dead"} > 0')
            await prometheus.until("evsched_next_due_timestamp_seconds")
            to = time.time()
            empty = list[str]()
            for where, expressions in queries().items():
                for expr in expressions:
                    found = await prometheus.ask(
                        "query_range", query=filled(expr), start=f"{began}", end=f"{to}", step=STEP
                    )
                    if not found["result"]:
                        empty.append(f"{where}: {expr}")
            assert not empty
            for expr in rules():
                await prometheus.ask("query", query=expr)
            for page in targets.values():
                status, text = await get(f"http://{page}/metrics")
                assert status == 200
                checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=False)
                assert checked.returncode == 0
            if PICTURE:
                await write_picture(prometheus, Path(PICTURE), began, to)
    finally:
        assert [terminate(child) for child in (worker, dispatcher, doctor, relay, writer)] == [0] * 5


def rules() -> list[str]:
    """Return the expressions of all rules, including those over several lines."""
    text = (GRAFANA / "prometheus/alerts.yml").read_text()
    found = re.findall(r"expr: (?:\|\n((?: {10,}.*\n)+)|(.*)\n)", text)
    return [" ".join((many or one).split()) for many, one in found]


async def write_picture(prometheus: Prometheus, path: Path, began: float, to: float) -> None:
    dashboard = json.loads((GRAFANA / "dashboards/overview.json").read_text())
    panels = dict[str, dict[str, Any]]()
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            panels[str(panel["id"])] = {
                target["refId"]: await prometheus.ask(
                    "query_range", query=filled(target["expr"]), start=f"{began}", end=f"{to}", step="1"
                )
                for target in panel["targets"]
            }
    path.write_text(json.dumps({"from": began, "to": to, "step": 1, "panels": panels}))
