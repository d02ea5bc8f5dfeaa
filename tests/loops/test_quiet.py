"""A quiet worker: the others get all jobs at once, whether its queues share a connection or not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from evsched import App, events
from evsched.config import Config
from evsched.store.client_calls import New
from tests.support.system import system


@pytest.mark.parametrize("count", [1, 9], ids=["one queue", "many queues"])
async def test_jobs_go_to_the_other_worker_when_one_is_quiet(config: Config, app: App, queue: str, count: int) -> None:
    @app.task
    async def work() -> None: ...

    queues = (queue, *(f"{queue}.{n}" for n in range(1, count)))
    async with system(replace(config, queues=queues), app, workers=2) as running:
        recorder, (quiet, other) = running.recorder, running.workers
        await recorder.wait(events.ControlOpened, count=2)
        assert await app.client.quiet_worker(quiet.id, queues) == sorted(queues)
        await recorder.wait(events.WorkerQuiet)
        for name in queues:
            for n in range(5):  # one at a time: each is a notice of its own
                await app.client.enqueue(name, [New(f"j{n}", b'{"task":"work"}')])
                done = n + 1 + 5 * queues.index(name)
                await recorder.until(lambda done=done: sum(len(e.ids) for e in recorder.of(events.Completed)) == done)
        assert {event.worker for event in recorder.of(events.Started)} == {other.id}
        assert {consumer.demand.not_fetching for consumer in quiet.consumers.values()} == {"quiet"}
