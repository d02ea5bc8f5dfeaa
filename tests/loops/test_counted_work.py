"""The counted cost of a job: commands that Redis executes, script calls, and memory, independent of time.

If a change raises a count, the change is wrong or the new count needs a reason.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from evsched import App, events, keys
from evsched.client.new_job import JobOptions, new_job
from evsched.config import Config
from evsched.execution import beginning
from evsched.execution.run import Prepared, Run
from evsched.jobs.current_job import CurrentJob
from evsched.store import queue as store_queue
from evsched.store import server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.system import System, system

MANY = 2_000
SLOTS = 256

PER_JOB = {
    "memory|usage": 1,  # dispatch, before it reads the record, which may be long
    "hgetall": 1,  # dispatch: it becomes a light job
    "hset": 1,  # complete: how it ran
    "pexpire": 1,  # complete: the record is kept for a while
}
"""The commands that Redis executes for one of many jobs that are due, those inside scripts included."""


@pytest.fixture(autouse=True)
def no_call_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches stay as large as they may be, however slow the machine is."""
    monkeypatch.setattr(store_queue, "BUDGET", float("inf"))
    monkeypatch.setattr(beginning, "BEGIN_WITHIN", float("inf"))


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task
    async def nothing() -> None: ...

    return app


async def enqueue_due(running: System, queue: str, count: int, prefix: str) -> None:
    payload = new_job("nothing", (), {}, JobOptions()).payload
    for first in range(0, count, 500):
        jobs = [New(f"{prefix}{n}", payload, due=1.0) for n in range(first, min(first + 500, count))]
        await running.sender.send(Store(queue).enqueue(jobs))


async def complete(running: System, count: int) -> None:
    """Wait until `count` jobs are done in total."""
    await running.recorder.until(lambda: sum(len(one.ids) for one in running.recorder.of(events.Completed)) == count)


def executed(raw: Any) -> dict[str, int]:
    """Return how often each command was executed."""
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in raw.info("commandstats").items()}


def changed(before: dict[str, int], after: dict[str, int]) -> Callable[[str], int]:
    return lambda name: after.get(name, 0) - before.get(name, 0)


async def test_one_of_many_due_jobs_costs_a_fixed_number_of_commands(
    own: EmbeddedRedis, client: Any, queue: str, app: App
) -> None:
    config = Config(url=own.url, queues=(queue,), concurrency=SLOTS)
    async with system(config, app, workers=0, dispatch=False) as running:
        await enqueue_due(running, queue, MANY, "j")
        running.work()
        async with asyncio.timeout(PATIENCE):
            while not client.exists(f"{keys.root(queue)}busy_leases"):  # jobs are light while there are workers
                await running.sender.send(server.clock())
        before = executed(client)
        running.dispatch()
        await complete(running, MANY)
        after = executed(client)
    count = changed(before, after)
    per_job = {name: round(count(name) / MANY) for name in after}
    assert {name: calls for name, calls in per_job.items() if calls} == PER_JOB
    # dispatch: 250 jobs a call; start and complete: half of the slots; some calls find little, at the begin and the end
    assert count("evalsha") <= MANY / 250 + 2 * MANY / (SLOTS / 2) + 30


async def test_sparse_job_costs_a_fixed_number_of_commands(
    own: EmbeddedRedis, client: Any, queue: str, app: App
) -> None:
    count = 100
    async with system(Config(url=own.url, queues=(queue,)), app) as running:
        before = executed(client)
        for n in range(count):
            await enqueue_due(running, queue, 1, f"s{n}-")
            await complete(running, n + 1)
        after = executed(client)
    sent = changed(before, after)
    # enqueue, dispatch, complete with start; and dispatches and looks for events that come while the last job runs
    assert sent("evalsha") <= 6 * count
    assert sent("blmove") == 0


@pytest.mark.extra
async def test_worker_keeps_no_objects_of_ended_runs(own: EmbeddedRedis, queue: str, app: App) -> None:
    def objects() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, Run | Prepared | CurrentJob)]

    of_other_tests = objects()
    async with system(Config(url=own.url, queues=(queue,), concurrency=SLOTS), app) as running:
        await enqueue_due(running, queue, MANY, "j")
        await complete(running, MANY)
        await running.recorder.until(lambda: not running.workers[0].busy())
        known = {id(one) for one in of_other_tests}
        kept = [one for one in objects() if id(one) not in known]
        # Timers that were set during a run keep the context of that run until they fire.
        assert len(kept) < 10, kept
