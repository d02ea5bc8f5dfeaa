"""The console's pages about jobs: the search, acts on all that match, redacted values, and the first page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator
from html import unescape
from typing import Any

import pytest

from evsched import keys
from evsched.client.client import SyncClient
from evsched.console.views import jobs
from evsched.recurrence.recurrence import Declared
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.browsing import Browser, browsing, words

LATER = 4_000_000_000.0
PAYLOAD = b'{"task":"pay","tags":["x"]}'


@pytest.fixture
async def browser(server: EmbeddedRedis, queue: str) -> AsyncGenerator[Browser]:
    async with browsing(server.url, queues=(queue,)) as found:
        yield found


@pytest.fixture
def client(server: EmbeddedRedis) -> Any:
    found = SyncClient(server.url)
    yield found
    found.close()


def enqueue(client: SyncClient, queue: str, count: int) -> None:
    client.enqueue(queue, [New(f"j{n:03}", PAYLOAD, due=LATER + n) for n in range(count)])


async def test_search_lists_jobs_and_leads_to_the_one_of_an_id(
    browser: Browser, client: SyncClient, queue: str
) -> None:
    enqueue(client, queue, 60)
    assert "60 jobs are on the schedule. These 50 are due next." in await browser.words("/jobs", q="place:schedule")
    assert "60 jobs match." in await browser.words("/jobs", q="task:pay tag:x")
    assert "waits" not in await browser.words("/jobs", q="task:other")
    assert "j007" in (await browser.words("/jobs", q="j007"))
    assert "due in" in await browser.words("/job", queue=queue, id="j007")
    assert "tsk: is not a qualifier" in await browser.words("/jobs", q="tsk:pay")


def bury(raw: Any, queue: str, count: int) -> None:
    """Make dead jobs."""
    for n in range(count):
        raw.hset(keys.job(queue, f"d{n}"), "payload", '{"task":"t"}')
    raw.zadd(f"{keys.root(queue)}dead", {f"d{n}": 1.7e9 + n for n in range(count)})


async def test_list_of_queues_that_are_not_counted_says_that_there_are_more(
    browser: Browser, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_COUNTED", 0)
    bury(raw, queue, 51)
    page = await browser.page("/jobs", q="place:dead")
    assert "More than 50 jobs are dead. These 50 died last." in words(page)
    assert 'href="/jobs?q=place%3Adead&amp;more=1">More rows' in page
    page = await browser.page("/jobs", q="place:dead", more="1")
    assert "51 jobs are dead. Filters" in words(page)
    assert "More rows" not in page


@pytest.mark.extra
async def test_list_that_ends_before_all_jobs_are_shown_says_so(
    browser: Browser, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PAGES", 1)
    bury(raw, queue, 101)
    assert "The list ends here" not in await browser.words("/jobs", q=f"place:dead queue:{queue}")
    assert "The list ends here" in await browser.words("/jobs", q=f"place:dead queue:{queue}", more="1")


@pytest.mark.parametrize("field", ["group", "task"])
async def test_limit_of_a_blank_group_is_refused(browser: Browser, client: SyncClient, queue: str, field: str) -> None:
    enqueue(client, queue, 1)
    client.limit(queue, concurrency=5)
    for blank in ("", " "):
        answer = await browser.act(f"/queue?name={queue}", "limit", queue=queue, concurrency="1", **{field: blank})
        assert answer.status_code == 400
    assert client.limits(queue).queue == {"concurrency": 5}


async def test_act_within_a_place_names_it_in_the_audit_trail(
    browser: Browser, client: SyncClient, queue: str, raw: Any
) -> None:
    enqueue(client, queue, 2)
    page = await browser.page("/bulk", verb="cancel", q=f"queue:{queue} place:schedule,dead task:pay", all="1")
    await browser.send(page, "cancel", q=f"queue:{queue} place:schedule,dead task:pay")
    await browser.console.acts.wait()
    (act,) = client.audit(queue)
    assert (act.count, act.what["filter"]["place"], act.what["filter"]["task"]) == (2, "schedule", "pay")
    assert "task:pay place:schedule" in await browser.words("/audit", queue=queue)


@pytest.mark.parametrize("job", ["default", "", " a", "default "])
@pytest.mark.parametrize(
    "act",
    ["cancel", *(pytest.param(one, marks=pytest.mark.extra) for one in ("reschedule", "revive", "again", "signal"))],
)
async def test_form_that_names_no_job_is_refused(browser: Browser, queue: str, act: str, job: str) -> None:
    answer = await browser.act("/tokens", act, job=job, due="now")
    says = "does not name a job: write its queue, a space" if job else "the form names no job: choose one"
    assert (answer.status_code, says in answer.text) == (400, True)
    page = await browser.page("/tokens")
    both = await browser.client.post(f"/act/{act}", data={"proof": _proof(page), "job": [job, f"{queue} b"]})
    assert both.status_code == 400


async def test_form_that_names_no_recurrence_says_so(browser: Browser) -> None:
    answer = await browser.act("/tokens", "trigger", recurrence="")
    assert (answer.status_code, "the form names no recurrence: choose one" in answer.text) == (400, True)


async def test_act_that_fails_says_so_and_is_logged(
    browser: Browser, client: SyncClient, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(client, queue, 1)
    monkeypatch.setattr("evsched.console.job_acts._change_all", _fail)
    answer = await browser.act(f"/queue?name={queue}", "cancel", q="task:pay")
    await browser.console.acts.wait()
    said = await browser.words(answer.headers["location"])
    assert "0 changed, then stopped. It failed. This is a bug of evsched" in said
    assert "an act of a user failed: Cancel the jobs that match task:pay" in caplog.text


async def _fail(*_: Any) -> None:
    raise LookupError


@pytest.mark.extra
async def test_act_of_a_console_that_has_ended_is_said_to_have_ended(browser: Browser) -> None:
    answer = await browser.client.get("/act", params={"id": "gone"})
    assert answer.status_code == 404
    assert "the act ended with it. The audit trail has how many jobs were changed" in words(answer.text)
    assert "There is no such page" not in answer.text


@pytest.mark.parametrize("due", ["17.00", "1730", "2020-01-01", "946684800"])
async def test_job_is_not_rescheduled_to_a_mistyped_or_past_time(
    browser: Browser, client: SyncClient, queue: str, due: str
) -> None:
    enqueue(client, queue, 1)
    answer = await browser.act(f"/job?queue={queue}&id=j000", "reschedule", job=f"{queue} j000", due=due)
    assert answer.status_code == 400
    status = client.status(queue, "j000")
    assert status is not None
    assert status.due == LATER


async def test_search_for_a_queue_finds_the_jobs_of_all_places(browser: Browser, queue: str, raw: Any) -> None:
    bury(raw, queue, 2)
    assert "2 jobs match." in await browser.words("/jobs", q=f"queue:{queue}")


async def test_command_of_a_page_is_folded(browser: Browser, client: SyncClient, queue: str) -> None:
    enqueue(client, queue, 1)
    page = await browser.page("/queue", name=queue)
    folded = page.partition("<summary>On the command line</summary>")
    assert f"evsched pause {queue}" in folded[2].partition("</details>")[0]
    assert "<details" in folded[0][-30:]


async def test_search_for_an_id_of_several_queues_lists_its_jobs(
    server: EmbeddedRedis, client: SyncClient, queue: str
) -> None:
    names = f"{queue}-a", f"{queue}-b"
    for name in names:
        client.enqueue(name, [New("same", PAYLOAD, due=LATER)])
    async with browsing(server.url, queues=names) as browser:
        page = await browser.page("/jobs", q="same")
        assert [f"/job?queue={name}&amp;id=same" in page for name in names] == [True, True]
        assert "2 jobs match." in words(page)
        assert "due in" in await browser.words("/jobs", q=f"same queue:{names[1]}")


async def test_a_word_that_is_no_id_leads_to_the_history_and_to_recurrences_of_its_name(
    browser: Browser, client: SyncClient, queue: str
) -> None:
    await browser.console.client.declare(queue, Declared(name="nightly_report", payload=PAYLOAD, rule="0 2 * * *"))
    gone = await browser.page("/jobs", q="nobody")
    assert "No job has the id nobody now. It may have ended" in words(gone)
    assert 'href="/history?id=nobody"' in gone
    assert f"/history?id=nobody&amp;queue={queue}" in await browser.page("/jobs", q=f"nobody queue:{queue}")
    assert f"/history?id=nightly_report%4017.0&amp;queue={queue}" in await browser.page(
        "/jobs", q="nightly_report@17.0"
    )
    named = await browser.page("/jobs", q="nightly")
    assert f'href="/recurrence?queue={queue}&amp;name=nightly_report"' in named
    assert f"Recurrence nightly_report of {queue} Run now Who changed it" in words(named)


async def test_an_unknown_qualifier_is_offered_as_a_tag(browser: Browser, client: SyncClient, queue: str) -> None:
    client.enqueue(queue, [New("a", b'{"task":"pay","tags":["patient:42"]}', due=LATER)])
    page = await browser.page("/jobs", q="task:pay patient:42")
    assert "Did you mean task:pay tag:patient:42, task:pay arg:patient=42 or task:pay id:patient:42?" in words(page)
    assert 'href="/jobs?q=task%3Apay+tag%3Apatient%3A42"' in page
    assert "1 job matches." in await browser.words("/jobs", q="task:pay tag:patient:42")


async def test_progress_of_a_search_never_goes_back(
    server: EmbeddedRedis, client: SyncClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = (queue, f"{queue}b", f"{queue}c")
    for one in queues:
        enqueue(client, one, 40)
    monkeypatch.setattr(jobs, "_TIME", 0.0)
    monkeypatch.setattr("evsched.client.sweep._SLICE", 5)
    async with browsing(server.url, queues=queues) as browser:
        first = await browser.page("/jobs", q="tag:x")
        assert "Searching: no match yet in 0 % of about 120 jobs." in words(first)
        assert 'data-on href="/jobs?q=tag%3Ax&amp;more=0"' in first
        monkeypatch.setattr(jobs, "_TIME", 0.001)
        shares = list[float]()
        while "so far" in (said := await browser.words("/jobs", q="tag:x", more="0")):
            (share,) = re.findall(r"so far, ([\d.]+) % of about 120 jobs searched", said)
            shares.append(float(share))
        assert shares == sorted(shares)
        assert "120 jobs match." in said


async def test_act_on_all_that_match_says_how_many_first_and_changes_only_those(
    browser: Browser, client: SyncClient, queue: str
) -> None:
    enqueue(client, queue, 30)
    client.enqueue(queue, [New("other", b'{"task":"mail"}', due=LATER)])
    page = await browser.page("/bulk", verb="cancel", q="task:pay", all="1")
    assert "Cancel 30 jobs?" in page
    assert "Cancel 30 jobs</span></button>" in page
    await browser.send(page, "cancel", q="task:pay")
    await browser.console.acts.wait()
    assert [job.id for job in await browser.console.client.find(queue, _every())] == ["other"]
    (act,) = client.audit(queue)
    assert (act.act, act.who, act.source, act.count) == ("cancel", "local", "console", 30)
    by_user = await browser.client.post("/act/cancel", data={"proof": _proof(page), "q": "by:ann task:mail"})
    assert by_user.status_code == 400
    assert "choose them in the list" in by_user.text
    assert client.status(queue, "other") is not None


def _every() -> Any:
    from evsched.client.sweep import Filter

    return Filter()


def _proof(page: str) -> str:
    return page.split('name="proof" value="')[1].split('"')[0]


async def test_inline_job_shows_no_value_that_a_worker_redacts(
    browser: Browser, server: EmbeddedRedis, client: SyncClient, queue: str, raw: Any
) -> None:
    member = '{"task":"charge","args":[5,"SEKRET-G"]}'
    raw.zadd(f"evsched:{{{queue}}}:schedule", {member: LATER})
    sender = SyncSender(server.url)
    assert "SEKRET-G" in await browser.page("/jobs", q="task:charge")
    sender.send(Store(queue).set_redactions({"charge": '["card","2"]'}))
    for query in ("task:charge", "place:schedule", ""):
        page = await browser.page("/jobs", q=query)
        assert "charge" in page
        assert "SEKRET-G" not in page
    page = await browser.page("/bulk", verb="cancel", q="task:charge", all="1")
    assert "SEKRET-G" not in page
    await browser.send(page, "cancel", q="task:charge")
    await browser.console.acts.wait()
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 0
    assert "SEKRET-G" not in await browser.page("/audit")
    assert "SEKRET-G" not in json.dumps([act.ids for act in client.audit(queue)])
    sender.close()


async def test_links_of_a_job_find_its_task_and_group_whatever_their_names(
    browser: Browser, client: SyncClient, queue: str
) -> None:
    client.enqueue(queue, [New("a", b'{"task":"pay it","group":"west end"}', group="west end", due=LATER)])
    page = await browser.page("/job", queue=queue, id="a")
    for query in ("task%3A%22pay+it%22", "group%3A%22west+end%22"):
        (link,) = {one.split('"')[0] for one in page.split('href="') if query in one.split('"')[0]}
        assert "1 job matches." in await browser.words(link.replace("&amp;", "&"))


async def test_queue_that_was_never_used_is_not_changed(
    browser: Browser, queue: str, raw: Any, client: SyncClient
) -> None:
    enqueue(client, queue, 1)
    page = await browser.page("/queue", name=queue)
    fields = {"proof": _proof(page), "queue": f"{queue}x", "concurrency": "5"}
    for act in ("pause", "limit", "resume"):
        refused = await browser.client.post(f"/act/{act}", data=fields)
        assert refused.status_code == 400
        assert "has no jobs, no workers and no recurrences" in refused.text
    assert not raw.keys(f"evsched:{{{queue}x}}:*")
    raw.hset(f"evsched:{{{queue}x}}:limits", "rate", "3")
    assert (await browser.client.post("/act/limit", data=fields)).status_code == 303, "it has limits"


async def test_id_that_no_page_can_name_has_no_link(browser: Browser, queue: str, raw: Any) -> None:
    for job in (b"\xff\xfe", b""):
        raw.hset(f"evsched:{{{queue}}}:job:".encode() + job, "payload", '{"task":"pay"}')
        raw.zadd(f"evsched:{{{queue}}}:schedule", {job: LATER})
    page = await browser.page("/jobs", q="place:schedule")
    assert "(empty)" in words(page)
    assert r"\xff\xfe" in words(page)
    assert "/job?" not in page


async def test_first_page_names_what_needs_attention(browser: Browser, client: SyncClient, queue: str) -> None:
    client.enqueue(queue, [New("now", b'{"task":"pay"}')])
    words = await browser.words("/")
    assert "need attention" in words
    assert "No dispatcher is connected" in words
    assert f"{queue}: 1 job is due, and no worker serves the queue." in words


async def test_first_page_has_the_worst_first_and_names_the_cause_of_deaths(
    server: EmbeddedRedis, client: SyncClient, queue: str, raw: Any
) -> None:
    sick, held = f"{queue}-z", f"{queue}-a"
    client.enqueue(held, [New("now", PAYLOAD)])
    client.pause(held, why="wrong tariff table")
    raw.sadd(keys.QUEUES, sick)
    hour = raw.time()[0] // 3600
    for back, died in ((0, 20), (1, 1234)):
        raw.hset(f"{keys.root(sick)}hour:{hour - back}", mapping={"done 2 5 pay": 300, "dead 2 5 pay": died})
    for n, error in enumerate(("lib.Timeout", "lib.Timeout", "ValueError")):
        raw.hset(keys.job(sick, f"d{n}"), mapping={"payload": PAYLOAD, "error": error})
        raw.zadd(f"{keys.root(sick)}dead", {f"d{n}": 1.7e9 + n})
    async with browsing(server.url, queues=(held, sick)) as browser:
        page, of_queue = await browser.page("/"), await browser.words("/queue", name=sick)
    said = words(page)
    died = f"{sick}: 20 jobs died in this hour, 1,234 in the one before. Of the last 3, 2: Timeout in pay."
    assert said.index(died) < said.index(f"{held} is paused, and no worker serves it: wrong tariff table.")
    rows = re.findall(rf'<tr data-row="{queue}-(.).*?<span class="s (\w+)">([a-z ]+)<', page, re.S)
    assert [(name, state) for name, _, state in rows] == [("z", "failing"), ("a", "paused")]
    assert "Resume “wrong tariff table”" in said
    assert "failing" in of_queue


async def test_word_that_is_no_id_finds_the_ids_that_begin_so(
    browser: Browser, client: SyncClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(client, queue, 12)
    page = await browser.page("/jobs", q="j01")
    assert "No job has the id j01 now. The ids of 2 begin so." in words(page)
    assert re.findall(r'name="job" value="\S+ (\w+)"', page) == ["j011", "j010"]
    assert 'name="all"' not in page, "only chosen ones can be changed"
    monkeypatch.setattr(jobs, "_COUNTED_JOBS", 5)
    monkeypatch.setattr("evsched.client.sweep._SLICE", 5)
    bounded = await browser.words("/jobs", q="j01")
    assert "of about 12 jobs searched." in bounded
    assert "Go on searching" not in bounded, "it would never end"
    two = await browser.page("/jobs", q="pay seeblick")
    assert "only one word can be an id" in words(two)
    assert "Did you mean task:pay group:seeblick" in words(two)


async def test_page_of_a_job_that_is_gone_says_who_changed_it(browser: Browser, client: SyncClient, queue: str) -> None:
    enqueue(client, queue, 2)
    client.as_operator("ann.keller").cancel(queue, "j000")
    for page in (
        await browser.words("/jobs", q="j000"),
        words((await browser.client.get(f"/job?queue={queue}&id=j000")).text),
    ):
        assert re.search(r"ann\.keller cancelled j000, \d\d:\d\d:\d\d\. Who changed it Look for", page)
        assert "any but ended" not in page, "no list of other jobs"


@pytest.mark.extra
async def test_list_without_a_search_can_be_made_longer(browser: Browser, client: SyncClient, queue: str) -> None:
    enqueue(client, queue, 60)
    page = await browser.page("/jobs")
    assert "These 50 are due next." in words(page)
    (more,) = re.findall(r'href="([^"]+)">More rows</a>', page)
    longer = await browser.page(unescape(more))
    assert longer.count('name="job"') == 60
    assert "More rows" not in longer


async def test_job_that_will_be_retried_says_so(browser: Browser, client: SyncClient, queue: str, raw: Any) -> None:
    enqueue(client, queue, 1)
    raw.hset(
        keys.job(queue, "j000"), mapping={"error": "lib.Timeout", "reason": "attempt 1 of 3: lib.Timeout: no answer"}
    )
    assert re.search("j000 .* to be retried .* Timeout: no answer", await browser.words("/jobs", q="place:schedule"))
    ended = await browser.page("/jobs", q="place:ended")
    assert "these are the ones whose records are kept" in words(ended)
    assert 'class="box bulk"' not in ended, "there is no act on them"


async def test_page_before_an_act_says_in_words_which_jobs_and_counts_them_all(
    server: EmbeddedRedis, client: SyncClient, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(client, queue, 40)
    client.enqueue(queue, [New("other", b'{"task":"mail"}', group="g", due=LATER)])
    text = f"place:schedule task:pay tag:x queue:{queue}"
    monkeypatch.setattr(jobs, "_TIME", 0.0)
    monkeypatch.setattr("evsched.client.sweep._SLICE", 5)
    async with browsing(server.url, queues=(queue,), console_zone="Asia/Tokyo") as browser:
        first = await browser.page("/bulk", verb="cancel", all="1", q=text)
        assert "Cancel at least 0 jobs?" in words(first)
        assert "0 % of about 41 jobs counted; the act goes over all of them. Go on counting" in words(first)
        assert 'data-on href="/bulk?verb=cancel&amp;all=1' in first
        monkeypatch.setattr(jobs, "_TIME", 0.001)
        while "at least" in (said := await browser.words("/bulk", verb="cancel", all="1", q=text, more="1")):
            pass
        assert "Cancel 40 jobs?" in said
        assert f"Jobs that are on the schedule, of task pay, with the tag x, in queue {queue}. Nothing has" in said
        assert "The first 10" in said
        chosen = await browser.words("/bulk", verb="cancel", job=f"{queue} other")
        assert "The jobs that you have chosen. Nothing has changed yet." in chosen
        assert f"other mail {queue} g" in chosen


async def test_list_without_a_search_names_its_place_and_offers_the_acts_of_it(
    browser: Browser, client: SyncClient, queue: str, raw: Any
) -> None:
    enqueue(client, queue, 2)
    reason = "attempt 3 of 3: requests.exceptions.ReadTimeout: no answer (/srv/a.py:1)"
    raw.hset(keys.job(queue, "dies"), mapping={"payload": PAYLOAD, "reason": reason})
    raw.zadd(f"{keys.root(queue)}dead", {"dies": 1.7e9})
    page = await browser.page("/jobs")
    places = page.partition('aria-label="Places"')[2].partition("</nav>")[0]
    assert re.findall(r'aria-current="true">([a-z ]+)', places) == ["schedule "]
    assert re.findall(r'name="verb" value="(\w+)"', page) == ["cancel", "reschedule"]
    assert 'name="q" value="place:schedule"' in page
    (link,) = re.findall(r'href="([^"]+)"[^>]*>any but ended', page)
    assert "3 jobs match." in await browser.words(link)
    dead = await browser.page("/jobs", q="place:dead")
    assert re.findall(r'name="verb" value="(\w+)"', dead) == ["revive", "drop"]
    assert f'title="{reason}">ReadTimeout: no answer' in dead


async def test_search_of_a_console_that_knows_no_queue_yet_finds_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser.console, "_queues", [])
    monkeypatch.setattr(browser.console, "_again", math.inf)
    assert "0 jobs match." in await browser.words("/jobs", q="task:pay")
    assert "Cancel 0 jobs?" in await browser.words("/bulk", verb="cancel", all="1", q="task:pay")
