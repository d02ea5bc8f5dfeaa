"""The console's page of the workers: who runs what, who does not answer, and what an operator asks of one."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from evsched import App, events
from evsched.config import Config
from evsched.console.page import Visit
from evsched.console.users import Visitor, make_token
from evsched.console.views.workers import Collector, described
from evsched.store.acts import Operator
from evsched.store.client_calls import New
from evsched.top.snapshot import History, Look, compose
from evsched.transport.embedded import EmbeddedRedis
from evsched.worker.slots import FetchPause
from evsched.worker.status_reporter import WorkerStatus
from tests.support.browsing import Browser, browsing, words
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.system import System, system

pytestmark = pytest.mark.anyio


@pytest.fixture
async def browser(server: EmbeddedRedis) -> AsyncGenerator[Browser]:
    async with browsing(server.url) as found:
        yield found


@pytest.fixture
async def running(server: EmbeddedRedis, queue: str) -> AsyncGenerator[System]:
    """A worker with four slots whose jobs run for ever, and a dispatcher."""
    app = App(queue=queue)

    @app.task
    async def hang() -> None:  # pyright: ignore[reportUnusedFunction]
        await asyncio.Event().wait()

    config = Config(
        url=server.url, queues=(queue,), concurrency=4, shutdown_grace=0.1, kill_grace=0.1, safety_cap=NO_CAP
    )
    async with system(config, app) as found:
        await found.recorder.wait(events.ControlOpened)
        yield found


async def start(running: System, queue: str, *ids: str) -> None:
    """Have the worker run jobs, whose argument is redacted."""
    await running.app.client.enqueue(queue, [New(job, b'{"task":"hang"}') for job in ids])
    await running.recorder.until(lambda: sum(len(e.ids) for e in running.recorder.of(events.Started)) == len(ids))


async def test_workers_are_shown_with_their_jobs_and_dispatchers(browser: Browser, running: System, queue: str) -> None:
    await start(running, queue, "a", "b")
    (worker,) = running.workers
    page = await browser.page("/workers")
    text = words(page)
    assert "1 worker on 1 host, 2 of 4 slots are busy." in text
    assert worker.id in text
    assert f'href="/job?queue={queue}&amp;id=a"' in page
    assert f'href="/queue?name={queue}"' in page
    assert "1 dispatcher connected: " in text
    assert "evsched workers" in text


async def test_longest_runs_name_their_worker(browser: Browser, running: System, queue: str) -> None:
    await start(running, queue, "a")
    runs = words((await browser.page("/workers")).partition('data-live="runs"')[2].partition("</section>")[0])
    assert re.search(rf" hang {queue} \S+-{os.getpid()} \d\d:\d\d:\d\d \S+ m?s 1 Stack", runs)


async def test_worker_that_does_not_answer_comes_first(browser: Browser, running: System, queue: str, raw: Any) -> None:
    raw.zadd(f"evsched:{{{queue}}}:leases", {"gone-1-00000000-0.1.0": raw.time()[0] + 50})
    text = words(await browser.page("/workers")).partition("dispatcher")[0]
    assert "1 does not answer." in text
    assert text.index("gone-1-00000000-0.1.0") < text.index(running.workers[0].id)
    assert "unless it renews it" in text


async def test_one_collector_serves_all_readers_and_is_closed(browser: Browser, running: System, queue: str) -> None:
    await asyncio.gather(*(browser.page("/workers") for _ in range(3)))
    found: Collector = browser.console.memory["collector"]
    one, two = await asyncio.gather(found.look(_visit(browser)), found.look(_visit(browser)))
    assert one is two
    assert [status.queue for status in one.statuses] == [queue]


def _visit(browser: Browser) -> Visit:
    console = browser.console
    return Visit(console, console.client.metered(), Visitor("ann", "viewer"), QueryParams(), "")


async def test_worker_is_asked_to_go_quiet_after_a_question(browser: Browser, running: System, queue: str) -> None:
    await start(running, queue, "a")
    (worker,) = running.workers
    question = await browser.page(f"/workers?worker={worker.id}")
    assert "it cannot be asked to fetch again" in question
    assert "Fetch no more, or stop…" in await browser.page("/workers"), "the link says what it leads to"
    assert f"evsched workers quiet {worker.id}" in question
    answer = await browser.act(f"/workers?worker={worker.id}", "quiet-worker", worker=worker.id)
    assert answer.status_code == 303
    await running.recorder.wait(events.WorkerQuiet)
    async with asyncio.timeout(PATIENCE):  # another reader's answer holds for a second
        while "1 is quiet." not in (text := words(await browser.page("/workers"))):
            pass
    assert "it was asked to fetch no more; 1 job left" in text
    (act,) = await browser.console.client.audit(queue)
    assert (act.act, act.who, act.source, act.what) == ("quiet", "local", "console", {"worker": worker.id})
    assert f"asked to fetch no more: {worker.id}" in words(await browser.page(f"/audit?queue={queue}"))


async def test_stack_of_a_job_is_on_its_page(browser: Browser, running: System, queue: str) -> None:
    await start(running, queue, "a")
    page = f"/job?queue={queue}&id=a"
    assert "Where is it now?" in await browser.page(page)
    text = words(await browser.page(f"{page}&stack=1"))
    assert "in hang await asyncio.Event().wait()" in text
    assert f"on {running.workers[0].id}" in text


@pytest.mark.extra
async def test_viewer_gets_no_forms(browser: Browser, running: System) -> None:
    token = await browser.console.client.run(make_token("eve", "viewer", 0.0, Operator("ann", "cli")))
    await browser.client.post("/sign-in", data={"token": token})
    for path in ("/workers?worker=w", "/history", "/audit"):
        page = await browser.page(path)
        assert "/act/" not in page
        assert "or stop…" not in page


@pytest.mark.extra
async def test_page_without_a_worker_says_how_to_start_one(browser: Browser) -> None:
    text = words(await browser.page("/workers"))
    assert "No worker runs." in text
    assert "No dispatcher is connected" in text


@pytest.mark.parametrize(
    ("pause", "state", "note"),
    [
        ("busy loop", "warn", "it fetches nothing: handlers keep the event loop busy"),
        ("no process", "warn", "it fetches nothing: no process of the pool is free"),
        ("stopping", "hold", "1 job left"),
        (None, "ok", ""),
    ],
)
def test_reason_why_a_worker_fetches_nothing_is_its_state(pause: FetchPause | None, state: str, note: str) -> None:
    status = WorkerStatus("h-1-00000000-0.1.0", "q", 4, 1, 0, 0, 0, [], 0, [], pause)
    older = WorkerStatus("h-2-00000000-0.0.9", "q", 4, 0, 0, 0, 0, [], 0, [])
    look = Look(0.0, {}, {}, [status, older])
    page, _ = compose(look, History())
    found = {worker.row.worker: worker for worker in described(look, page.workers)}
    worker = found[status.worker]
    assert (worker.state[0], worker.note, worker.older) == (state, note, False)
    assert found[older.worker].older


async def test_first_page_names_a_queue_that_nobody_serves(browser: Browser, queue: str) -> None:
    client = browser.console.client
    await client.enqueue(f"{queue}.later", [New("a", b"{}", due=4e9)])
    await client.enqueue(f"{queue}.held", [New("b", b"{}", due=1.0)])
    await client.pause(f"{queue}.held", until=4e9, why="a release")
    text = words(await browser.page("/"))
    assert f"{queue}.later: 1 job is scheduled for later, and no worker serves the queue." in text
    assert f"evsched worker MODULE:APP --queue {queue}.later" in text
    held = text[text.index(f"{queue}.held is paused until ") :]
    assert "and no worker serves it: a release. 1 job is due and waiting." in held[:150]
