"""The times that people type into the forms of the console: each is in its zone, as those on its pages."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from evsched import keys
from evsched.client import spread
from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import New
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import Browser, browsing

TYPED: Final = "2099-01-31T09:00"
TOKYO: Final = ZoneInfo("Asia/Tokyo")
MEANT: Final = datetime.fromisoformat(TYPED).replace(tzinfo=TOKYO).timestamp()
LATER: Final = 4e9


@pytest.fixture
async def browser(server: EmbeddedRedis, queue: str) -> AsyncGenerator[Browser]:
    async with browsing(server.url, queues=(queue,), console_zone="Asia/Tokyo") as found:
        client = found.console.client
        await client.enqueue(queue, [New(one, b'{"task":"pay"}', due=LATER) for one in ("a", "b")])
        await client.declare(queue, Declared(name="r", payload=b'{"task":"pay"}', rule="0 9 * * *"))
        yield found


async def ends_of(browser: Browser, queue: str) -> float | None:
    """Return when the pause of a queue ends."""
    client = browser.console.client
    return (await client.run(spread.queue_stats(client.stores(queue)))).paused_until


async def test_pause_of_a_queue_ends_at_the_typed_time_in_the_consoles_zone(
    browser: Browser, queue: str, raw: Any
) -> None:
    page = await browser.page("/queue", name=queue)
    said = await browser.send(page, "pause", queue=queue, until=TYPED)
    assert f"Queue {queue} is paused until 31 Jan 2099 09:00:00 Asia/Tokyo." in said
    assert await ends_of(browser, queue) == MEANT
    await browser.send(page, "pause", queue=queue, until="17:00")
    until = await ends_of(browser, queue)
    assert f"{datetime.fromtimestamp(until or 0.0, TOKYO):%H:%M}" == "17:00"


async def test_pause_of_a_recurrence_ends_at_the_typed_time_in_the_consoles_zone(
    browser: Browser, queue: str, raw: Any
) -> None:
    page = await browser.page("/recurrence", queue=queue, name="r")
    said = await browser.send(page, "hold", queue=queue, name="r", until=TYPED)
    assert "r is paused until 31 Jan 2099 09:00:00 Asia/Tokyo." in said
    assert float(raw.hget(f"{keys.root(queue)}recurrence:r", "paused_until")) == MEANT


@pytest.mark.parametrize("form", ["one", "several", "edit"])
async def test_job_is_due_at_the_typed_time_in_the_consoles_zone(
    browser: Browser, queue: str, raw: Any, form: str
) -> None:
    page = await browser.page("/edit" if form == "edit" else "/job", queue=queue, id="a")
    if form == "one":
        await browser.send(page, "reschedule", job=f"{queue} a", due=TYPED)
    elif form == "several":
        await browser.send(page, "reschedule", q="task:pay", due=TYPED)
        await browser.console.acts.wait()
    else:
        kept = dict(re.findall(r'name="(version|shown_\w+)" value="([^"]*)"', page))
        fields = {"args": "[]", "kwargs": "{}", "priority": kept["shown_priority"], "due": TYPED}
        await browser.send(page, "edit", **kept, **fields, job=f"{queue} a")
    assert raw.zscore(keys.schedule(queue), "a") == MEANT
    assert raw.zscore(keys.schedule(queue), "b") == (MEANT if form == "several" else LATER)


async def test_backfill_begins_and_ends_at_the_typed_times_in_the_consoles_zone(browser: Browser, queue: str) -> None:
    """The rule is at 09:00 in UTC, which is 18:00 in Tokyo."""
    span = {"from": "2026-03-28T17:00", "to": "2026-03-28T19:00"}
    assert "One planned time has passed" in await browser.words("/recurrence", queue=queue, name="r", **span)
    span = {"from": "2026-03-28T08:00", "to": "2026-03-28T10:00"}
    assert "0 planned times have passed" in await browser.words("/recurrence", queue=queue, name="r", **span)
