"""The console with 200 queues: reading an open page costs a few commands, so that the page is some seconds old."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from evsched import keys
from evsched.console import doctor_pass, failed_jobs
from evsched.console.hour_counts import WEEK, HourCounts
from evsched.console.live import PAGE_RATE
from evsched.console.page import Visit
from evsched.console.rosters import Rosters
from evsched.console.users import Visitor
from evsched.console.views import VIEWS
from evsched.console.views import workers as workers_page
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import Browser, browsing
from tests.support.sent import Sent

pytestmark = pytest.mark.anyio

MANY = 200
READ = {view.path: view.read for view in VIEWS}


def fill(raw: Any, queue: str, count: int = MANY) -> list[str]:
    """Make queues with jobs in several places, a worker, a limit and counts of a day."""
    names, now = [f"{queue}-{n:03}" for n in range(count)], time.time()
    pipe = raw.pipeline(transaction=False)
    pipe.sadd(keys.QUEUES, *names)
    for name in names:
        root = keys.root(name)
        pipe.hset(keys.job(name, "a"), mapping={"payload": '{"task":"t"}', "due": now - 9})
        pipe.zadd(keys.schedule(name), {"a": now + 600})
        failed = {"payload": '{"task":"t"}', "error": "ValueError", "reason": "attempt 1 of 1: ValueError: x"}
        pipe.hset(keys.job(name, "dead"), mapping=failed)
        pipe.zadd(root + "dead", {"dead": now - 5})
        pipe.zadd(root + "leases", {"w-1-00000000-0.1.0": now + 600})
        for hour in range(int(now // 3600) - 3, int(now // 3600) + 1):
            pipe.hset(f"{root}hour:{hour}", "done 1 1 t", 3)
    pipe.execute()
    return names


def visit_of(browser: Browser) -> Visit:
    console = browser.console
    return Visit(console, console.client.metered(), Visitor("ann", "viewer"), QueryParams(), "")


async def read(browser: Browser, path: str) -> tuple[dict[str, Any], int]:
    """Read a page; return its values, and how many commands it took."""
    visit = visit_of(browser)
    return await READ[path](visit), visit.client.commands


async def test_first_page_of_many_queues_costs_a_few_commands(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    names = fill(raw, queue)
    async with browsing(server.url) as browser:
        values, _ = await read(browser, "/")
        assert len(values["rows"]) + len(values["more"]) == len(names)
        assert all(row.ended[-4:] == [3, 3, 3, 3] for row in values["rows"])
        browser.console._again = 0.0  # pyright: ignore[reportPrivateUsage] - the names are read again
        _, commands = await read(browser, "/")
        assert commands <= 10 * PAGE_RATE, "an open page is at most 10 s old"


async def test_page_of_the_workers_of_many_queues_costs_a_few_commands(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_page, "_SAME", 0.0)
    fill(raw, queue)
    async with browsing(server.url) as browser:
        values, _ = await read(browser, "/workers")
        (worker,) = values["workers"]
        assert len(worker.queues) == MANY
        assert worker.state[1] == "no answer"
        _, commands = await read(browser, "/workers")
        assert commands <= 15 * PAGE_RATE, "an open page is at most 15 s old"


@pytest.mark.one_server
@pytest.mark.extra
@pytest.mark.parametrize("path", ["/", "/workers", "/failures"])
async def test_each_command_of_a_page_counts(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(workers_page, "_SAME", 0.0)
    monkeypatch.setattr(failed_jobs, "_AGAIN", 0.0)

    async def examine(*_: object) -> None:
        pass

    monkeypatch.setattr(doctor_pass.DoctorPass, "_examine", examine)
    fill(raw, queue)
    async with browsing(server.url) as browser:
        await read(browser, path)  # the scripts are loaded
        with Sent(server.url) as sent:
            _, commands = await read(browser, path)
            assert len(sent.commands()) == commands


@pytest.mark.extra
async def test_doctor_is_paced_and_its_commands_count_for_the_page(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_pass, "_EXAMINING_RATE", 40.0)
    names = fill(raw, queue, 3)
    async with browsing(server.url) as browser:
        visit, begun = visit_of(browser), time.monotonic()
        examined = doctor_pass.doctor_pass(visit)
        examined.refresh(visit.client, names)
        task = examined._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        await task
        passed = time.monotonic() - begun
        examined.refresh(visit.client, names)
        assert {one.check for one in examined.found} >= {"no-dispatcher"}
        assert 4 < visit.client.commands <= 40 * passed + 10, "ten jobs of a queue are looked at together"


async def test_queue_at_rest_is_not_examined_again(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_jobs, "_AGAIN", 0.0)
    names = fill(raw, queue, 20)
    async with browsing(server.url) as browser:
        while not (values := (await read(browser, "/failures"))[0])["over"]:
            pass
        assert (values["dead"], values["oldest"] > 0) == (20, True)
        again, commands = await read(browser, "/failures")
        assert commands <= 8, "the figures of all queues, and their names"
        assert again["oldest"] > values["oldest"], "the counts are those of now"
        raw.zadd(keys.root(names[7]) + "dead", {"other": time.time()})
        raw.hset(keys.job(names[7], "other"), mapping={"payload": '{"task":"t"}', "error": "ValueError"})
        while (values := (await read(browser, "/failures"))[0])["counted"] == 20:
            pass
        assert sum(row.dead for row in values["rows"]) == 21


@pytest.mark.one_server
async def test_page_of_the_failures_of_many_busy_queues_costs_a_few_commands(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_jobs, "_AGAIN", 0.0)
    names, now = fill(raw, queue, MANY // 2), time.time()
    for name in names:
        raw.lpush(keys.root(name) + "processing:w-1-00000000-0.1.0", "a")
    async with browsing(server.url) as browser:
        while not (values := (await read(browser, "/failures"))[0])["over"]:
            pass
        assert values["counted"] == len(names)
        for name in names:
            raw.zadd(keys.root(name) + "dead", {"other": now})
            raw.hset(keys.job(name, "other"), mapping={"payload": '{"task":"t"}', "error": "ValueError"})
        spent = 0
        while values["counted"] < 2 * len(names):
            values, commands = await read(browser, "/failures")
            spent += commands
        assert spent <= 10 * PAGE_RATE, "an open page is at most 10 s old"


async def test_doctor_examines_many_queues_with_a_few_commands(
    server: EmbeddedRedis, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all of them stand still."""
    monkeypatch.setattr(doctor_pass, "_EXAMINING_RATE", 1e6)
    names, now = fill(raw, queue), time.time()
    for name in names:
        raw.hset(keys.root(name) + "recurrence:r", mapping={"rule": "@daily", "payload": '{"task":"t"}'})
        raw.zadd(keys.root(name) + "recurrences", {"r": now + 900})
    raw.hset(keys.root(names[7]) + "recurrence:r", "rule", "@never")
    raw.hset(keys.job(names[9], "a"), mapping={"unknown": f"{now - 60} {now + 600}", "reason": "no worker knows it"})
    raw.zadd(keys.root(names[9]) + "schedule", {"a": f"{now + 600}"})
    raw.set(keys.root(names[11]) + "schedule", "of a wrong type")
    raw.zadd(keys.schedule(names[13]), {"late": now - 60})
    async with browsing(server.url) as browser:
        visit = visit_of(browser)
        examined = doctor_pass.doctor_pass(visit)
        examined.refresh(visit.client, names)
        task = examined._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        await task
        found = {(one.check, one.where.split(",")[0]) for one in examined.found}
        expected = {("recurrence-broken", 7), ("unknown-task", 9), ("not-dispatched", 13)}
        assert found - {("no-dispatcher", "Redis")} == {(check, f"queue {names[at]}") for check, at in expected}
        examined.refresh(visit.client, names)
        assert visit.client.commands <= 180, "a pass takes less than 3 minutes"


@pytest.mark.one_server
async def test_week_of_many_queues_costs_a_few_commands(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    names, hour = fill(raw, queue), int(time.time() // 3600)
    async with browsing(server.url) as browser:
        client, counts = browser.console.client.metered(), HourCounts()
        week = await counts.week(client, names, hour, inf)
        assert [*week] == names
        assert {sum(one.jobs for counts in hours for one in counts) for hours in week.values()} == {12}
        assert client.commands <= MANY * WEEK / 400, "one for some 500 hours"
        client.commands = 0
        assert await counts.week(client, names, hour, inf) == week
        assert client.commands == 1, "the hours that are not over"


@pytest.mark.one_server
async def test_recurrences_of_many_queues_cost_a_few_commands(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    names = fill(raw, queue)
    for name in names:
        raw.hset(keys.root(name) + "recurrence:r", mapping={"rule": "@daily", "payload": '{"task":"t"}'})
        raw.zadd(keys.root(name) + "recurrences", {"r": time.time() + 900})
    async with browsing(server.url) as browser:
        while (values := (await read(browser, "/recurrences"))[0])["all"] < len(names):
            pass
        assert values["pending"] == 0
        client, found = browser.console.client.metered(), Rosters()
        while len(await found.look(client, names)) < len(names):
            pass
        assert client.commands <= 4, "a glance, and one for each 100 queues"
