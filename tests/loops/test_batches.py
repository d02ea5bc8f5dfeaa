"""The dispatcher and a worker move fewer jobs at once when Redis takes long for them."""

from __future__ import annotations

import pytest

from evsched import App, events
from evsched.client.new_job import JobOptions, new_job
from evsched.config import Config
from evsched.execution import beginning
from evsched.store import queue as store_queue
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.system import System, system

MANY = 1_500
"""The calls shrink by a quarter each, from 250 jobs to the smallest size. Until then they move 1,200 jobs."""


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task
    async def nothing() -> None: ...

    return app


@pytest.fixture
def every_call_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_queue, "BUDGET", -1.0)


@pytest.fixture
def jobs_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first job, a worker fetches one for each free slot."""
    monkeypatch.setattr(beginning, "BEGIN_WITHIN", float("inf"))
    monkeypatch.setattr(beginning, "GROWTH", 999)


async def enqueue_due(url: str, queue: str) -> None:
    payload = new_job("nothing", (), {}, JobOptions()).payload
    sender, store = BatchingSender(url), Store(queue)
    jobs = [New(f"j{n}", payload, due=1.0 + n) for n in range(MANY)]
    for first in range(0, MANY, 500):
        await sender.send(store.enqueue(jobs[first : first + 500]))
    await sender.close()


def dispatched(running: System) -> list[int]:
    """Return how many jobs each step moved."""
    return [len(event.lateness) for event in running.recorder.of(events.Dispatched)]


@pytest.mark.usefixtures("every_call_is_too_long")
async def test_a_dispatcher_moves_fewer_jobs_in_a_step(server: EmbeddedRedis, queue: str, app: App) -> None:
    await enqueue_due(server.url, queue)
    async with system(Config(url=server.url, queues=(queue,)), app, workers=0) as running:
        await running.recorder.wait(events.Dispatched, lambda _: sum(dispatched(running)) == MANY)
        sizes = dispatched(running)
        assert sizes[:4] == [250, 250, 187, 140]
        assert sizes[-2] == store_queue.LEAST


@pytest.mark.usefixtures("every_call_is_too_long", "jobs_begin_at_once")
async def test_a_worker_starts_and_ends_fewer_jobs_in_a_call(server: EmbeddedRedis, queue: str, app: App) -> None:
    await enqueue_due(server.url, queue)
    async with system(Config(url=server.url, queues=(queue,), concurrency=500), app, workers=0) as running:
        await running.recorder.wait(events.Dispatched, lambda _: sum(dispatched(running)) == MANY)
        running.work()
        await running.recorder.wait(
            events.Completed, lambda _: sum(len(one.ids) for one in running.recorder.of(events.Completed)) == MANY
        )
        started = [len(one.ids) for one in running.recorder.of(events.Started)]
        completed = [len(one.ids) for one in running.recorder.of(events.Completed)]
        assert max(started) == 250
        assert max(started[-5:]) <= store_queue.LEAST
        assert max(completed[-5:]) <= store_queue.LEAST
