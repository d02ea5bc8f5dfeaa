"""The console searches the ledger for the ends that Redis has dropped, and says so if that cannot be done."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from html import unescape
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
from psycopg import conninfo

from evsched import process_events
from evsched.client.history import EVERY_END
from evsched.console import ledger_search
from evsched.console.ends_search import search_ends
from evsched.console.ledger_search import LedgerRows
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.ledger.conftest import Running
from tests.support.browsing import Browser, browsing, words
from tests.support.cli import Cli, terminate
from tests.support.console import Stream, consoles
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder

pytestmark = pytest.mark.anyio

SECRET = "4111-1111"

Ends = Callable[..., Any]


@pytest.fixture
async def browser(server: EmbeddedRedis, ledger_url: str) -> AsyncGenerator[Browser]:
    async with browsing(server.url, ledger_url=ledger_url) as found:
        yield found


@pytest.fixture
def end(browser: Browser, queue: str) -> Ends:
    """Return a function that ends jobs by cancelling them."""

    async def end(*ids: str, task: str = "pay", tag: str = "patient:42", name: str = queue) -> None:
        payload = {"task": task, "tags": [tag], "kwargs": {"card": SECRET}, "redact": ["card"]}
        store = Store(name)
        for job in ids:
            await browser.console.client.send(store.enqueue([New(job, json.dumps(payload).encode(), due=4e9)]))
            await browser.console.client.send(store.cancel(job))

    return end


def written(recorder: Recorder) -> int:
    return sum(one.count for one in recorder.of(process_events.RunsWritten))


def ids_of(page: str) -> list[str]:
    return re.findall(r'class="id"[^>]*>([\w-]+)<', page)


async def test_search_finds_in_the_ledger_and_in_redis_each_end_once(
    browser: Browser, end: Ends, writing: Running, queue: str, raw: Any
) -> None:
    async with writing() as recorder:
        await end("old")
        await end("other", task="mail")
        await recorder.until(lambda: written(recorder) == 2)
        raw.delete(f"evsched:{{{queue}}}:history")
        await end("kept")
        await recorder.until(lambda: written(recorder) == 3)
    await end("new")
    path = f"/history?queue={queue}&tag=patient:42&since=1h"
    first = await browser.page(path)
    assert ids_of(first) == ["new", "kept"]
    assert "Search the ledger" in words(first)
    page = await browser.page(f"{path}&ledger=1")
    assert ids_of(page) == ["new", "kept", "other", "old"]
    assert f"4 jobs tagged patient:42 ended in {queue} in the last 1h: 4 cancelled." in words(page)
    assert SECRET not in page
    for query, found in (("task=mail", ["other"]), ("id=old", ["old"]), ("outcome=done", []), ("until=1h", [])):
        assert ids_of(await browser.page(f"/history?queue={queue}&ledger=1&{query}")) == found, query
    # Without a queue it finds those of which Redis has nothing any more, and the newest first.
    everything = await browser.data("/history?ledger=1&as=json&task=mail")
    assert [(job["queue"], job["id"]) for job in everything["jobs"]] == [(queue, "other")]


async def test_pages_of_the_ledger_have_each_end_once(
    browser: Browser, end: Ends, writing: Running, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_search, "_ROWS", 60)
    async with writing() as recorder:
        await end(*(f"a{n}" for n in range(90)))
        await recorder.until(lambda: written(recorder) == 90)
        raw.delete(f"evsched:{{{queue}}}:history")
        await end(*(f"b{n}" for n in range(30)))
        await recorder.until(lambda: written(recorder) == 120)
        await end(*(f"c{n}" for n in range(20)))
        seen, path = list[str](), f"/history?queue={queue}&ledger=1"
        assert "older ones are not read yet" in words(await browser.page(path))
        for _ in range(6):
            page = await browser.page(path)
            seen += ids_of(page)
            older = re.search(r'href="([^"]*before=[^"]*)">(?:Older|Search on)', page)
            if older is None:
                break
            path = older[1].replace("&amp;", "&")
            await recorder.until(lambda: written(recorder) == 140)  # rows go from Redis to the ledger meanwhile
    expected = [f"{part}{n}" for part, count in (("c", 20), ("b", 30), ("a", 90)) for n in reversed(range(count))]
    assert seen == expected


@pytest.mark.extra
async def test_ends_of_one_moment_are_on_one_page_each(
    browser: Browser, writing: Running, queue: str, ledger_url: str, end: Ends
) -> None:
    async with writing() as recorder:
        await end("first")
        await recorder.until(lambda: written(recorder) == 1)
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO evsched_run (queue, ended, entry, place, id, task, outcome, attempt, worker, grp, "
            "enqueued_by, tags, error, location) SELECT queue, ended - interval '1 second', entry - 200 + n, 0, "
            "'m' || n, task, outcome, attempt, worker, grp, enqueued_by, tags, error, location "
            "FROM evsched_run, generate_series(1, 120) AS n"
        )
    seen, path = list[str](), f"/history?queue={queue}&ledger=1"
    for _ in range(4):
        page = await browser.page(path)
        seen += ids_of(page)
        older = re.search(r'href="([^"]*before=[^"]*)">Older', page)
        if older is None:
            break
        path = older[1].replace("&amp;", "&")
    assert sorted(seen) == sorted(["first", *(f"m{n}" for n in range(1, 121))])


@pytest.mark.extra
async def test_many_queues_are_searched_as_one(browser: Browser, end: Ends, writing: Running, queue: str) -> None:
    names = [f"{queue}.{n}" for n in range(6)]
    async with writing(queues=tuple(names)) as recorder:
        for n, name in enumerate([*names, *names]):
            await end(f"j{n}", name=name, tag=f"patient:{n % 2}")
        await recorder.until(lambda: written(recorder) == 12)
    path = f"/history?queue={','.join(names)}&ledger=1"
    assert ids_of(await browser.page(path)) == [f"j{n}" for n in range(11, -1, -1)]
    assert ids_of(await browser.page(f"{path}&tag=patient:1")) == [f"j{n}" for n in range(11, -1, -2)]
    assert ids_of(await browser.page(f"{path}&tag=patient:1&since=1h&task=pay&id=j3")) == ["j3"]


@pytest.mark.extra
async def test_no_end_is_listed_behind_rows_that_were_not_read(browser: Browser, end: Ends, queue: str) -> None:
    await end(*(f"j{n}" for n in range(70)))
    client, stores = browser.console.client.metered(), [Store(queue)]
    everything = await search_ends(client, stores, EVERY_END, "", (-inf, inf), limit=70)
    floor = everything.rows[9].ended
    ledger = LedgerRows([], {}, floor)
    found = await search_ends(client, stores, EVERY_END, "", (-inf, inf), limit=70, ledger=ledger)
    assert ([job.id for job in found.rows], found.older) == ([f"j{n}" for n in range(69, 60, -1)], (floor, 0))


@pytest.mark.extra
async def test_page_of_the_ledger_counts_newer_ends(browser: Browser, end: Ends, writing: Running, queue: str) -> None:
    async with writing() as recorder:
        await end("old")
        await recorder.until(lambda: written(recorder) == 1)
        live = re.search(r'data-stream="([^"]*)"', await browser.page(f"/history?queue={queue}&ledger=1"))
        assert live is not None
        await end("new")
        async with Stream(browser.app, unescape(live[1])) as stream:
            assert words((await stream.regions())["newer"]) == "1 newer: show"


@pytest.mark.extra
@pytest.mark.parametrize(
    ("command", "started", "path"),
    [(["console", "--ledger-url"], "ConsoleStarted", ""), (["api", "--console"], "ApiStarted", "/console")],
)
async def test_commands_give_the_console_the_ledger(
    server: EmbeddedRedis, tmp_path: Path, ledger_url: str, command: list[str], started: str, path: str
) -> None:
    cli = Cli(server.url, tmp_path)
    cli.environment["EVSCHED_API_OPEN_HOSTS"] = "localhost"
    if path:
        cli.environment["EVSCHED_LEDGER_URL"] = ledger_url
    else:
        command = [*command, ledger_url]
    with cli.started(*command, "--port", "0") as (child, log):
        url = log.until(started)["url"]
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            page = (await client.get(f"{url}{path}/history?ledger=1")).text
        assert "Redis and the ledger" in page
        assert "was not searched" not in page
        terminate(child)


@pytest.mark.extra
async def test_chart_of_a_search_of_the_ledger_counts_the_found_jobs(
    browser: Browser, end: Ends, writing: Running, queue: str
) -> None:
    async with writing() as recorder:
        await end("a", "b", "c")
        await recorder.until(lambda: written(recorder) == 3)
    assert "of the 3 jobs found" in words(await browser.page(f"/history?queue={queue}&ledger=1"))


@pytest.mark.extra
async def test_console_serves_its_queues_of_the_ledger_only(
    server: EmbeddedRedis, browser: Browser, end: Ends, writing: Running, queue: str, ledger_url: str
) -> None:
    other = f"{queue}-other"
    async with writing(queues=(queue, other)) as recorder:
        await end("mine")
        await end("theirs", name=other)
        await recorder.until(lambda: written(recorder) == 2)
    async with browsing(server.url, ledger_url=ledger_url, queues=(queue,)) as own:
        assert ids_of(await own.page("/history?ledger=1")) == ["mine"]
    both = ids_of(await browser.page(f"/history?ledger=1&queue={queue},{other}"))
    assert both == ["theirs", "mine"]


async def test_a_viewer_searches_the_ledger_without_buttons(
    server: EmbeddedRedis, browser: Browser, end: Ends, writing: Running, queue: str, ledger_url: str
) -> None:
    async with writing() as recorder:
        await end("old")
        await recorder.until(lambda: written(recorder) == 1)
    with consoles(server.url) as users:
        async with users.app(ledger_url=ledger_url) as app, users.signed_in(app, "viewer") as viewer:
            page = (await viewer.get(f"/history?queue={queue}&ledger=1")).text
            assert ids_of(page) == ["old"]
            assert "/act/" not in page
        async with users.app(ledger_url=ledger_url) as app, users.browser(app) as stranger:
            assert (await stranger.get(f"/history?queue={queue}&ledger=1")).status_code == 303


async def test_database_that_does_not_answer_costs_seconds_and_is_named(
    server: EmbeddedRedis, end: Ends, queue: str, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_search, "_TIME", 0.3)
    await end("new")
    given = conninfo.conninfo_to_dict(ledger_url)
    async with Proxy(f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}") as proxy:
        through = conninfo.make_conninfo(ledger_url, host=proxy.host, port=proxy.port)
        async with browsing(server.url, ledger_url=through) as browser:
            path = f"/history?queue={queue}&ledger=1"
            proxy.swallow("down")
            for _ in range(3):  # also when the ones before still wait
                begun = time.monotonic()
                page = await browser.page(path)
                assert time.monotonic() - begun < PATIENCE / 2
                assert (
                    "The ledger was not searched, only the last ends, which Redis has: PostgreSQL did not answer"
                    in (words(page))
                )
                assert ids_of(page) == ["new"]
            proxy.heal()
            proxy.reset()
            async with asyncio.timeout(PATIENCE):
                while "was not searched" in await browser.page(path):
                    pass


@pytest.mark.extra
async def test_locked_table_costs_seconds_and_is_named(
    browser: Browser, end: Ends, queue: str, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_search, "_TIME", 0.3)
    await end("new")
    async with await psycopg.AsyncConnection.connect(ledger_url) as other:
        await other.execute("LOCK TABLE evsched_run")
        page = await browser.page(f"/history?queue={queue}&ledger=1")
        assert "within 0.3 s: give a queue, an id or a time" in words(page)
        assert ids_of(page) == ["new"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://127.0.0.1:1/none", "look whether PostgreSQL runs where EVSCHED_LEDGER_URL says"),
        pytest.param("mysql://host/shop", "is not the URL of a PostgreSQL database", marks=pytest.mark.extra),
        pytest.param("", "run `evsched ledger migrate`", marks=pytest.mark.extra),
    ],
)
async def test_ledger_that_cannot_be_searched_is_named_with_a_remedy(
    server: EmbeddedRedis, end: Ends, queue: str, ledger_url: str, url: str, said: str
) -> None:
    await end("new")
    if not url:
        url = ledger_url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE evsched_run, evsched_run_position")
    async with browsing(server.url, ledger_url=url) as browser:
        page = await browser.page(f"/history?queue={queue}&ledger=1")
        assert said in words(page).replace("&#39;", "'")
        assert ids_of(page) == ["new"]


@pytest.mark.extra
async def test_without_psycopg_the_page_says_what_to_install(
    browser: Browser, end: Ends, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end("new")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    page = await browser.page(f"/history?queue={queue}&ledger=1")
    assert "it needs psycopg: pip install" in words(page)
    assert ids_of(page) == ["new"]


@pytest.mark.extra
async def test_console_without_a_ledger_offers_no_search(server: EmbeddedRedis, end: Ends, queue: str) -> None:
    await end("new")
    async with browsing(server.url) as browser:
        assert "ledger" not in (await browser.page(f"/history?queue={quote(queue)}")).lower()
        assert "this console has none: set EVSCHED_LEDGER_URL" in words(await browser.page("/history?ledger=1"))
