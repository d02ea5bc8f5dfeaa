"""The pages of the console in a real Chromium: how they look, keys, live pages, no script, and hostile jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from evsched import keys
from evsched.batches.node import StoredNode
from evsched.client.client import SyncClient
from evsched.console import ends_search
from evsched.console.console_app import PAGES
from evsched.console.page import NAVIGATION
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.console import LATER, QUERIES, seed

pytestmark = pytest.mark.one_server

Tabs = Callable[..., Any]

HOSTILE = (
    "</pre></textarea></title><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    "<svg onload='window.hacked=1'><a href='javascript:window.hacked=1'>\"'{{7*7}}\u202egnp.exe\u2066\x00\x1b[31m\ud7ff"
)
MARK = "onerror='window.hacked=1'"
"""A part of it that a page shows as text."""

APP = f"""
import asyncio, json
from evsched import App, Retry
app = App(queue="QUEUE")
HOSTILE = {HOSTILE!r}

@app.task
async def works(*args, **kwargs):
    return {{"result": HOSTILE, HOSTILE: args}}

@app.task(retry=Retry(attempts=1))
async def fails(*args, **kwargs):
    raise type("Hostile<b>", (ValueError,), {{}})(HOSTILE)
"""


def run_hostile_jobs(cli: Cli, queue: str, raw: Any) -> None:
    """Fill a queue, by a worker of a hostile app, by a hostile producer, and by an operator whose name is hostile."""
    (cli.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
    for task in ("works", "fails"):
        words = ("--queue", queue, "--group", f"<img src=x {MARK}>", "--tag", "t<i>", "--arg", "key=1")
        done = cli.run("enqueue", task, json.dumps(HOSTILE), json.dumps("x" * 250_000), *words, "--id", f"{task}-1")
        assert done.returncode == 0, done.stderr
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    seed(raw, queue)
    payload = {
        "task": HOSTILE,
        "args": [HOSTILE, "javascript:window.hacked=1"],
        "tags": [HOSTILE],
        "meta": {HOSTILE: 1},
    }
    named = json.dumps({**payload, "group": HOSTILE})
    texts = ("reason", "traceback", "error", "location", "worker", "by", "runs", "outcome", "recurrence", "progress")
    for job in ("waits", "dead"):
        record = {"payload": named, "group": HOSTILE, "attempt": "1", "result": json.dumps(HOSTILE)}
        raw.hset(keys.job(queue, job), mapping=record | dict.fromkeys(texts, HOSTILE))
    raw.zadd(keys.schedule(queue), {named: LATER})
    raw.hset(f"{keys.root(queue)}recurrence:r", mapping={"rule": "@daily", "task": HOSTILE, "why": HOSTILE})
    raw.hset(f"{keys.root(queue)}limits", f"concurrency:{HOSTILE}", 3)
    with closing(SyncClient(cli.environment["EVSCHED_URL"])) as client:
        client.as_operator("<script>window.hacked=1</script>").pause(queue, why=MARK)


def paths(tab: Any, queue: str) -> list[str]:
    """Return the address of each page. The page of an act needs one."""
    found = list[str]()
    for view in PAGES:
        query = QUERIES.get(view.path, "")
        if "{run}" in query:
            tab.open(f"/bulk?verb=drop&q=queue:{queue}+place:dead+task:spare")
            tab.page.get_by_role("button", name="Drop").click()
            tab.page.wait_for_url("**/act?id=*")
            query = "?" + tab.page.url.partition("?")[2]
        found.append(view.path + query.format(queue=queue, run=""))
    return found


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light", "has_touch": True},
}


@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.extra), "phone"])
def test_each_page_fits_hinders_nobody_and_obeys_its_policy(
    tab: Tabs, cli: Cli, queue: str, raw: Any, look: str
) -> None:
    (cli.folder / "tasks.py").write_text(APP.replace("QUEUE", queue).replace(repr(HOSTILE), "'text'"))
    for task in ("works", "fails"):
        assert cli.run("enqueue", task, '"text"', "--queue", queue, "--tag", "patient:42").returncode == 0
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    seed(raw, queue)
    one, problems = tab(**LOOKS[look]), dict[str, Any]()
    for path in paths(one, queue):
        found = [f"status {status}"] if (status := one.open(path)) != 200 else []
        found += one.hindrances()
        if over := one.overflow():
            found.append(f"{over} px too wide")
        if found + one.problems:
            problems[path] = found + one.problems
        one.problems.clear()
    assert problems == {}


def test_hostile_job_is_text_on_each_page(tab: Tabs, cli: Cli, queue: str, raw: Any) -> None:
    run_hostile_jobs(cli, queue, raw)
    one, problems, shown = tab(), dict[str, Any](), 0
    more = [f"/job?queue={queue}&id={job}" for job in ("works-1", "fails-1", "dead")]
    more += [f"/jobs?q=queue:{queue}+place:{place}" for place in ("schedule", "dead", "ended")]
    hostile_id = raw.zrevrange(keys.schedule(queue), 0, -1)
    more += [
        one.page.evaluate("([q, id]) => `/job?${new URLSearchParams({queue: q, id})}`", [queue, job.decode()])
        for job in hostile_id
    ]
    for path in (*paths(one, queue), *more):
        status = one.open(path)
        found = [] if status == 200 else [f"status {status}"]
        if one.page.evaluate("window.hacked") is not None:
            found.append("a script ran")
        injected = "img, iframe, object, embed, base, script:not([src^='/static/']), [style], svg[onload]"
        found += one.page.eval_on_selector_all(injected, "all => all.map((one) => one.outerHTML)")
        found += one.page.eval_on_selector_all(
            "[href], [src], [action], [formaction]",
            "all => all.flatMap((one) => [one.href, one.src, one.action, one.formAction])"
            ".filter((url) => typeof url === 'string' && url !== '' && !url.startsWith(location.origin))",
        )
        text = one.page.inner_text("body")
        shown += MARK in text
        found += re.findall(r"[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
        if found + one.problems:
            problems[path] = found + one.problems
        one.problems.clear()
    assert problems == {}
    assert shown >= 5, "it is shown, not hidden"


def test_console_is_used_with_keys_alone(tab: Tabs, queue: str, raw: Any) -> None:
    seed(raw, queue)
    one = tab()
    page, press = one.page, one.page.keyboard.press
    one.open("/")
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("Enter")
    assert page.url.endswith("#main")
    press("/")
    focused = "document.activeElement.name ?? ''"
    assert page.evaluate(focused) == "q"
    page.keyboard.type("njx?/")
    assert (page.input_value("[name=q]"), page.url.endswith("#main")) == ("njx?/", True), "letters are text in a field"
    press("Escape")
    assert page.evaluate(focused) == ""
    press("?")
    assert page.is_visible("dialog#keys")
    page.uncheck("#letters")
    press("Escape")
    assert not page.is_visible("dialog#keys")
    press("j")
    assert page.url.endswith("#main"), "letters are switched off"
    page.evaluate("localStorage.clear()")
    for name, _, key in NAVIGATION:
        if name in {view.name for view in PAGES}:
            one.open(f"/queue?name={queue}")
            press(key)
            page.wait_for_url("**/" if name == "now" else f"**/{name}")
    one.open(f"/jobs?q=queue:{queue}+place:schedule")
    press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "waits"
    press("x")
    assert page.is_checked("tr:has(:focus) input[name=job]")
    assert page.inner_text("#chosen") == "1 chosen"
    press("Enter")
    page.wait_for_url(f"**/job?queue={queue}&id=waits")
    press("n")
    page.wait_for_url("**/")
    assert one.problems == []


def test_open_page_follows_without_a_reload_until_it_is_frozen(tab: Tabs, console: Any, queue: str, raw: Any) -> None:
    seed(raw, queue)
    one = tab()
    one.open(f"/job?queue={queue}&id=waits")
    one.page.evaluate("window.same = true")
    raw.zadd(keys.schedule(queue), {"waits": 1_900_000_000})
    one.page.wait_for_selector("[data-live=life] time[datetime^='2030-03-17']")
    assert one.page.evaluate("window.same") is True
    assert one.page.inner_text("#live") == "Live"
    assert console.open_pages == 1
    one.page.click("#freeze")
    assert one.page.inner_text("#live") == "Frozen"
    while console.open_pages:
        one.page.evaluate("1")
    one.page.click("#freeze")
    while not console.open_pages:
        one.page.evaluate("1")
    one.open("/sign-in")
    while console.open_pages:
        one.page.evaluate("1")
    assert one.problems == []


@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.extra), "phone"])
def test_newer_rows_are_announced_and_no_row_moves(tab: Tabs, console: Any, queue: str, raw: Any, look: str) -> None:
    seed(raw, queue)
    one = tab(**LOOKS[look])
    page, newer = one.page, "[data-live=newer] a"
    with closing(SyncClient(console.redis)) as client:
        changes: dict[str, Callable[[str], object]] = {
            "/history": lambda job: client.cancel(queue, job),
            "/audit": lambda why: client.as_operator("ann").pause(queue, why=why),
        }
        for path, change in changes.items():
            client.enqueue(queue, [New(f"{path[1]}{n}", b"{}", due=4e9) for n in range(40)])
            for n in range(20):
                change(f"{path[1]}{n}")
            one.open(f"{path}?queue={queue}")
            page.wait_for_selector("#live:text-is('Live')")
            assert page.locator(newer).count() == 0
            rows = page.locator("main table").last.locator("tbody tr")
            page.evaluate("scrollTo(0, 500)")
            before = [rows.nth(n).bounding_box()["y"] for n in range(20)]
            for n in range(20, 23):
                change(f"{path[1]}{n}")
            page.wait_for_selector(f"{newer}:has-text('3 newer: show')")
            after = [rows.nth(n).bounding_box()["y"] for n in range(20)]
            # An age above them may take a line less: the browser then scrolls, to a whole pixel.
            assert after == pytest.approx(before, abs=1)
            assert rows.count() == 20
            assert page.evaluate(
                "(one) => { const box = document.querySelector(one).getBoundingClientRect(); "
                "return box.top >= 0 && box.bottom < innerHeight }",
                newer,
            ), "it is seen further down"
            assert (one.hindrances(), one.overflow()) == ([], 0)
            page.click(newer)
            page.wait_for_load_state()
            assert rows.count() == 23
            assert page.locator(newer).count() == 0
    assert one.problems == []


def test_search_of_the_history_goes_on_by_itself(
    tab: Tabs, console: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends_search, "_TIME", 0.0)  # a part for each reading
    jobs = ["oldest", *(f"j{n}" for n in range(180))]
    with closing(SyncClient(console.redis)) as client:
        client.enqueue(queue, [New(job, b"{}", due=4e9, group=job[0]) for job in jobs])
        for job in jobs:
            client.cancel(queue, job)
    one = tab()
    one.open(f"/history?queue={queue}&group=o")
    one.page.wait_for_selector("[data-part=ends] td:has-text('oldest')")
    assert f"1 job of group o ended in {queue}: 1 cancelled." in one.page.inner_text(".head")
    assert not one.page.get_by_role("link", name="Go on searching").count()
    assert (one.problems, one.hindrances(), one.overflow()) == ([], [], 0)


def test_phone_shows_states_and_acts_of_each_row(tab: Tabs, cli: Cli, queue: str, raw: Any) -> None:
    seed(raw, queue)
    one = tab(**LOOKS["phone"])
    one.open(f"/recurrences?queue={queue}")
    state = one.page.locator("tbody .p .s")
    assert state.is_visible()
    assert state.inner_text() in ("on time", "not yet run", "scheduled")
    one.open(f"/jobs?q=queue:{queue}+place:dead")
    assert "spare" in one.page.inner_text("tbody")
    (cli.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
    with cli.running("worker", "tasks:app", until="WorkerStarted"):
        while not one.page.get_by_role("link", name="Stop").count():
            one.open("/workers")
        one.page.get_by_role("link", name="Stop").click()
        assert "to end?" in one.page.inner_text("#ask")
    assert one.problems == []


def test_phone_shows_task_error_and_act_of_an_end(tab: Tabs, cli: Cli, queue: str) -> None:
    (cli.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
    assert cli.run("enqueue", "fails", "--queue", queue).returncode == 0
    assert cli.run("worker", "tasks:app", "--burst").returncode == 0
    one = tab(**LOOKS["phone"])
    one.open(f"/history?queue={queue}")
    row = one.page.locator("[data-part=ends] tbody")
    assert "fails" in row.inner_text()
    assert "Hostile<b>" in row.inner_text()
    assert row.get_by_role("button", name="Revive").is_visible()
    assert (one.problems, one.overflow()) == ([], 0)


def test_console_works_without_javascript(tab: Tabs, queue: str, raw: Any) -> None:
    seed(raw, queue)
    one = tab(java_script_enabled=False)
    page = one.page
    for path in paths(one, queue):
        assert one.open(path) == 200, path
        assert page.inner_text("h1"), path
    page.fill("[name=q]", f"queue:{queue} place:schedule")
    page.press("[name=q]", "Enter")
    assert "waits" in page.inner_text("tbody")
    one.open(f"/queue?name={queue}")
    page.fill("[name=why]", "a release")
    page.get_by_role("button", name="Pause").click()
    assert f"Queue {queue} is paused" in page.inner_text("[role=status]")
    one.open(f"/job?queue={queue}&id=waits")
    page.fill("[name=args]", "[1")
    page.get_by_role("button", name="Save").click()
    assert "cannot be read" in page.inner_text("[role=alert]")
    page.fill("[name=args]", page.input_value("[name=args]") + "]")
    page.get_by_role("button", name="Save").click()
    assert "its arguments by position" in page.inner_text("[role=status]")
    assert b"[1]" in raw.hget(keys.job(queue, "waits"), "payload")
    one.open("/failures")
    page.fill("[name=when]", "2023-11-01 to 2023-11-30")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="Revive all that died then").click()
    assert "Revive 1 job?" in page.inner_text("h1")
    one.open(f"/jobs?q=queue:{queue}+place:schedule")
    page.check("[name=job]")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    assert "was cancelled" in page.inner_text("[role=status]")
    assert raw.zcard(keys.schedule(queue)) == 0
    assert one.problems == []


def test_a_search_goes_on_by_itself_until_it_is_over(
    tab: Tabs, server: EmbeddedRedis, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SyncClient(server.url)) as client:
        client.enqueue(queue, [New(f"j{n}", b'{"task":"pay","tags":["x"]}', due=LATER) for n in range(300)])
    monkeypatch.setattr("evsched.console.views.jobs._TIME", 0.002)
    monkeypatch.setattr("evsched.client.sweep._SLICE", 5)
    one = tab()
    one.open(f"/jobs?q=tag:x+queue:{queue}")
    one.page.get_by_text("300 jobs match.").wait_for()
    assert one.page.get_by_text("Go on searching").count() == 0
    assert one.problems == []


@pytest.mark.parametrize("look", ["phone", pytest.param("dark", marks=pytest.mark.extra)])
def test_drawing_of_a_graph_follows_and_stays_where_it_was_moved(
    tab: Tabs, server: EmbeddedRedis, queue: str, look: str
) -> None:
    store, payload = Store(queue), {"task": HOSTILE, "args": list[str](), "kwargs": dict[str, str](), "retention": 1.0}
    rows = [
        PlanRow(encode(StoredNode(f"n{at}", queue, payload, 1.0)), f"g.n{at}", queue, (at - 1,) if at else ())
        for at in range(12)
    ]
    with closing(SyncClient(server.url)) as client:
        client.send(store.batch_open("g", "t", retention=99.0))
        client.send(store.batch_plan("g", 0, rows))
        client.send(store.batch_close("g"))
        one = tab(**LOOKS[look])
        one.open(f"/batch?queue={queue}&id=g")
        assert (one.hindrances(), one.overflow()) == ([], 0)
        one.page.evaluate("document.querySelector('.canvas').scrollTo(700, 0)")
        client.send(store.batch_count([("g", 0, b"\x01")]))
        one.page.wait_for_selector(".graph a:first-of-type circle.f-ok")
        assert one.page.evaluate("document.querySelector('.canvas').scrollLeft") == 700
        one.page.click(".graph a >> nth=4")
        one.page.wait_for_url("**/node?*n4")
        one.page.get_by_text("for 1 of 1 jobs before it: n3").wait_for()
        assert (one.hindrances(), one.overflow(), one.problems) == ([], 0, [])
