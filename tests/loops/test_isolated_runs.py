"""A run in a process: of its own, where the handler is stopped as in a worker; and of the pool, which may die."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched import App, Retry, events
from evsched.app import find_app
from evsched.config import Config
from evsched.jobs.job import encode
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.system import System, system


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=4, shutdown_grace=0.2, kill_grace=0.5, process_pool=1)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(heavy.app, "origin", "tests.support.heavy:app")
    return heavy.app


def suspect(raw: Any, queue: str, task: str, *args: str) -> None:
    """Schedule a job that two workers held when they died, so that it is isolated."""
    raw.hset(f"evsched:{{{queue}}}:job:a", mapping={"payload": encode({"task": task, "args": args})})
    raw.hset(f"evsched:{{{queue}}}:suspects", "a", "2 0")
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})


async def began(running: System, raw: Any, queue: str, file: Path) -> None:
    """Wait until the handler has begun, which reports progress then."""
    while not raw.hexists(f"evsched:{{{queue}}}:job:a", "progress"):
        await running.sender.send(Store(queue).survey())
    assert file.read_text().startswith("began")
    assert file.read_text() != f"began {os.getpid()}"
    assert raw.hget(f"evsched:{{{queue}}}:job:a", "begun") == b"1"


async def test_a_timeout_cancels_the_handler_where_it_waits(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "hang", str(tmp_path / "file"))
        retried = await running.recorder.wait(events.Retrying)
    assert "attempt 1 of 2: timeout: it ran longer than its limit (" in retried.reason
    assert (tmp_path / "file").read_text() == "cancelled: timeout"


@pytest.mark.extra
async def test_a_cancelled_job_cancels_the_handler_where_it_waits(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "hang_without_limit", str(tmp_path / "file"))
        await began(running, raw, queue, tmp_path / "file")
        await running.app.client.cancel(queue, "a")
        await running.recorder.wait(events.JobAborted)
    assert (tmp_path / "file").read_text() == "cancelled: cancelled"


@pytest.mark.extra
async def test_a_worker_that_stops_cancels_the_handler_and_hands_the_job_back(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "hang_without_limit", str(tmp_path / "file"))
        await began(running, raw, queue, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "cancelled: lost"
    assert raw.lrange(f"evsched:{{{queue}}}:ready", 0, -1) == [b"a"]


async def test_a_handler_that_does_not_yield_is_killed_after_the_kill_grace(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "do_not_yield")
        retried = await running.recorder.wait(events.Retrying)
    assert retried.reason == "attempt 1 of 2: timeout: it ran longer than its limit and did not yield"


async def test_a_handler_may_snooze(config: Config, app: App, queue: str, raw: Any) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "snooze_once")
        snoozed = await running.recorder.wait(events.JobSnoozed)
        await running.recorder.wait(events.Completed)
    assert snoozed.reason == "snoozed for at least 10 ms: not yet"
    assert raw.hget(f"evsched:{{{queue}}}:job:a", "result") == b"1"


async def test_isolated_handler_output_appears_in_the_worker_output(
    config: Config, app: App, queue: str, raw: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "speak")
        await running.recorder.wait(events.Completed)
    out, err = capfd.readouterr()
    assert out == "printed\n"
    assert err == "to stderr\nlogged\n"


DIES_BEFORE_ITS_HANDLER = """
import os, signal
from evsched import App, Retry, current_job

app = App()

@app.middleware
async def die(job, call_next):
    if job.attempt == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return await call_next()

@app.task(retry=Retry(attempts=2, interval=0, jitter=0))
async def fail():
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("began")
"""


@pytest.mark.parametrize(
    ("dies_at", "reason"),
    [
        (1, "attempt 2 of 2 (1 earlier run is counted that may not have begun): ValueError: began"),
        (2, "attempt 2 of 2: its process died (it crashed, ended itself or was killed) before its handler began"),
    ],
    ids=["an earlier one", "the last one"],
)
async def test_reason_of_a_dead_job_names_the_attempt_in_which_its_handler_did_not_begin(
    config: Config, queue: str, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, reason: str
) -> None:
    monkeypatch.setenv("DIES_AT", str(dies_at))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"dying_{dies_at}.py").write_text(DIES_BEFORE_ITS_HANDLER)
    async with system(config, find_app(f"dying_{dies_at}:app")) as running:
        suspect(raw, queue, "fail")
        buried = await running.recorder.wait(events.JobBuried)
    assert buried.reason.startswith(reason)


WAITS_BEFORE_ITS_HANDLER = """
import asyncio
from evsched import App

app = App()

@app.middleware
async def wait(job, call_next):
    job.progress(1)
    await asyncio.Event().wait()

@app.task
async def never_begins(): ...
"""


async def test_isolated_job_that_is_cancelled_before_its_handler_begins_has_not_run(
    config: Config, queue: str, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "waiting.py").write_text(WAITS_BEFORE_ITS_HANDLER)
    async with system(config, find_app("waiting:app")) as running:
        suspect(raw, queue, "never_begins")
        while not raw.hexists(f"evsched:{{{queue}}}:job:a", "progress"):
            await running.sender.send(Store(queue).survey())
        await running.app.client.cancel(queue, "a")
        await running.recorder.wait(events.JobAborted)
    assert raw.hmget(f"evsched:{{{queue}}}:job:a", "reason", "attempt") == [b"cancelled before it ran", b"0"]


@asynccontextmanager
async def stopped(config: Config, app: App, queue: str) -> AsyncGenerator[tuple[System, int]]:
    """Run a system whose pool has one process, which has run `steer` and is stopped; with the id of that process."""
    async with system(config, app) as running:
        await (await heavy.steer.using(queue=queue).enqueue("")).result(PATIENCE)
        pid = await (await heavy.pid.using(queue=queue).enqueue()).result(PATIENCE)
        running.recorder.events.clear()
        os.kill(pid, signal.SIGSTOP)
        yield running, pid


@pytest.mark.parametrize("attempts", [1, 2])
async def test_run_whose_pool_process_is_killed_before_its_handler_begins_begins_in_another_one(
    config: Config, app: App, queue: str, attempts: int
) -> None:
    async with stopped(config, app, queue) as (running, pid):
        job = await heavy.steer.using(queue=queue, retry=Retry(attempts=attempts)).enqueue("")
        await running.recorder.wait(events.Started)  # the order is sent
        os.kill(pid, signal.SIGKILL)
        await running.recorder.wait(events.Completed)
        assert await job.result(PATIENCE) == 1


async def test_job_that_is_cancelled_before_its_handler_begins_in_a_pool_process_has_not_run(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with stopped(config, app, queue) as (running, _):
        job = await heavy.steer.using(queue=queue, id="a").enqueue("")
        await running.recorder.wait(events.Started)
        await job.cancel()
        await running.recorder.wait(events.JobAborted)
    assert raw.hmget(f"evsched:{{{queue}}}:job:a", "reason", "attempt") == [b"cancelled before it ran", b"0"]


async def test_timeout_before_the_handler_begins_in_a_pool_process_says_so(
    config: Config, app: App, queue: str
) -> None:
    async with stopped(config, app, queue) as (running, _):
        await heavy.steer.using(queue=queue, timeout=0.01).enqueue("")
        retried = await running.recorder.wait(events.Retrying)
    assert retried.reason == "attempt 1 of 2: timeout: it ran longer than its limit before its handler began"


async def test_job_that_kills_each_process_before_its_handler_begins_is_given_up(
    config: Config, app: App, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_PROCESS", str(os.getpid()))
    async with system(config, app) as running:
        await heavy.accept.using(queue=queue).enqueue(heavy.Fatal())
        buried = await running.recorder.wait(events.JobBuried)
        retried = running.recorder.of(events.Retrying)
    died = "its process died (it crashed, ended itself or was killed) before its handler began"
    counted = "(1 earlier run is counted that may not have begun)"
    assert [one.reason for one in retried] == [f"attempt 1 of 2: {died}"]
    assert buried.reason == f"attempt 2 of 2 {counted}: {died}"


async def test_keyboard_interrupt_in_a_process_fails_only_the_run(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        suspect(raw, queue, "interrupt")
        retried = await running.recorder.wait(events.Retrying)
        assert retried.reason == "attempt 1 of 2: its process ended by KeyboardInterrupt: "
        suspect(raw, queue, "snooze_once")  # in another process
        await running.recorder.wait(events.Completed)
