"""The pages about recurrences: which need a look, when they run next, how they ran, and what can be done with them."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from html import unescape
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from evsched import keys
from evsched.client.client import Client
from evsched.console import rosters
from evsched.console.page import Visit
from evsched.console.users import Visitor
from evsched.console.views.recurrences import kept_records, rosters_of
from evsched.jobs.job import Buried, Done
from evsched.recurrence.recurrence import Declared
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.browsing import browsing, words

PAYLOAD = b'{"task":"report","kwargs":{"token":"abc123","week":7},"redact":["token"]}'


@pytest.fixture
async def client(server: EmbeddedRedis) -> AsyncGenerator[Client]:
    client = Client(server.url)
    yield client
    await client.close()


async def declare(client: Client, queue: str, *names: str, rule: str = "0 2 * * *", **options: Any) -> None:
    for name in names:
        await client.declare(queue, Declared(name=name, payload=PAYLOAD, rule=rule, **options))


async def run(sender: BatchingSender, store: Store, name: str, end: Done | Buried) -> None:
    """Trigger a recurrence, and end the run."""
    now = time.time()
    assert await sender.send(store.at(now).trigger(name, f"{now:.6f}"))
    await sender.send(store.at(now).dispatch(limit=9, cap=99))
    runs = (await sender.send(store.at(now).start("w", (), hold=9, lease=15))).jobs
    if isinstance(end, Done):
        assert await sender.send(store.at(now + 2).complete("w", [(one, end) for one in runs])) == []
    else:
        assert await sender.send(store.at(now + 2).bury("w", [(one, end) for one in runs])) == []


DONE = Done(b"1", 3600, False)
FAILED = Buried("attempt 1 of 1: ValueError: 03230", False, error="ValueError", location="/srv/claims.py:141 in price")


async def test_recurrences_that_need_a_look_are_first(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client, raw: Any
) -> None:
    await declare(client, queue, "calm")
    await declare(client, queue, "fails", rule="0 17 * * mon-fri", zone="Europe/Berlin")
    await declare(client, queue, "held", rule="every 300")
    raw.hset(f"evsched:{{{queue}}}:recurrence:calm", "missed", 2)
    for end in (DONE, DONE, FAILED):
        await run(sender, store, "fails", end)
    await sender.send(store.hold("held", True, why="the warehouse moves"))
    async with browsing(server.url) as browser:
        page, words = await browser.settled("/recurrences"), await browser.words("/recurrences")
        assert await browser.words("/recurrences", state="failing") != words
        paused = await browser.words("/recurrences", state="paused")
    assert "3 recurrences, in 2 time zones." in words
    assert "The last run of one failed: fails." in words
    assert "2 planned times were missed so far." in words
    order = [words.index(f"{name} {rule}") for name, rule in (("fails", "at 17:00"), ("held", "every"), ("calm", "at"))]
    assert order == sorted(order)
    assert "fails at 17:00, Monday to Friday failing" in words
    assert "held every 5 minutes paused" in words
    assert "last 3 runs: 2 done, then 1 failed" in page
    assert "fails at 17:00" not in paused
    assert f"evsched recurrences --queue {queue}" in words


async def test_a_planned_time_is_in_the_consoles_zone_and_in_that_of_its_rule(
    server: EmbeddedRedis, queue: str, client: Client, raw: Any
) -> None:
    await declare(client, queue, "berlin", zone="Europe/Berlin")
    raw.zadd(f"evsched:{{{queue}}}:recurrences", {"berlin": 1_900_026_000.0})
    async with browsing(server.url, console_zone="America/New_York") as browser:
        words = await browser.words("/recurrences")
        one = await browser.words("/recurrence", queue=queue, name="berlin")
    assert "17 Mar 2030 21:00:00 18 Mar 2030 02:00:00 Europe/Berlin" in words
    assert "Next times Agenda 17 Mar 2030 21:00:00 18 Mar 2030 02:00:00 Europe/Berlin" in one


async def test_many_recurrences_are_read_in_slices_and_shown_on_pages(
    server: EmbeddedRedis,
    sender: BatchingSender,
    store: Store,
    queue: str,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rosters, "_SLICE", 40)
    await declare(client, queue, *(f"r{n:03}" for n in range(130)))
    async with browsing(server.url) as browser:
        found = rosters.Rosters()
        visited = browser.console.client.metered()
        while not (rows := await found.look(visited, [queue])) or found.unread([queue]):
            pass
        assert (len(rows), visited.commands) == (130, 5), "four slices, and a glance"
        browser.console.memory["rosters"] = found
        first, second = await browser.settled("/recurrences"), await browser.settled("/recurrences", page="1")
    assert "1 to 100 of 130" in words(first)
    assert "101 to 130 of 130" in words(second)
    names = [re.findall(r"/recurrence\?[^\"]*name=(r\d+)", page) for page in (first, second)]
    assert sorted([*names[0], *names[1]]) == [f"r{n:03}" for n in range(130)]


async def test_the_page_of_a_recurrence_has_its_runs_and_next_times(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client
) -> None:
    await declare(client, queue, "nightly", rule="30 2 * * *", zone="Europe/Berlin", pause_after=2)
    for end in (DONE, FAILED, FAILED):
        await run(sender, store, "nightly", end)
    async with browsing(server.url) as browser:
        words = await browser.words("/recurrence", queue=queue, name="nightly")
    assert "Runs at 02:30 every day, in Europe/Berlin. Paused for" in words
    assert "Last error ValueError, in /srv/claims.py:141 in price" in words
    assert "2 runs in a row failed." in words
    assert words.count("run by hand") == 3
    assert "dead 2.0 s" in words
    assert "ValueError in claims.py:141 in price" in words
    assert "Next times, once resumed" in words
    assert len(re.findall(r"\b02:30:00", words)) >= 5
    assert "clock change" in words
    assert "pause after 2 failures in a row" in words
    assert "abc123" not in words
    assert '"week": 7' in words


async def test_a_recurrence_is_triggered_paused_and_resumed(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client
) -> None:
    await declare(client, queue, "nightly")
    async with browsing(server.url) as browser:
        page = await browser.page("/recurrence", queue=queue, name="nightly")
        assert "nightly runs once more, now" in await browser.send(page, "trigger", recurrence=f"{queue} nightly")
        said = await browser.send(page, "hold", queue=queue, name="nightly", until="10m", why="the warehouse moves")
        assert "nightly is paused until " in said
        assert "the warehouse moves" in said
        assert "paused_until" in await sender.send(store.recurrence("nightly"))
        assert "nightly is resumed." in await browser.send(page, "release", queue=queue, name="nightly")
    assert "paused" not in await sender.send(store.recurrence("nightly"))
    acts = [entry.known.act for entry in (await sender.send(store.acts("+", None, 9))).entries if entry]
    assert acts == ["resume", "pause", "trigger"]


async def test_a_backfill_is_counted_before_it_runs(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client
) -> None:
    await declare(client, queue, "nightly", rule="30 2 * * *", zone="Europe/Berlin")
    span = {"from": "2026-03-28", "to": "2026-03-31"}
    async with browsing(server.url) as browser:
        page = await browser.page("/recurrence", queue=queue, name="nightly", **span)
        said = words(page)
        assert "3 planned times have passed in this span. Nothing has changed yet." in said
        said = re.sub(r"(Mar) 20\d\d", r"\1", said)
        assert "28 Mar 01:30:00 (28 Mar 02:30:00 Europe/Berlin), 29 Mar 01:00:00 (29 Mar 03:00:00 Europe/" in said
        assert await sender.send(store.requests("nightly")) == 0
        fields = dict(re.findall(r'name="(from|to)" value="([\d.]+)"', unescape(page)))
        said = await browser.send(page, "backfill", queue=queue, name="nightly", **fields)
        assert "3 runs of nightly were requested." in said
        said = await browser.send(page, "backfill", queue=queue, name="nightly", **fields)
        assert "0 runs of nightly were requested, 3 ran before or have a job." in said
        wrong = await browser.words("/recurrence", queue=queue, name="nightly", **{"from": "soon"})
        assert "Not possible 'soon' is not a time" in wrong


@pytest.mark.extra
async def test_a_recurrence_that_cannot_run_says_why(
    server: EmbeddedRedis, queue: str, client: Client, raw: Any
) -> None:
    await declare(client, queue, "broken", "gone")
    raw.hset(f"evsched:{{{queue}}}:recurrence:broken", mapping={"reason": "rule 'x' is not valid", "rule": "x"})
    raw.delete(f"evsched:{{{queue}}}:recurrence:gone")
    async with browsing(server.url) as browser:
        words = await browser.words("/recurrences")
        assert "2 make no jobs or are late: broken, gone." in words
        assert "cannot run rule 'x' is not valid" in words
        one = await browser.words("/recurrence", queue=queue, name="broken")
        assert "It makes no jobs: rule 'x' is not valid." in one
        assert (await browser.client.get("/recurrence", params={"queue": queue, "name": "gone"})).status_code == 200
        missing = await browser.client.get("/recurrence", params={"queue": queue, "name": "never"})
        assert missing.status_code == 404


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/recurrences", {"say", "filter", "recurrences"}),
        ("/recurrence", {"say", "acts", "runs", "next"}),
        ("/agenda", {"say", "chart", "busy", "list"}),
        ("/failures", {"say", "chart", "groups", "all"}),
    ],
)
async def test_an_open_page_gets_its_regions(
    server: EmbeddedRedis, queue: str, client: Client, path: str, names: set[str]
) -> None:
    await declare(client, queue, "nightly")
    query = {"queue": queue, "name": "nightly"} if path == "/recurrence" else {}
    async with browsing(server.url) as browser:
        regions = await browser.regions(path, **query)
        page = await browser.page(path, **query)
    assert regions.keys() == names
    for name, html in regions.items():
        assert f'data-live="{name}"' in html
        assert f'data-live="{name}"' in page


async def test_a_run_whose_record_is_gone_leads_to_its_end_and_its_recurrence(
    server: EmbeddedRedis, queue: str, client: Client
) -> None:
    await declare(client, queue, "nightly")
    async with browsing(server.url) as browser:
        gone = await browser.client.get("/job", params={"queue": queue, "id": "nightly@1700000000.0"})
        assert gone.status_code == 404
        assert '<nav id="nav"' in gone.text
        assert f'href="/history?id=nightly%401700000000.0&amp;queue={queue}"' in gone.text
        assert f'href="/recurrence?queue={queue}&amp;name=nightly"' in gone.text
        assert "After that it cannot run again from here. It was a run of nightly" in words(gone.text)


async def test_open_page_of_a_recurrence_asks_seldom_which_runs_have_a_record(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client, raw: Any
) -> None:
    await declare(client, queue, "nightly")
    for end in (DONE, DONE, FAILED):
        await run(sender, store, "nightly", end)
    gone = sorted(key.decode() for key in raw.scan_iter(keys.job(queue, "nightly@*")))
    raw.delete(gone[0])
    async with browsing(server.url) as browser:
        visit = Visit(browser.console, browser.console.client.metered(), Visitor("ann", "admin"), QueryParams(), "")
        page = await browser.page("/recurrence", queue=queue, name="nightly")
        assert page.count("Run again</button>") == 1
        assert page.count("Revive</button>") == 1
        runs = rosters_of(visit).runs_of(queue, "nightly")
        assert await kept_records(visit).look(visit.client, runs) == [run.id in str(gone[1:]) for run in runs]
        assert visit.client.commands == 0


async def test_the_run_of_a_trigger_is_linked_and_an_ended_one_runs_again(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, client: Client
) -> None:
    await declare(client, queue, "nightly")
    async with browsing(server.url) as browser:
        answer = await browser.act(f"/recurrence?queue={queue}&name=nightly", "trigger", recurrence=f"{queue} nightly")
        page = await browser.page(answer.headers["location"])
        (link,) = re.findall(r'<a href="([^"]+)">Open the run</a>', page)
        assert "Run again" not in await browser.page(unescape(link))
        now = time.time()
        await sender.send(store.at(now).dispatch(limit=9, cap=99))
        runs = (await sender.send(store.at(now).start("w", (), hold=9, lease=15))).jobs
        assert await sender.send(store.at(now + 2).complete("w", [(one, DONE) for one in runs])) == []
        ended = await browser.page(unescape(link))
        assert 'formaction="/act/again">Run again' in ended
        (job,) = re.findall(r'name="job" value="([^"]+)"', ended)
        assert "This is a copy of job nightly@" in await browser.send(ended, "again", job=job)
