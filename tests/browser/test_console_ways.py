"""How far it is to what operators do most: each test counts the clicks of one way, from the first page.

A click is a link, a button, or a text that is typed and sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from evsched import keys
from evsched.client.client import SyncClient
from evsched.store.client_calls import New
from tests.support.cli import Cli
from tests.support.console import LATER

pytestmark = pytest.mark.one_server

Tabs = Callable[..., Any]

HALF_HOUR = 1800
PHONE: dict[str, Any] = {"viewport": {"width": 400, "height": 800}, "has_touch": True}

APP = """
from evsched import App
app = App(queue="QUEUE")

@app.recurring("30 2 * * *")
@app.task(retention=3600)
async def nightly_report(): ...

@app.task
async def remind(patient): ...
"""


class Way:
    """A way through the pages, which counts its clicks."""

    def __init__(self, one: Any) -> None:
        self.one, self.page, self.clicks = one, one.page, 0
        one.open("/")

    def link(self, name: str, within: str = "body") -> None:
        self.click(self.page.locator(within).get_by_role("link", name=name))

    def button(self, name: str, within: str = "body") -> None:
        self.click(self.page.locator(within).get_by_role("button", name=name))

    def click(self, target: Any) -> None:
        self.clicks += 1
        target.first.click()
        self.page.wait_for_load_state()

    def type(self, field: str, text: str) -> None:
        """Type a text, and send it."""
        self.clicks += 1
        self.page.fill(field, text)
        self.page.press(field, "Enter")
        self.page.wait_for_load_state()

    def says(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()
        assert self.clicks <= 3
        assert [problem for problem in self.one.problems if "404" not in problem] == []


def run_nightly_report(cli: Cli, queue: str) -> None:
    (cli.folder / "tasks.py").write_text(APP.replace("QUEUE", queue))
    for words in (
        ("worker", "tasks:app", "--burst"),
        ("recurrences", "trigger", "nightly_report", "--queue", queue),
        ("worker", "tasks:app", "--burst"),
    ):
        done = cli.run(*words)
        assert done.returncode == 0, done.stderr


def test_run_of_a_recurrence_runs_again_on_each_natural_way(tab: Tabs, cli: Cli, queue: str) -> None:
    run_nightly_report(cli, queue)
    way = Way(tab())
    way.link("Recurrences", "nav")
    way.button("Run now", "[data-live=recurrences]")
    way.says("nightly_report runs once more, now")
    way = Way(tab())
    way.link("Recurrences", "nav")
    way.link("nightly_report", "tbody")
    way.button("Run again", "[data-live=runs]")
    way.says("This is a copy of job nightly_report@")
    way = Way(tab())
    way.link("History", "nav")
    way.type("#filters [name=task]", "nightly_report")
    way.button("Run again", "[data-part=ends]")
    way.says("This is a copy of job nightly_report@")
    way = Way(tab())
    way.type("[name=q]", "nightly_report")
    way.button("Run now")
    way.says("nightly_report runs once more, now")


def test_run_whose_record_is_gone_is_made_once_more(tab: Tabs, cli: Cli, queue: str, raw: Any) -> None:
    run_nightly_report(cli, queue)
    raw.delete(*raw.keys(keys.job(queue, "nightly_report@*")))
    way = Way(tab())
    way.link("Recurrences", "nav")
    way.click(way.page.locator("[data-live=recurrences] td small a"))
    way.button("Run nightly_report now")
    way.says("nightly_report runs once more, now")
    way = Way(tab())
    way.link("History", "nav")
    way.type("#filters [name=task]", "nightly_report")
    way.button("Run now", "[data-part=ends]")
    way.says("nightly_report runs once more, now")


@pytest.mark.parametrize("script", [True, pytest.param(False, marks=pytest.mark.extra)])
def test_failures_of_half_an_hour_are_revived_from_their_bar_or_from_a_typed_span(
    tab: Tabs, queue: str, raw: Any, script: bool
) -> None:
    begins = (raw.time()[0] // HALF_HOUR - 4) * HALF_HOUR
    raw.sadd(keys.QUEUES, queue)
    for n, at in enumerate((begins - 60, begins + 60, begins + 600, begins + HALF_HOUR + 60)):
        fields = {"payload": '{"task":"hook"}', "error": "ConnectionError", "reason": "ConnectionError: no"}
        raw.hset(keys.job(queue, f"j{n}"), mapping=fields)
        raw.zadd(f"{keys.root(queue)}dead", {f"j{n}": at})
    one = tab(java_script_enabled=script)
    way = Way(one)
    way.link("Failures", "nav")
    one.page.locator("summary:has-text('As a list')").click()
    if script:
        assert (one.hindrances(), one.overflow()) == ([], 0)
    one.page.get_by_role("link", name=re.compile(r"\d\d:\d0 to \d\d:\d0")).nth(1).wait_for()
    way.click(one.page.locator("svg.picked a").filter(has=one.page.get_by_text(re.compile(": 2$"), exact=False)))
    way.link("Revive 2", ".groups")
    way.says("Revive 2 jobs?")
    first, last = (f"{datetime.fromtimestamp(at, UTC):%H:%M}" for at in (begins, begins + HALF_HOUR))
    way = Way(one)
    way.link("Failures", "nav")
    way.type("[name=when]", f"{first}-{last}")
    assert one.page.input_value("[name=when]") == f"{datetime.fromtimestamp(begins, UTC):%Y-%m-%d} {first} to " + (
        last if last != "00:00" else f"{datetime.fromtimestamp(begins + HALF_HOUR, UTC):%Y-%m-%d} {last}"
    )
    way.link("Revive 2", ".groups")
    way.says("Revive 2 jobs?")


def test_queue_is_paused_from_the_first_page_and_goes_on(tab: Tabs, console: Any, queue: str, raw: Any) -> None:
    raw.sadd(keys.QUEUES, queue)
    raw.hset(keys.job(queue, "a"), "payload", '{"task":"t"}')
    raw.zadd(keys.schedule(queue), {"a": LATER})
    way = Way(tab())
    way.link("Pause…", "[data-live=queues]")
    way.page.wait_for_selector("#pause:focus")
    way.page.fill("[name=until]", "18:00")
    way.type("[name=why]", "the provider is down")
    way.says(f"Queue {queue} is paused until ")
    way.says("the provider is down")
    way.button(f"Resume {queue}")
    way.says(f"Queue {queue} is resumed.")
    with closing(SyncClient(console.redis)) as client:
        client.pause(queue)
    way = Way(tab())
    way.button("Resume", "[data-live=queues]")
    way.says(f"Queue {queue} is resumed.")


def test_argument_of_a_waiting_job_is_corrected_on_the_page_that_its_id_opens(
    tab: Tabs, console: Any, queue: str, raw: Any
) -> None:
    raw.sadd(keys.QUEUES, queue)
    with closing(SyncClient(console.redis)) as client:
        client.enqueue(queue, [New("mail-fix-1", b'{"task":"mail","args":["jon@exmaple.com"]}', due=LATER)])
    way = Way(tab())
    way.type("[name=q]", "mail-fix-1")
    arguments = way.page.input_value("[name=args]")
    way.page.fill("[name=args]", arguments.replace("exmaple", "example"))
    way.button("Save")
    way.says("Job mail-fix-1 has changed: its arguments by position.")
    assert json.loads(raw.hget(keys.job(queue, "mail-fix-1"), "payload"))["args"] == ["jon@example.com"]


def test_phone_shows_the_week_of_a_task_and_how_late_it_was(tab: Tabs, queue: str, raw: Any) -> None:
    raw.sadd(keys.QUEUES, queue)
    hour = raw.time()[0] // 3600
    raw.hset(f"{keys.root(queue)}hour:{hour}", mapping={f"done 2 5 other{n}": 50 for n in range(6)})
    raw.hset(f"{keys.root(queue)}hour:{hour - 30}", "done 4 5 remind", 40)
    raw.hset(keys.job(queue, "a"), "payload", '{"task":"t"}')
    raw.zadd(keys.schedule(queue), {"a": LATER})
    way = Way(tab(**PHONE))
    way.link("The week by task")
    row = way.page.locator("#weeks tr:has-text('remind')")
    assert re.fullmatch(rf"{queue}\s+remind\s+late: half [\d.]+ m?s, 99 % [\d.]+ m?s\s+40\s+0", row.inner_text())
    box = row.bounding_box()
    assert 0 <= box["y"] < 800, "no scrolling is needed"
    assert not way.page.is_visible("#filters")
    way.link("Filters")
    assert way.page.is_visible("#filters")
    assert (way.one.hindrances(), way.one.overflow()) == ([], 0)


def test_phone_shows_all_acts_on_chosen_jobs_in_the_width_of_their_bar(tab: Tabs, queue: str, raw: Any) -> None:
    raw.sadd(keys.QUEUES, queue)
    for place, at in ((keys.schedule(queue), LATER), (f"{keys.root(queue)}dead", 1.7e9)):
        raw.hset(keys.job(queue, f"j{at:.0f}"), "payload", '{"task":"t"}')
        raw.zadd(place, {f"j{at:.0f}": at})
    one = tab(**PHONE)
    one.open("/jobs?q=task:t")
    buttons = one.page.locator(".bulk .acts button")
    wide = {round(buttons.nth(n).bounding_box()["width"]) for n in range(buttons.count())}
    assert buttons.count() == 4
    assert len(wide) == 1, "they are as wide as each other"
    assert 2 * wide.pop() > 300, "two of them fill the bar"
    assert one.overflow() == 0


def test_rows_keep_their_places_until_the_page_is_loaded_again(tab: Tabs, queue: str, raw: Any) -> None:
    first, second = f"{queue}-a", f"{queue}-b"
    for name in (first, second):
        raw.sadd(keys.QUEUES, name)
        raw.hset(keys.job(name, "a"), "payload", '{"task":"t"}')
        raw.zadd(keys.schedule(name), {"a": LATER})
    one = tab()
    rows = one.page.locator("[data-live=queues] tbody tr")

    def names() -> list[str]:
        # Not by their text: a row that the page has just replaced is laid out no more, so its words run together.
        found = rows.evaluate_all("rows => rows.map(row => row.dataset.row)")
        return [name for name in found if name.startswith(queue)]

    one.open("/")
    assert names() == [first, second]
    raw.zadd(keys.schedule(second), {"a": 1.7e9})
    one.page.wait_for_selector(f"[data-row='{second}'] .s:text-is('no worker')")
    assert names() == [first, second]
    one.open("/")
    assert names() == [second, first]
    assert one.problems == []
