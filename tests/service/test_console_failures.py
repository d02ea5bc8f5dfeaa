"""The page of what fails: failures are grouped by what failed, counted in slices, and lead to the acts on them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from evsched import Filter
from evsched.client.client import Client
from evsched.console import failed_jobs
from evsched.console.failed_jobs import QueueCount, examine
from evsched.console.failure_sums import Failures, last_day
from evsched.console.page import MeteredClient
from evsched.jobs.job import Buried, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.browsing import browsing, words

PLACE = "/srv/app/webhooks.py:88 in post"
TRACE = """Traceback (most recent call last):
  File "/srv/app/webhooks.py", line 88, in post
    response = await client.post(hook)
  File "/site-packages/httpx/_client.py", line 1859, in post
    return await self.request(
httpx.ConnectTimeout: no connection to seeblick.example
"""
TIMEOUT = Buried(
    f"attempt 3 of 3: httpx.ConnectTimeout: no connection to seeblick.example ({PLACE})",
    False,
    error="httpx.ConnectTimeout",
    location=PLACE,
    traceback=TRACE,
)


async def fail(
    sender: BatchingSender, store: Store, ids: Sequence[str], end: Buried | Retried, group: str = "", task: str = "hook"
) -> None:
    """Run jobs once, which fail."""
    now = time.time()
    payload = json.dumps({"task": task}).encode()
    await sender.send(store.enqueue([New(job, payload, group=group or None, due=now - 1) for job in ids]))
    await sender.send(store.at(now).dispatch(limit=999, cap=9999))
    runs = (await sender.send(store.at(now).start("w", (), hold=999, lease=15))).jobs
    assert sorted(run.id for run in runs) == sorted(ids)
    if isinstance(end, Buried):
        assert await sender.send(store.at(now).bury("w", [(run, end) for run in runs])) == []
    else:
        assert await sender.send(store.at(now).retry("w", [(run, end) for run in runs])) == []


def sums(count: QueueCount) -> list[Failures]:
    return count.shown.jobs.summed(count.queue, "error", last_day(time.time()), count.shown.at)


def dead(count: QueueCount) -> int:
    return sum(one.dead for one in sums(count))


async def test_failures_are_grouped_by_task_exception_and_line(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT, "seeblick")
    await fail(sender, store, ["c"], TIMEOUT, "westend")
    waits = Retried(600.0, "attempt 1 of 3: x", error=TIMEOUT.error, location=PLACE)
    await fail(sender, store, ["d"], waits, "seeblick")
    await fail(sender, store, ["e"], Buried("attempt 1 of 1: ValueError: 030", False, error="ValueError"))
    await fail(sender, store, ["f"], Buried("expired 12 s before it could start", False, "expired"))
    await fail(sender, store, ["g"], Buried("expired 250 s before it could start", False, "expired"))
    async with browsing(server.url) as browser:
        page, said = await browser.settled("/failures"), await browser.words("/failures")
    assert "6 jobs are dead, 1 will be retried, in 3 kinds." in said
    growing = r"More than usual in the last hour: ConnectTimeout in hook since \S+ and \w[^.]+\."
    assert re.search(growing, said), "one death is no growth"
    group = said[said.index("ConnectTimeout in hook no connection") :]
    assert group.startswith("ConnectTimeout in hook no connection to seeblick.example app/webhooks.py:88 in post")
    assert f"{queue}; 2 groups, 3 of 4 for seeblick" in group
    assert "3 dead 1 to be retried Revive 3… Drop…" in group
    assert '<mark>  File "/srv/app/webhooks.py", line 88, in post' in unescape(page)
    assert "no exception in hook expired 250 s before it could start" in said
    assert f"evsched dead --limit 100 --queue {queue} --task hook --error ConnectTimeout" in said


async def test_the_links_of_a_group_are_about_its_jobs(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT)
    await fail(sender, store, ["c"], Buried("expired 12 s before it could start", False, "expired"))
    async with browsing(server.url) as browser:
        page = await browser.settled("/failures", sort="dead")
        links = [unescape(link) for link in re.findall(r'href="(/(?:jobs|bulk)\?[^"]+)"', page) if "place" in link]
        revive, drop = (next(link for link in links if f"verb={verb}" in link) for verb in ("revive", "drop"))
        query = parse_qs(urlsplit(revive).query)["q"]
        assert query == [f"place:dead task:hook error:httpx.ConnectTimeout queue:{queue}"]
        assert "Revive 2 jobs?" in await browser.words(revive)
        assert "Drop 2 jobs?" in await browser.words(drop)
        (expired,) = (link for link in links if "before" in link and link.startswith("/jobs"))
        assert "1 job matches." in await browser.words(expired)


async def test_many_jobs_are_counted_in_slices_and_again(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_jobs, "_AGAIN", 0.0)
    jobs = [f"j{n}" for n in range(600)]
    await fail(sender, store, jobs, TIMEOUT)
    client = MeteredClient(server.url)
    count = QueueCount(queue)

    async def step() -> None:
        await examine(client, [count], 1)

    await step()
    assert (count.over, count.shown.total) == (False, 600)
    assert 0 < dead(count) < 600
    while not count.over:
        await step()
    (group,) = sums(count)
    assert (group.dead, count.shown.examined) == (600, 600)
    await sender.send(store.drop(jobs[:100]))
    await step()
    assert dead(count) == 600, "the last whole count is shown until the next"
    while count.is_due() and dead(count) == 600:
        await step()
    assert dead(count) == 500
    await client.close()


@pytest.mark.extra
async def test_a_queue_that_redis_refuses_to_read_does_not_hide_the_others(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, raw: Any
) -> None:
    await fail(sender, store, ["a"], TIMEOUT)
    raw.set("evsched:{broken}:dead", "wrong")
    raw.sadd("evsched:queues", "broken")
    async with browsing(server.url, queues=(queue, "broken")) as browser:
        said = await browser.words("/failures")
        assert "1 job is dead" in said
        assert "not read broken:" in said
        assert f"No job is dead in {queue}" not in await browser.words("/failures", queue=queue)


async def test_a_viewer_sees_failures_and_no_acts(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT)
    async with browsing(server.url, console_proxies=("127.0.0.1",), console_users=("*=viewer",)) as browser:
        browser.client.headers[browser.console.config.console_header] = "ana"
        page = await browser.settled("/failures")
    assert "2 jobs are dead" in page
    assert "/bulk" not in page


@pytest.mark.extra
async def test_without_failures_the_page_says_so(server: EmbeddedRedis, queue: str) -> None:
    client = Client(server.url)
    await client.enqueue(queue, [New("a", b'{"task":"t"}', due=time.time() + 600)])
    await client.close()
    async with browsing(server.url) as browser:
        assert "No job is dead, and none waits for a retry." in await browser.words("/failures")


async def die_at(sender: BatchingSender, queue: str, job: str, moment: float) -> None:
    """Have a dead job have died at another time, Unix seconds."""
    dead = f"evsched:{{{queue}}}:dead"
    await sender.send(Call(("ZADD", dead, moment, job), int, near=dead))


async def test_customer_with_most_failures_since_noon_is_found_in_three_clicks(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    """And its jobs, of all tasks and of this span alone, are revived in two more."""
    await fail(sender, store, ["a", "b"], TIMEOUT, "seeblick")
    await fail(sender, store, ["c"], Buried("attempt 1 of 1: x", False, error="ValueError"), "seeblick", "export")
    await fail(sender, store, ["d", "e"], TIMEOUT, "westend")
    await fail(sender, store, ["f"], TIMEOUT)
    await die_at(sender, queue, "a", 1e9)
    async with browsing(server.url, queues=(queue,)) as browser:
        page = await browser.settled("/")
        for link in ("Failures", "group", "today"):  # the morning has no noon
            path = re.findall(rf'<a href="([^"]+)"[^>]*>{link}(?=<| )', page)[0]
            page = await browser.settled(unescape(path))
        said = words(page)
        assert "5 jobs died today, in 3 groups. Most: seeblick, 2." in said
        assert "seeblick ValueError in export 1, ConnectTimeout in hook 1" in said
        assert "westend ConnectTimeout in hook 2" in said
        assert "no group ConnectTimeout in hook 1" in said
        acts = [unescape(link) for link in re.findall(r'href="(/bulk[^"]+)"', page)]
        assert "no+group" not in "".join(acts)
        (revive,) = (link for link in acts if "verb=revive" in link and "seeblick" in link)
        dry = await browser.page(revive)
        assert "Revive 2 jobs?" in words(dry)
        fields = {name: unescape(value) for name, value in re.findall(r'name="(q)" value="([^"]*)"', dry)}
        await browser.send(dry.partition('action="/act/revive"')[2], "revive", **fields)
        await browser.console.acts.wait()
        left = {job.id for job in await browser.console.client.find(queue, Filter(), "dead")}
    assert left == {"a", "d", "e", "f"}


async def test_failures_of_a_span_that_was_typed_are_counted_by_task_and_order(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT)
    await fail(sender, store, ["c", "d"], TIMEOUT, task="mail")
    await fail(sender, store, ["e"], Retried(600.0, "attempt 1 of 3: x", error="ValueError"))
    for job, at in (("a", "14:00:00"), ("b", "15:00:00"), ("c", "14:30:00"), ("d", "15:00:01")):
        moment = datetime.fromisoformat(f"2026-03-01T{at}+01:00").timestamp()
        await die_at(sender, queue, job, moment)
    async with browsing(server.url, queues=(queue,), console_zone="Europe/Berlin") as browser:
        span = {"from": "2026-03-01T14:00", "to": "2026-03-01T15:00"}
        page = await browser.settled("/failures", by="task", sort="last", **span)
        assert "3 jobs died from 1 Mar 14:00:00 until 1 Mar 15:00:00, in 2 tasks." in re.sub(
            r" 20\d\d", "", words(page)
        )
        assert re.findall(r"<h2><a[^>]*>(\w+)</a>", page) == ["hook", "mail"]
        links = [unescape(link) for link in re.findall(r'href="(/bulk\?verb=revive[^"]+)"', page)]
        assert parse_qs(urlsplit(links[-1]).query)["q"] == [
            "place:dead since:2026-03-01T14:00+01:00 until:2026-03-01T15:00+01:00"
        ]
        assert "Revive 3 jobs?" in await browser.words(links[-1])
        wrong = await browser.words("/failures", **{"from": span["to"], "to": span["from"]})
        assert "The span cannot be read: the span ends before it begins: exchange both times." in wrong
        assert "1 will be retried" in wrong


async def test_span_of_jobs_is_picked_without_syntax(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT)
    moment = datetime.fromisoformat("2026-03-01T14:30+01:00").timestamp()
    await die_at(sender, queue, "a", moment)
    async with browsing(server.url, queues=(queue,), console_zone="Europe/Berlin") as browser:
        page = await browser.page("/jobs", q="place:dead", **{"from": "2026-03-01T14:00", "to": "2026-03-01T15:00"})
        assert 'value="place:dead since:2026-03-01T14:00+01:00 until:2026-03-01T15:00+01:00"' in page
        assert "1 job matches." in words(page)
        assert re.search('name="when" [^>]*value="2026-03-01 14:00 to 15:00"', page)
        again = await browser.page("/jobs", q="place:dead since:2h until:1h", span="today")
        assert "place:dead since:20" in again
        assert "until:" not in unescape(re.findall(r'name="q" [^>]*value="([^"]*)"', again)[0])
        wrong = await browser.words("/jobs", q="place:dead", **{"from": "soon"})
        assert "The span cannot be read: 'soon' is not a time" in wrong
        assert "pay.Timeout" not in wrong, "it finds nothing"
        assert "1 job matches." in await browser.words("/jobs", q="place:dead", when="1 Mar 2026 14:00 to 15:00")


async def test_headline_and_rows_are_of_one_moment(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail(sender, store, ["a", "b"], TIMEOUT)
    async with browsing(server.url, queues=(queue,)) as browser:
        monkeypatch.setattr(failed_jobs, "_AGAIN", 999.0)
        await browser.settled("/failures")
        await fail(sender, store, ["c"], TIMEOUT)
        said = words(await browser.page("/failures"))
        assert re.search(r"2 jobs are dead, 0 will be retried, in 1 kind\. Counted at [\d:]+\.", said)
        assert "2 dead Revive" in said
        assert " ago" not in said


async def test_numbers_of_a_count_that_is_not_over_say_so(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_jobs, "_SLICES", {"dead": 1, "schedule": 1})
    monkeypatch.setattr(failed_jobs, "_LOOK", 0.005)
    await fail(sender, store, [f"j{n}" for n in range(900)], TIMEOUT)
    async with browsing(server.url, queues=(queue,)) as browser:
        counted, said = r"900 jobs are dead\. Counted so far, \d+ of 900 jobs: \d+ dead, in 1 kind, and 0 that", ""
        while not re.search(counted, said):  # a look on a busy machine may count nothing
            said = words(await browser.page("/failures"))
        assert re.search(r"\d+ dead so far Revive", said)
        in_span = words(await browser.page("/failures?span=24h"))
        assert re.search(r"So far, \d+ jobs died in 24 hours", in_span)


async def test_kinds_that_differ_only_in_the_folder_of_the_code_are_one(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    for host in ("srv", "opt/release (2)"):
        place = f"/{host}/app/webhooks.py:88 in post"
        reason = f"attempt 3 of 3: httpx.ConnectTimeout: no connection ({place})"
        await fail(sender, store, [host[:3]], Buried(reason, False, error="httpx.ConnectTimeout", location=place))
    async with browsing(server.url, queues=(queue,)) as browser:
        said = await browser.words("/failures")
    assert "2 jobs are dead, 0 will be retried, in 1 kind." in said
    assert "app/webhooks.py:88 in post" in said


async def test_each_traceback_has_a_name_of_its_own_so_that_an_open_one_stays_alone(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, queue: str
) -> None:
    await fail(sender, store, ["a"], TIMEOUT)
    await fail(sender, store, ["b"], TIMEOUT, task="mail")
    async with browsing(server.url, queues=(queue,)) as browser:
        page = await browser.settled("/failures")
    assert sorted(re.findall(r'<details data-key="(ConnectTimeout[^"]*)"', page)) == [
        f"ConnectTimeout {task} app/webhooks.py:88 in post" for task in ("hook", "mail")
    ]


@pytest.mark.extra
@pytest.mark.parametrize("path", ["/jobs", "/failures"])
async def test_span_of_the_first_or_the_last_years_is_refused_by_the_page(
    server: EmbeddedRedis, queue: str, path: str
) -> None:
    async with browsing(server.url, queues=(queue,), console_zone="Europe/Berlin") as browser:
        for name in ("from", "to"):
            for text in ("0001-01-01T00:00", "1e18"):
                wrong = await browser.words(path, **{name: text})
                assert f"The span cannot be read: '{text}' is out of range" in wrong
