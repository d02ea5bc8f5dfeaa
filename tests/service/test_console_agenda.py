"""The page of what comes: runs of recurrences and single jobs by when they are due, and the busiest moment."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from evsched.client.client import Client
from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import New
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import browsing

PAYLOAD = b'{"task":"report"}'


@pytest.fixture
async def client(server: EmbeddedRedis) -> AsyncGenerator[Client]:
    client = Client(server.url)
    yield client
    await client.close()


async def declare(client: Client, queue: str, name: str, rule: str, **options: Any) -> None:
    await client.declare(queue, Declared(name=name, payload=PAYLOAD, rule=rule, **options))


async def test_the_agenda_counts_runs_and_single_jobs_and_the_busiest_moment(
    server: EmbeddedRedis, queue: str, client: Client
) -> None:
    await declare(client, queue, "a", "every 3600")
    await declare(client, queue, "b", "0 * * * *")
    due = (time.time() // 3600 + 1) * 3600 + 1000.25
    await client.enqueue(queue, [New(f"j{n}", PAYLOAD, due=due) for n in range(5)])
    await client.enqueue(queue, [New("late", PAYLOAD, due=time.time() - 5), New("far", PAYLOAD, due=due + 9 * 86400)])
    async with browsing(server.url) as browser:
        page, words = "", await browser.words("/agenda")
        page = await browser.settled("/agenda")
        hour = await browser.words("/agenda", span="1h")
    assert re.search(
        r"In the next 24 hours, \d\d jobs are planned: 4[68] runs of 2 recurrences, and 5 single jobs", words
    )
    second = time.strftime("%M:%S", time.gmtime(due))
    assert re.search(rf"The busiest moment found is (\d+ \w+ )?\d\d:{second}: 5 jobs at once", words)
    assert f"{second} 5 single jobs 5" in words
    assert re.search(r"a, b 2 ", words)
    assert 'aria-label="every hour, 2' in page
    assert re.search(r"[012] runs? of [012] recurrences?", hour)
    assert f"evsched recurrences next --by hour --queue {queue}" in words


async def test_paused_recurrences_are_shown_and_not_counted(server: EmbeddedRedis, queue: str, client: Client) -> None:
    await declare(client, queue, "held", "every 3600")
    await client.send(client.store(queue).hold("held", True))
    async with browsing(server.url) as browser:
        words = await browser.words("/agenda")
        page = await browser.settled("/agenda")
    assert "0 jobs are planned: 0 runs of 0 recurrences" in words
    assert f"held {queue}, paused none" in words
    assert 'class="f-none"' in page


async def test_an_occurrence_on_the_schedule_is_no_single_job(
    server: EmbeddedRedis, queue: str, client: Client, raw: Any
) -> None:
    planned = int(time.time()) + 600
    await declare(client, queue, "a", "0 0 1 1 *")
    raw.hset(f"evsched:{{{queue}}}:recurrence:a", "ahead", f"a@{planned}")
    await client.enqueue(queue, [New(f"a@{planned}", PAYLOAD, due=planned), New("single", PAYLOAD, due=planned)])
    async with browsing(server.url) as browser:
        words = await browser.words("/agenda")
    assert "and 1 single job." in words


async def test_dense_rules_and_windows_are_counted(server: EmbeddedRedis, queue: str, client: Client) -> None:
    await declare(client, queue, "dense", "* * * * *")
    async with browsing(server.url) as browser:
        words = await browser.words("/agenda", span="7d")
        await declare(client, queue, "night", "0 * * * *", window="02:00-03:00 UTC")
        browser.console.memory.clear()
        both = await browser.words("/agenda", span="7d")
    found = re.search(r"planned: ([\d,]+) runs", words)
    assert found
    assert abs(int(found[1].replace(",", "")) - 7 * 1440) <= 10
    again = re.search(r"planned: ([\d,]+) runs", both)
    assert again
    assert 5 <= int(again[1].replace(",", "")) - int(found[1].replace(",", "")) <= 15, "one run a night"


async def test_the_agenda_says_which_seconds_it_has_looked_at(
    server: EmbeddedRedis, queue: str, client: Client
) -> None:
    """A second with two jobs is not found, as another quarter of an hour has more."""
    due = (time.time() // 3600 + 2) * 3600
    await client.enqueue(queue, [New(f"same{n}", PAYLOAD, due=due) for n in range(2)])
    await client.enqueue(queue, [New(f"apart{n}", PAYLOAD, due=due + 3600 + 5 * n) for n in range(9)])
    async with browsing(server.url) as browser:
        words = await browser.words("/agenda")
    assert "No two jobs" not in words
    assert "None found. Not each second is looked at" in words
    assert "of 1 queue the fullest second within the quarter of an hour with the most single jobs" in words


@pytest.mark.extra
async def test_the_fullest_second_of_each_queue_is_found(server: EmbeddedRedis, queue: str, client: Client) -> None:
    due, queues = (time.time() // 3600 + 2) * 3600, (f"{queue}.a", f"{queue}.b")
    for jobs, name in enumerate(queues, 2):
        await client.enqueue(name, [New(f"j{n}", PAYLOAD, due=due + 60 * jobs) for n in range(jobs)])
    async with browsing(server.url, queues=queues) as browser:
        words = await browser.words("/agenda")
    assert "02:00 2 single jobs 2" in words
    assert "03:00 3 single jobs 3" in words
