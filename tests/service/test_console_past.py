"""The console's pages of the past: the history, its counts, jobs that run again, and the audit trail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from html import unescape
from itertools import pairwise
from typing import Any

import pytest

from evsched.client.client import Client
from evsched.client.history import EVERY_END
from evsched.client.past_acts import ActFilter
from evsched.console import ends_search
from evsched.console.ends_search import search_ends
from evsched.console.newer_rows import NewerActs, NewerEnds
from evsched.console.users import make_token, remove_token
from evsched.jobs.job import Buried, Done
from evsched.store.acts import Operator
from evsched.store.audit_trail import DeploymentTrail
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import Browser, browsing, words
from tests.support.console import Stream
from tests.support.patience import PATIENCE
from tests.support.sent import Sent

pytestmark = pytest.mark.anyio

SECRET = "4111-1111"
PAYLOAD = b'{"task":"pay","kwargs":{"card":"4111-1111","sum":3},"redact":["card"],"tags":["patient:42"]}'
INFINITE = float("-inf"), float("inf")

Ended = Callable[..., Awaitable[None]]


@pytest.fixture
async def browser(server: EmbeddedRedis) -> AsyncGenerator[Browser]:
    async with browsing(server.url) as found:
        yield found


@pytest.fixture
async def ended(browser: Browser, queue: str) -> Ended:
    """Return a function that runs jobs: done, or dead if `error` is given."""
    client, store = browser.console.client, Store(queue)

    async def run(*ids: str, error: str = "", payload: bytes = PAYLOAD, group: str | None = None) -> None:
        await client.send(store.enqueue([New(job, payload, group=group) for job in ids]))
        await client.send(store.dispatch(limit=999, cap=1000))
        started = (await client.send(store.start("w", (), hold=999, lease=15))).jobs
        assert len(started) == len(ids)
        if error:
            buried = Buried(f"attempt 1 of 1: {error}", False, error=error, location="/app/pay.py:7 in pay")
            await client.send(store.bury("w", [(job, buried) for job in started]))
        else:
            done = Done(b"1", 300.0, False, label=b'["pay","patient:42"]')
            await client.send(store.complete("w", [(job, done) for job in started]))

    return run


async def test_history_answers_with_a_sentence_counts_and_rows(browser: Browser, ended: Ended, queue: str) -> None:
    await ended("good", group="alice")
    await ended("bad", error="lib.Timeout")
    page = await browser.page(f"/history?queue={queue}&tag=patient:42&since=1h")
    assert f"2 jobs tagged patient:42 ended in {queue} in the last 1h:" in page
    assert "1 done, 1 dead." in page
    assert page.index(">bad</a>") < page.index(">good</a>")
    assert "lib.Timeout at pay.py:7" in page
    assert SECRET not in page
    assert f"evsched history --tag patient:42 --queue {queue} --since 1h" in page


@pytest.mark.extra
@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("outcome=dead", ["bad"]),
        ("error=Timeout", ["bad"]),
        ("group=alice", ["good"]),
        ("id=good&since=1h", ["good"]),
        ("task=pay", ["bad", "good"]),
        ("task=other", []),
        ("until=1h", []),
    ],
)
async def test_history_finds_by_each_condition(
    browser: Browser, ended: Ended, queue: str, query: str, ids: list[str]
) -> None:
    await ended("good", group="alice")
    await ended("bad", error="lib.Timeout")
    found = await browser.data(f"/history?queue={queue}&{query}&as=json")
    assert [job["id"] for job in found["jobs"]] == ids


async def test_pages_of_the_history_have_each_job_once(browser: Browser, ended: Ended, queue: str) -> None:
    for batch in range(8):  # of one moment each, and more than a page in all
        await ended(*(f"{batch}-{n}" for n in range(20)))
    seen, path = list[str](), f"/history?queue={queue}"
    for _ in range(4):
        page = await browser.page(path)
        seen += re.findall(r'class="id" href="[^"]*">(\d-\d+)</a>', page)
        older = re.search(r'href="([^"]*before=[^"]*)">Older', page)
        if older is None:
            break
        path = older[1].replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 160
    assert [one[0] for one in seen] == sorted((one[0] for one in seen), reverse=True)


async def test_search_begins_at_its_moment_and_skips_newer_ends(browser: Browser, ended: Ended, queue: str) -> None:
    client = browser.console.client.metered()
    for n in range(400):
        await ended(f"j{n}")
    newest = await search_ends(client, [Store(queue)], EVERY_END, "", INFINITE, limit=400)
    middle, client.commands = newest.rows[300].ended, 0
    found = await search_ends(client, [Store(queue)], EVERY_END, "", (INFINITE[0], middle), limit=10)
    assert [job.id for job in found.rows] == [job.id for job in newest.rows[300:310]]
    assert found.found == 100
    assert client.commands < 20


async def test_search_says_what_it_has_read_and_goes_on_with_what_it_has_found(
    browser: Browser, ended: Ended, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends_search, "_TIME", 0.0)  # a part for each page
    await ended("oldest", group="alice")
    for n in range(120):
        await ended(f"j{n}", **({"group": "alice"} if n == 55 else {}))
    path, said = f"/history?queue={queue}&group=alice&since=1h", list[str]()
    for _ in range(4):
        page = await browser.page(path)
        said.append(words(page))
        on = re.search(r'href="([^"]*)"[^>]*>Go on searching', page)
        if on is None:
            break
        path = unescape(on[1])
    assert re.search(rf"No job of group alice ended in {queue} since [\d:]+; older ones are not read yet\.", said[0])
    assert re.search(rf"1 job of group alice ended in {queue} since .*: 1 done; older ones", said[1])
    assert f"2 jobs of group alice ended in {queue} in the last 1h: 2 done." in said[-1]
    assert " j55 " in said[-1], "what was found stays"
    assert " oldest " in said[-1]


@pytest.mark.extra
async def test_search_that_is_no_longer_kept_begins_again(
    browser: Browser, ended: Ended, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends_search, "_TIME", 0.0)
    for n in range(120):
        await ended(f"j{n}")
    page = await browser.page(f"/history?queue={queue}&id=none&on=gone")
    assert f"No job with the id none ended in {queue} since" in words(page)
    assert "Go on searching" in page


async def test_two_queues_are_read_as_one_history(browser: Browser, queue: str) -> None:
    client, names = browser.console.client, [f"{queue}-a", f"{queue}-b"]
    for n in range(12):
        store = Store(names[n % 2])
        await client.send(store.enqueue([New(f"j{n}", PAYLOAD)]))
        await client.cancel(store.queue, f"j{n}")
    found = await browser.data(f"/history?queue={','.join(names)}&as=json")
    assert [job["id"] for job in found["jobs"]] == [f"j{n}" for n in reversed(range(12))]
    assert found["counts"] == {"cancelled": 12}


async def test_week_is_counted_by_task(browser: Browser, ended: Ended, queue: str) -> None:
    await ended("good")
    await ended("bad", error="Timeout")
    page = await browser.page(f"/history?queue={queue}")
    row = re.search(rf'<tr><th><a href="[^"]*">{queue}</a></th>.*?</tr>', page)
    assert row is not None
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>.*?</t[dh]>", row[0])]
    assert cells[0] == queue
    assert re.fullmatch(r"paylate: half [\d.]+ m?s, 99 % [\d.]+ m?s", cells[1]), "the second line is for phones"
    assert cells[2:7] == ["2", "50.00 %", "1", "0", "0"]
    assert all(cell.endswith("s") for cell in cells[7:])


@pytest.mark.extra
async def test_week_of_many_queues_is_added_up_once_for_all_readers(browser: Browser, queue: str, raw: Any) -> None:
    names = [f"{queue}.{n}" for n in range(21)]
    hours = [f"evsched:{{{name}}}:hour:{raw.time()[0] // 3600}" for name in names]
    for hour in hours:
        raw.hset(hour, "done 2 5 pay", 3)
    page = f"/history?queue={','.join(names)}"
    async with asyncio.timeout(PATIENCE):
        while "still being counted" in (first := words(await browser.page(page))):
            pass
    assert "last 24 hours: 63 ended" in first
    raw.delete(*hours)
    assert "last 24 hours: 63 ended" in words(await browser.page(page))
    assert "last 24 hours: 0 ended" in words(await browser.page(f"/history?queue={names[0]}"))


async def test_job_runs_again_as_a_copy_with_its_redacted_values(browser: Browser, ended: Ended, queue: str) -> None:
    await ended("good", group="alice")
    page = f"/history?queue={queue}"
    assert "Run again" in await browser.page(page)
    answer = await browser.act(page, "again", job=f"{queue} good")
    assert answer.status_code == 303
    client = browser.console.client
    (copy,) = re.findall(r"id=(\w+)", answer.headers["location"])
    assert await client.send(Store(queue).payload(copy)) == PAYLOAD
    status = await client.status(queue, copy)
    assert status is not None
    assert (status.place, status.group) == ("schedule", "alice")
    shown = await browser.page(answer.headers["location"])
    assert "a copy of job good" in shown
    assert SECRET not in shown
    (act,) = await client.audit(queue)
    assert (act.act, act.who, act.source, act.ids, act.what) == ("again", "local", "console", [copy], {"job": "good"})


@pytest.mark.extra
async def test_job_without_a_record_does_not_run_again(browser: Browser, queue: str) -> None:
    answer = await browser.act("/tokens", "again", job=f"{queue} gone")
    assert answer.status_code == 404
    assert "keeps no record of job gone" in answer.text


async def test_span_of_the_history_may_end_now_and_not_before_it_begins(
    browser: Browser, queue: str, ended: Ended
) -> None:
    await ended("good")
    assert "1 job ended" in await browser.words("/history", queue=queue, since="1h", until="now")
    assert "exchange Since and Until" in await browser.words("/history", queue=queue, since="1h", until="2h")


@pytest.mark.extra
async def test_table_of_the_week_says_that_redis_alone_counts_it(browser: Browser, queue: str, ended: Ended) -> None:
    await ended("good")
    said = await browser.words("/history", queue=queue, ledger="1")
    assert "By queue and task, counted by Redis" in said
    assert "evsched history counts counts the ledger, too" in said
    assert "counted by Redis" not in await browser.words("/history", queue=queue)


@pytest.mark.extra
async def test_error_does_not_change_the_case_of_a_name(browser: Browser, queue: str) -> None:
    answer = await browser.client.get("/recurrence", params={"queue": queue, "name": "camelCase"})
    assert "camelCase is not a recurrence" in words(answer.text)


@pytest.mark.extra
async def test_job_that_waits_does_not_run_again(browser: Browser, queue: str) -> None:
    await browser.console.client.enqueue(queue, [New("waits", PAYLOAD, due=2e9)])
    answer = await browser.act("/tokens", "again", job=f"{queue} waits")
    assert answer.status_code == 409
    assert "This was not done" in words(answer.text)
    assert "has not ended" in answer.text
    assert await browser.console.client.audit(queue) == []


@pytest.mark.extra
async def test_copy_has_no_expiry_that_has_passed(browser: Browser, ended: Ended, queue: str, raw: Any) -> None:
    await ended("good")
    client = browser.console.client
    old = PAYLOAD[:-1] + b',"expires":5,"priority":9}'
    raw.hset(f"evsched:{{{queue}}}:job:good", "payload", old)
    copy = await client.run_again(queue, "good")
    assert await client.send(Store(queue).payload(copy)) == PAYLOAD


# Newer rows.


def stream_of(page: str) -> str:
    found = re.search(r'data-stream="([^"]*)"', page)
    assert found is not None, "the page is not live"
    return unescape(found[1])


async def announced(stream: Stream) -> str:
    """Return what the next reading that has changed says of newer rows."""
    return words((await stream.regions())["newer"])


async def test_newer_ends_that_match_are_counted_while_the_page_is_open(
    browser: Browser, ended: Ended, queue: str
) -> None:
    await ended("first")
    path = f"/history?queue={queue}&outcome=done"
    live = stream_of(await browser.page(path))
    await ended("good1", "good2")
    await ended("bad", error="Timeout")
    async with Stream(browser.app, live) as stream:
        assert await announced(stream) == "2 newer: show"
        await ended("good3")
        assert await announced(stream) == "3 newer: show"
    assert words((await browser.page(path)).partition("<tbody>")[2]).count("good") == 3
    async with Stream(browser.app, stream_of(await browser.page(path))) as stream:
        assert await announced(stream) == ""


async def test_newer_acts_that_match_are_counted_while_the_page_is_open(browser: Browser, queue: str) -> None:
    client = browser.console.client.as_operator("ann")
    await client.pause(queue)
    live = stream_of(await browser.page(f"/audit?queue={queue}&who=ann"))
    async with Stream(browser.app, live) as stream:
        assert await announced(stream) == ""
        await client.resume(queue)
        await client.as_operator("bob").pause(queue)
        assert await announced(stream) == "1 newer: show"


@pytest.mark.extra
async def test_newer_token_is_counted_in_the_audit_trail(browser: Browser) -> None:
    live = stream_of(await browser.page("/audit?act=remove-token"))
    async with Stream(browser.app, live) as stream:
        assert await announced(stream) == ""
        client = browser.console.client
        await client.run(make_token("zoe", "viewer", 0.0, Operator("ann", "cli")))
        await client.run(remove_token("zoe", Operator("ann", "cli")))
        assert await announced(stream) == "1 newer: show"


@pytest.mark.extra
@pytest.mark.parametrize("page", ["/history?queue={queue}&before=5", "/history?queue={queue}&until=1h"])
async def test_page_of_older_rows_is_not_live(browser: Browser, ended: Ended, queue: str, page: str) -> None:
    await ended("first")
    assert "data-stream" not in await browser.page(page.format(queue=queue))


@pytest.mark.extra
async def test_console_that_did_not_draw_the_page_counts_too(
    browser: Browser, ended: Ended, queue: str, server: EmbeddedRedis
) -> None:
    await ended("first")
    live = stream_of(await browser.page(f"/history?queue={queue}"))
    await ended("second", "third")
    async with browsing(server.url) as other, Stream(other.app, live) as stream:
        assert await announced(stream) == "2 newer: show"
        await ended("fourth")
        assert await announced(stream) == "3 newer: show"


@pytest.mark.one_server
async def test_newer_rows_of_200_queues_cost_few_commands(browser: Browser, server: EmbeddedRedis, queue: str) -> None:
    client, names = browser.console.client.metered(), [f"{queue}.{n}" for n in range(200)]
    stores = [Store(name) for name in names]
    newer = NewerEnds(EVERY_END, 0.0, dict.fromkeys(names, "0-0"))
    for store in (*stores[:3], *[stores[0]] * 40):
        await client.send(store.enqueue([New("j", PAYLOAD)]))
        await client.cancel(store.queue, "j")
    client.commands = 0
    with Sent(server.url) as sent:
        await newer.look(client, stores)
        assert newer.words == "43"  # the second call goes on with the busy queue
        await newer.look(client, stores)
        lines = [line for line in sent.commands() if queue in line]
    assert (newer.words, client.commands, len(lines)) == ("43", 3, 3)
    acts = NewerActs(ActFilter(), 0.0)
    client.commands = 0
    await acts.look(client, [*stores, DeploymentTrail()])
    assert client.commands == 1


@pytest.mark.extra
async def test_stream_of_another_type_does_not_hide_the_others(browser: Browser, queue: str, raw: Any) -> None:
    client, stores = browser.console.client, [Store(f"{queue}.a"), Store(f"{queue}.b")]
    newer = NewerEnds(EVERY_END, 0.0, {store.queue: "0-0" for store in stores})
    raw.set(f"evsched:{{{queue}.a}}:history", "text")
    await client.send(stores[1].enqueue([New("j", PAYLOAD)]))
    await client.cancel(stores[1].queue, "j")
    for _ in range(2):
        await newer.look(client.metered(), stores)
        assert newer.words == "1"


# The chart.


async def test_chart_shows_what_the_list_is_about(browser: Browser, ended: Ended, queue: str, raw: Any) -> None:
    await ended("good", group="alice")
    await ended("bad", "worse", error="Timeout")
    raw.hset(f"evsched:{{{queue}}}:hour:{raw.time()[0] // 3600}", "done 2 5 other", 40)
    path = f"/history?queue={queue}"
    assert "last 24 hours: 43 ended, 95.35 % without a death, 2 died" in words(await browser.page(path))
    for query, said in (
        ("&task=pay", "last 24 hours: 3 ended"),
        ("&task=other", "last 24 hours: 40 ended"),
        ("&outcome=dead", "last 24 hours: 2 ended"),
        ("&task=pay&outcome=done", "last 24 hours: 1 ended"),
        ("&since=20h", "21 whole hours: 43 ended"),
        ("&tag=patient:42", "of the 3 jobs found"),
        ("&error=Timeout", "of the 2 jobs found"),
        ("&since=1h", "of the 3 jobs found"),
    ):
        assert said in words(await browser.page(path + query)), query
    one = await browser.page(f"{path}&group=alice")
    assert 'class="chart"' not in one, "of one job there is no chart"


@pytest.mark.extra
async def test_table_of_the_week_follows_the_task_and_no_other_condition(
    browser: Browser, ended: Ended, queue: str, raw: Any
) -> None:
    await ended("good")
    raw.hset(f"evsched:{{{queue}}}:hour:{raw.time()[0] // 3600}", "done 2 5 other", 40)
    page = await browser.page(f"/history?queue={queue}&task=pay")
    table = words(page.partition("By queue and task")[2].partition("</section>")[0])
    assert re.search(rf"{queue} pay late: half \S+ m?s, 99 % \S+ m?s 1 ", table)
    assert "other" not in table
    assert f"evsched history counts --since 7d --task pay --queue {queue}" in page
    assert "By queue and task" not in await browser.page(f"/history?queue={queue}&tag=patient:42")


async def test_chart_and_counts_are_before_the_rows_with_how_far_redis_reaches(
    browser: Browser, ended: Ended, queue: str, raw: Any
) -> None:
    await ended("first")
    raw.hset(f"evsched:{{{queue}}}:hour:{raw.time()[0] // 3600}", mapping={f"done 2 5 task{n}": 40 for n in range(9)})
    page = await browser.page(f"/history?queue={queue}")
    places = [page.index(text) for text in ('id="counts"', "By queue and task", 'data-part="ends"', ">first</a>")]
    assert places == sorted(places)
    assert re.search(r"By queue and task since [\d:]+00:00\. ", words(page)), "older hours have no counts"
    assert "All 10 rows" in words(page)
    everything = words(await browser.page(f"/history?queue={queue}&counts=all"))
    assert all(re.search(rf"task{n} late: half \S+( m?s)?, 99 % \S+( m?s)? 40 ", everything) for n in range(9))


async def test_each_condition_of_the_history_is_asked_for_once(browser: Browser, queue: str) -> None:
    for name in ("a", "b"):
        await browser.console.client.enqueue(f"{queue}-{name}", [New("j", PAYLOAD, due=2e9)])
    page = (await browser.page("/history", queue=f"{queue}-a")).partition('id="filters"')[2].partition("</form>")[0]
    assert f">{queue}-b</a>" in page
    assert f'type="hidden" name="queue" value="{queue}-a"' in page, "another condition leaves it as it is"
    assert page.count('name="queue"') == 1
    assert "since=" not in page, "the field offers the usual spans"
    assert "<option>24h</option>" in page


async def test_times_below_a_chart_are_at_even_distances(browser: Browser, ended: Ended, queue: str) -> None:
    await ended("a")
    page = await browser.page(f"/history?queue={queue}")
    marks = re.findall(r"<span>(\d\d):00</span>", page.partition('class="axis"')[2].partition("</p>")[0])
    assert len(marks) == 5
    assert {(int(later) - int(earlier)) % 24 for earlier, later in pairwise(marks)} == {6}


async def test_answer_begins_with_how_far_redis_reaches(browser: Browser, ended: Ended, queue: str, raw: Any) -> None:
    await ended("first", group="alice")
    await ended("second", group="alice")
    path = f"/history?queue={queue}&since=7d"
    assert re.search(
        rf"Known only since \d+ \w+ [\d:]+: 2 jobs ended in {queue} in the last 7d", await browser.words(path)
    )
    assert "Known only" not in await browser.words(f"/history?queue={queue}&since=1h"), "a queue that has lost none"
    raw.xtrim(f"evsched:{{{queue}}}:history", maxlen=1, approximate=False)
    for since, said in (("7d", " in the last 7d"), ("1h", " in the last 1h"), ("", "")):
        page = await browser.words(f"/history?queue={queue}&since={since}")
        assert re.search(rf"Known only since \d\d:\d\d:\d\d: 1 job ended in {queue}{said}: 1 done", page)
    none = await browser.words(f"{path}&group=none")
    assert re.search(rf"Known only since [\d:]+: no job of group none ended in {queue} in the last 7d\.", none)


async def test_audit_trail_is_shown_as_sentences(browser: Browser, queue: str) -> None:
    client: Client = browser.console.client.as_operator("ann", "cli")
    await client.enqueue(queue, [New(f"j{n}", PAYLOAD, due=2e9) for n in range(5)])
    await client.pause(queue, until=4e9, why="the provider is down")
    await client.limit(queue, concurrency=20, rate=None)
    await client.cancel(queue, "j0")
    await client.as_operator("bob", "console").cancel(queue, "j1")
    page = await browser.page(f"/audit?queue={queue}")
    text = words(page)
    assert f"4 acts by 2 operators in {queue}. The last: bob cancelled j1" in text
    assert "ann command line cancelled j0" in text
    assert f"limited {queue} : concurrency 20, rate none" in text
    assert f"paused {queue} until" in text
    assert "the provider is down" in text
    found = await browser.data(f"/audit?queue={queue}&who=bob&as=json")
    assert [(act["who"], act["act"], act["ids"]) for act in found] == [("bob", "cancel", ["j1"])]


async def test_audit_offers_the_acts_that_are_in_the_trail(browser: Browser, queue: str) -> None:
    client = browser.console.client.as_operator("ann")
    await client.pause(queue)
    await client.resume(queue)
    for query in ("", "&act=pause"):
        page = await browser.page(f"/audit?queue={queue}{query}")
        offered = re.findall(r">([\w-]+)</a>", page.partition("all acts</a>")[2].partition("<span>·</span>")[0])
        assert offered == ["pause", "resume"], query


@pytest.mark.extra
@pytest.mark.parametrize(("query", "count"), [("act=pause", 1), ("id=j0", 1), ("since=1h", 3), ("until=1h", 0)])
async def test_audit_finds_by_each_condition(browser: Browser, queue: str, query: str, count: int) -> None:
    client = browser.console.client.as_operator("ann")
    await client.enqueue(queue, [New("j0", PAYLOAD, due=2e9)])
    await client.cancel(queue, "j0")
    await client.pause(queue)
    await client.resume(queue)
    assert len(await browser.data(f"/audit?queue={queue}&{query}&as=json")) == count


async def test_pages_of_the_audit_trail_have_each_act_once(browser: Browser, queue: str) -> None:
    client = browser.console.client.as_operator("ann")
    for n in range(60):
        await client.pause(queue, why=f"reason {n:02}")
    first = await browser.page(f"/audit?queue={queue}")
    older = re.search(r'href="([^"]*before=[^"]*)">Older', first)
    assert older is not None
    second = await browser.page(older[1].replace("&amp;", "&"))
    seen = [re.findall(r"reason \d\d", page.partition("<tbody>")[2]) for page in (first, second)]
    assert [len(part) for part in seen] == [50, 10]
    assert len({*seen[0], *seen[1]}) == 60


@pytest.mark.parametrize(
    "page", ["/history?until=soon", *(pytest.param(page, marks=pytest.mark.extra) for page in ("/audit?until=soon",))]
)
async def test_time_that_cannot_be_read_is_named_above_the_form_that_keeps_it(
    browser: Browser, ended: Ended, queue: str, page: str
) -> None:
    await ended("a")
    await browser.console.client.as_operator("ann").pause(queue)
    found = await browser.page(f"{page}&queue={queue}")
    assert "The search cannot be read: 'soon' is not a time" in words(found)
    assert 'name="until" size="8" value="soon"' in found or 'name="until" size="9" value="soon"' in found
    assert (">a</a>" in found, "<th>ann" in found) == (False, False), "it finds nothing"
    assert "data-stream" not in found


@pytest.mark.extra
async def test_wrong_outcome_is_named(browser: Browser) -> None:
    found = await browser.client.get("/history?outcome=odd")
    assert (found.status_code, "one of done" in found.text) == (400, True)
