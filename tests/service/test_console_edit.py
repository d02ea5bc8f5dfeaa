"""The page that edits a job: it keeps what it does not show, and refuses what somebody else has changed."""

from __future__ import annotations

import html
import re
import time
from typing import Any

import msgspec
import pytest

from evsched import keys
from evsched.console.words import editable
from evsched.jobs.job import Buried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import Browser, browsing, words

FAR = 2e9
PAYLOAD = (
    b'{"task":"pay","args":["card-17",12345678901234567890123],"kwargs":{"to":"ann"},"redact":["1"],"tags":["vip"]}'
)


@pytest.fixture
async def browser(server: EmbeddedRedis, queue: str) -> Any:
    async with browsing(server.url, queues=(queue,)) as found:
        await found.console.client.enqueue(queue, [New("a", PAYLOAD, priority=3, group="g", due=FAR)])
        yield found


def fields_of(page: str) -> dict[str, str]:
    """Return the fields of the form as a browser sends them."""
    form = page[page.index('action="/act/edit"') :].partition("</form>")[0]
    found = dict[str, str](re.findall(r'name="(\w+)" value="([^"]*)"', form))
    found |= {"priority": re.findall(r"<option selected>(\d)", form)[0]}
    found |= dict(re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL))
    return {name: html.unescape(value) for name, value in found.items() if name != "proof"}


def record_of(raw: Any, queue: str) -> dict[bytes, bytes]:
    return raw.hgetall(f"evsched:{{{queue}}}:job:a")


async def edit(browser: Browser, queue: str, **changes: str) -> str:
    page = await browser.page("/edit", queue=queue, id="a")
    return await browser.send(page, "edit", **{**fields_of(page), **changes})


async def test_operator_sends_the_signal_that_a_job_waits_for(browser: Browser, queue: str, raw: Any) -> None:
    assert "/act/signal" not in await browser.page("/job", queue=queue, id="a")
    raw.hset(keys.job(queue, "a"), mapping={"waiting": "approved", "waits": f"approved\t{time.time()}\tinf\n"})
    page = await browser.page("/job", queue=queue, id="a")
    job = f"{queue} a"
    assert "the value of the signal cannot be read" in await browser.send(
        page, "signal", job=job, signal="approved", value="{"
    )
    assert "Signal approved was sent." in await browser.send(page, "signal", job=job, signal="approved", value="true")
    status = await browser.console.client.status(queue, "a")
    assert status is not None
    assert status.signals == ("approved",)
    assert float(raw.zscore(keys.schedule(queue), "a")) < time.time() + 1
    assert "Signal approved had come before" in await browser.send(page, "signal", job=job, signal="approved")
    assert [act.act for act in await browser.console.client.audit(queue)] == ["signal"]


async def test_waiting_job_is_edited_and_hidden_values_are_kept(browser: Browser, queue: str, raw: Any) -> None:
    page = await browser.page("/edit", queue=queue, id="a")
    assert "card-17" not in page
    said = await edit(browser, queue, kwargs='{"to": "bob"}', priority="9", group="", tags="vip new", due="2099-01-01")
    assert "Job a has changed: its arguments by name, its tags, its priority, its group, when it is due." in said
    record = record_of(raw, queue)
    assert msgspec.json.decode(record[b"payload"])["kwargs"] == {"to": "bob"}
    assert b'"args":["card-17",12345678901234567890123]' in record[b"payload"]
    assert (record[b"priority"], b"group" in record) == (b"9", False)
    (act,) = await browser.console.client.audit(queue)
    assert (act.act, act.source, act.ids) == ("edit", "console", ["a"])
    assert "local" in (said := await browser.words("/audit", queue=queue))
    assert "edited a (arguments by name, tags, priority, group, due)" in said


async def test_page_of_a_job_has_the_form_of_all_that_an_edit_changes(browser: Browser, queue: str, raw: Any) -> None:
    page = await browser.page("/job", queue=queue, id="a")
    assert "/edit?" not in page, "there is one way to edit"
    said = await browser.send(page, "edit", **{**fields_of(page), "priority": "9", "tags": "vip new"})
    assert "Job a has changed: its tags, its priority." in said
    assert record_of(raw, queue)[b"priority"] == b"9"


async def test_attempt_has_its_error_once(browser: Browser, queue: str, raw: Any) -> None:
    await browser.console.client.enqueue(queue, [New("b", b'{"task":"mail"}')])
    store = Store(queue)
    await browser.console.client.send(store.dispatch(limit=999, cap=1000))
    ((job, *_),) = [(await browser.console.client.send(store.start("w", (), hold=9, lease=15))).jobs]
    line = "/app/a.py:7 in mail"
    reason = f"attempt 1 of 1: lib.Timeout: no answer ({line})"
    buried = Buried(reason, False, error="lib.Timeout", location=line)
    await browser.console.client.send(store.bury("w", [(job, buried)]))
    said = words(await browser.page("/job", queue=queue, id="b"))
    assert re.search(r"Attempt 1 dead, ran \S+ m?s on w lib\.Timeout: no answer /app/a\.py:7 in mail", said)


async def test_form_that_is_sent_as_it_was_changes_nothing(browser: Browser, queue: str, raw: Any) -> None:
    """Even if the page cannot show a value as it is."""
    raw.hset(f"evsched:{{{queue}}}:job:a", "group", "g\x07\u202e")
    raw.hset(f"evsched:{{{queue}}}:job:a", "payload", PAYLOAD.replace(b"ann", "\\u0007\u202e</textarea>".encode()))
    before = record_of(raw, queue)
    assert "Nothing has changed Job a is as it was." in await edit(browser, queue)
    assert record_of(raw, queue) == before


async def test_edit_after_another_is_refused_and_the_typed_text_stays(browser: Browser, queue: str, raw: Any) -> None:
    page = await browser.page("/edit", queue=queue, id="a")
    await browser.console.client.edit(queue, "a", priority=1)
    before = record_of(raw, queue)
    answer = await browser.client.post(
        "/act/edit",
        data={
            **fields_of(page),
            "kwargs": '{"to": "typed"}',
            "proof": re.findall(r'name="proof" value="(\w+)"', page)[0],
        },
    )
    assert record_of(raw, queue) == before
    again = await browser.page(answer.headers["location"])
    assert "Nothing was changed: a has changed since you have read it: look at it again." in words(again)
    assert fields_of(again)["kwargs"] == '{"to": "typed"}'
    await browser.send(again, "edit", **fields_of(again))
    assert msgspec.json.decode(record_of(raw, queue)[b"payload"])["kwargs"] == {"to": "typed"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"args": "[1,"}, "the arguments by position cannot be read"),
        ({"args": "jon@example.com"}, 'write JSON such as [1, "two"], and text in quotes: ["jon@example.com"]'),
        ({"kwargs": "[1]"}, "the arguments by name cannot be read"),
        ({"args": '["' + "x" * 300_000 + '"]'}, "more than 262144"),
        ({"args": '["[redacted]", "[redacted]"]'}, "argument 2 is [redacted], which stands for a value"),
        ({"group": "a}"}, "group is 'a}'"),
        ({"tags": "a,b"}, "tags is"),
        ({"priority": "x"}, "is not a whole number from 0 to 9"),
        ({"due": "soon"}, "soon"),
    ],
)
async def test_invalid_field_is_explained_and_stays_in_the_form(
    browser: Browser, queue: str, raw: Any, changes: dict[str, str], sentence: str
) -> None:
    before = record_of(raw, queue)
    page = await browser.page("/edit", queue=queue, id="a")
    answer = await browser.act(f"/edit?queue={queue}&id=a", "edit", **{**fields_of(page), **changes})
    assert record_of(raw, queue) == before
    again = await browser.page(answer.headers["location"])
    assert sentence in words(again).partition("Payload now")[0]
    if "priority" not in changes and "300" not in sentence:
        assert all(value in html.unescape(again) for value in changes.values())


async def test_job_that_has_begun_is_not_edited_and_the_draft_is_shown(browser: Browser, queue: str, raw: Any) -> None:
    page, root = await browser.page("/edit", queue=queue, id="a"), f"evsched:{{{queue}}}:"
    raw.zrem(f"{root}schedule", "a")
    raw.zadd(f"{root}leases", {"w": FAR})
    raw.rpush(f"{root}processing:w", "a")
    said = await browser.send(page, "edit", **{**fields_of(page), "kwargs": '{"to": "typed"}'})
    assert "a has begun: a worker holds it" in said
    assert "What you typed" in said
    assert '{"to": "typed"}' in said


@pytest.mark.extra
@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (
            b'{"task":"t","args":["%s"]}' % (b"x" * 200_000),
            "Its arguments are too long to be edited here: use evsched edit.",
        ),
        (b'{"task":"t","args":1}', "No worker can read its payload: cancel it, and enqueue another job."),
    ],
)
async def test_page_says_why_a_job_is_not_edited_there(
    browser: Browser, queue: str, payload: bytes, sentence: str
) -> None:
    await browser.console.client.enqueue(queue, [New("b", payload, due=FAR)])
    assert sentence in await browser.words("/edit", queue=queue, id="b")


@pytest.mark.extra
async def test_blank_group_is_refused_and_an_empty_one_takes_the_job_out(
    browser: Browser, queue: str, raw: Any
) -> None:
    assert "group is ' '" in await edit(browser, queue, group=" ")
    assert record_of(raw, queue)[b"group"] == b"g"
    assert "Job a has changed: its group." in await edit(browser, queue, group="")


async def test_draft_is_shown_to_its_user_alone(server: EmbeddedRedis, queue: str) -> None:
    settings: dict[str, Any] = {"console_proxies": ("127.0.0.1",), "console_users": ("*=operator",)}
    async with browsing(server.url, **settings) as browser:
        await browser.console.client.enqueue(queue, [New("a", PAYLOAD, due=FAR)])
        browser.client.headers["Remote-User"] = "ann"
        page = await browser.page("/edit", queue=queue, id="a")
        path = f"/edit?queue={queue}&id=a"
        answer = await browser.act(path, "edit", **{**fields_of(page), "kwargs": "typed"})
        assert "typed" in await browser.page(answer.headers["location"])
        browser.client.headers["Remote-User"] = "bob"
        assert "typed" not in await browser.page(answer.headers["location"])


@pytest.mark.extra
async def test_viewer_has_no_form_and_is_refused(server: EmbeddedRedis, queue: str) -> None:
    settings: dict[str, Any] = {"console_proxies": ("127.0.0.1",), "console_users": ("*=viewer",)}
    async with browsing(server.url, **settings) as browser:
        await browser.console.client.enqueue(queue, [New("a", PAYLOAD, due=FAR)])
        browser.client.headers["Remote-User"] = "eve"
        assert "/edit" not in await browser.page("/job", queue=queue, id="a")
        assert (await browser.client.get("/edit", params={"queue": queue, "id": "a"})).status_code == 403


@pytest.mark.parametrize("text", ["\x00\x1f", "\u202e", "\U000e0001", 'ä"\\', "\n"])
def test_editable_json_has_no_invisible_characters_and_means_the_same(text: str) -> None:
    shown = editable([text])
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert msgspec.json.decode(shown) == [text]


async def test_page_of_a_job_names_its_facts_in_words_and_links_the_pause(browser: Browser, queue: str) -> None:
    await browser.console.client.pause(queue, why="the database moves")
    await browser.console.client.enqueue(queue, [New("b", PAYLOAD)])
    page = await browser.page("/job", queue=queue, id="b")
    said = words(page)
    assert "the database moves" in said
    assert "resume it with" not in said
    assert f'href="/queue?name={queue}#pause">Resume it</a>' in page
    assert "place" not in re.findall(r"<dt>([^<]*)</dt>", page)
    assert re.search(r"<dt>due</dt><dd><time [^>]*>[\d:]+</time>, <time class=.age.[^>]*>\d+ s ago</time></dd>", page)
    assert "`" not in said.partition("On the command line")[0]


@pytest.mark.extra
async def test_form_of_a_dead_job_has_no_due_and_one_that_was_typed_before_is_refused(
    browser: Browser, queue: str, raw: Any
) -> None:
    page = await browser.page("/edit", queue=queue, id="a")
    assert 'name="due"' in page
    raw.zrem(keys.schedule(queue), "a")
    raw.zadd(f"{keys.root(queue)}dead", {"a": 1e9})
    before = record_of(raw, queue)
    said = await browser.send(page, "edit", **{**fields_of(page), "group": "h", "due": "10m"})
    assert "Nothing was changed: a dead job has no due: revive it, then reschedule it." in said
    assert record_of(raw, queue) == before
    page = await browser.page("/edit", queue=queue, id="a")
    assert 'name="due"' not in page
    await browser.send(page, "edit", **{**fields_of(page), "group": "h"})
    assert record_of(raw, queue)[b"group"] == b"h"


@pytest.mark.extra
async def test_inline_job_has_no_form_and_the_page_says_why_alone(browser: Browser, queue: str, raw: Any) -> None:
    page, why = await browser.page("/edit", queue=queue, id="a"), "An inline job is its own description"
    waits, gone = '{"task":"pay","args":[1]}', '{"task":"gone"}'
    raw.zadd(keys.schedule(queue), {waits: FAR})
    assert "/edit?" not in await browser.page("/job", queue=queue, id=waits)
    said = [await browser.words("/edit", queue=queue, id=waits)]
    fields = [{**fields_of(page), "job": f"{queue} {job}"} for job in (waits, gone)]
    said += [await browser.send(page, "edit", **one) for one in fields]
    for one in said:
        assert one.lower().count(why.lower()) == 1
        assert not re.search("is gone|has begun|Payload now|evsched edit", one, re.IGNORECASE)
