"""Each incident changes the colour of its tile on the overview's first screen within ten seconds.

A real Prometheus scrapes each second and answers the queries of the dashboard. The thresholds give the colour.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.service.test_prometheus import GRAFANA, filled, start
from tests.support.cli import Cli
from tests.support.clock import SetClock, server_with_clock
from tests.support.plain import plain_client
from tests.support.prometheus import PROGRAM, Prometheus

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus (Debian: prometheus)"),
]

TASKS = """
from evsched import App, GiveUp

app = App()

@app.task
async def work() -> None: ...

@app.task
async def fail() -> None:
    raise GiveUp("the address is unknown")
"""

FROM_DISPATCHERS = ("Overdue", "Overdue for", "Given up, 15 min", "Redis's clock off", "Redis's memory")


def port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


class Tiles:
    """The tiles of the first screen, as a Prometheus fills them."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        panels = json.loads((GRAFANA / "dashboards/overview.json").read_text())["panels"]
        first = next(panel["gridPos"]["y"] for panel in panels[1:] if panel["type"] == "row")
        self._panels = {panel["title"]: panel for panel in panels[1:] if panel["gridPos"]["y"] < first}
        assert {panel["type"] for panel in self._panels.values()} == {"stat"}
        self.still_bad = set[str]()
        """The tiles that are still bad after an incident is over, because they show the last minutes."""

    async def colour(self, title: str) -> str:
        panel = self._panels[title]
        value = await self._prometheus.value(filled(panel["targets"][0]["expr"]))
        assert value is not None, f"{title} shows nothing, or an old value"
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return next(step["color"] for step in reversed(steps) if step["value"] is None or value >= step["value"])

    async def bad(self) -> set[str]:
        return {title for title in self._panels if await self.colour(title) != "green"} - self.still_bad

    async def until_well(self, limit: float = 30) -> None:
        until = time.monotonic() + limit
        while bad := await self.bad():
            assert time.monotonic() < until, f"{bad} stay bad"
            await pause()

    async def turns(self, *titles: str) -> None:
        """Check that these tiles turn bad within ten seconds."""
        since = time.monotonic()
        while not set(titles) <= await self.bad():
            assert time.monotonic() < since + 10, f"{set(titles) - await self.bad()} did not turn bad"
            await pause()


async def pause() -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.3)


class Site:
    """Redis, a dispatcher and a worker, each on an address of its own that it keeps."""

    def __init__(self, redis: EmbeddedRedis, folder: Path) -> None:
        (folder / "tasks.py").write_text(TASKS)
        self._cli = Cli(redis.url, folder)
        self._words = {"dispatcher": ("dispatcher",), "worker": ("worker", "tasks:app")}
        self._ports = {name: port() for name in self._words}
        self._running = dict[str, subprocess.Popen[str]]()

    @property
    def targets(self) -> dict[str, str]:
        return {f"evsched-{name}": f"127.0.0.1:{number}" for name, number in self._ports.items()}

    def run(self, *words: str) -> None:
        assert self._cli.run(*words).returncode == 0

    def start(self, name: str) -> None:
        self._running[name], _ = start(self._cli, *self._words[name], port=self._ports[name])

    def kill(self, names: Collection[str] = ("dispatcher", "worker")) -> None:
        for name in names:
            if name in self._running:
                child = self._running.pop(name)
                child.kill()
                child.wait()
                assert child.stderr is not None
                child.stderr.close()


@asynccontextmanager
async def at_work(folder: Path) -> AsyncGenerator[tuple[Site, Tiles, EmbeddedRedis, SetClock, Any]]:
    """Start the whole system and wait until every tile is green; yield it."""
    with server_with_clock(folder) as (server, clock):
        raw = plain_client(server.url)
        running = Site(server, folder)
        try:
            for name in ("dispatcher", "worker"):
                running.start(name)
            async with Prometheus(folder, running.targets, GRAFANA / "prometheus/alerts.yml") as prometheus:
                await prometheus.until("count(up == 1) == 2")
                running.run("enqueue", "work")
                tiles = Tiles(prometheus)
                await tiles.until_well()
                yield running, tiles, server, clock, raw
        finally:
            running.kill()
            raw.close()


@pytest.mark.extra
async def test_an_incident_of_redis_or_of_the_queue_is_on_the_first_screen(tmp_path: Path) -> None:
    """The tile turns bad within ten seconds, and is green again when the incident is over."""
    async with at_work(tmp_path) as (running, tiles, server, clock, raw):
        await redis_and_queue(running, tiles, server, clock, raw)


async def redis_and_queue(running: Site, tiles: Tiles, server: EmbeddedRedis, clock: SetClock, raw: Any) -> None:
    clock.set(30)
    await tiles.turns("Redis's clock off")
    clock.set(0)
    await tiles.until_well()

    raw.config_set("maxmemory", int(raw.info("memory")["used_memory"] * 1.02))
    await tiles.turns("Redis's memory")
    raw.config_set("maxmemory", 0)
    await tiles.until_well()

    server.kill()
    await tiles.turns("Redis")
    server.start()
    await tiles.until_well()

    running.run("pause", "default")
    raw.zadd("evsched:{default}:schedule", {f'{{"task":"work","id":"{n}"}}': 0 for n in range(200)})
    await tiles.turns("Overdue")
    running.run("resume", "default")
    await tiles.until_well()


@pytest.mark.extra
async def test_an_incident_of_a_job_or_a_process_is_on_the_first_screen(tmp_path: Path) -> None:
    """The tile turns bad within ten seconds. Some tiles stay bad for a while after the incident is over."""
    async with at_work(tmp_path) as (running, tiles, _, _, raw):
        await jobs_and_processes(running, tiles, raw)


async def jobs_and_processes(running: Site, tiles: Tiles, raw: Any) -> None:
    running.run("enqueue", "fail")
    await tiles.turns("Given up, 15 min")
    tiles.still_bad.add("Given up, 15 min")
    await tiles.until_well()

    running.kill(["worker"])
    await tiles.turns("Workers", "Not answering")
    running.start("worker")
    await tiles.turns("Restarts, 5 min")
    tiles.still_bad.add("Restarts, 5 min")
    await tiles.until_well()

    tiles.still_bad.clear()
    running.kill(["dispatcher"])
    await tiles.turns("Dispatchers", "Not answering", *FROM_DISPATCHERS)
    assert "Missed, 15 min" not in await tiles.bad()
    now = float(raw.time()[0])
    payload = '{"task":"work"}'
    raw.hset("evsched:{default}:recurrence:r", mapping={"rule": "every 2", "payload": payload, "misfire": "skip"})
    raw.zadd("evsched:{default}:recurrences", {"r": now - 60})
    running.start("dispatcher")  # it counts the missed occurrences before the first scrape
    await tiles.turns("Missed, 15 min")
    assert {"Dispatchers", "Not answering"}.isdisjoint(await tiles.bad())
