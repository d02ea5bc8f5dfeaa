"""A job is cancelled while it runs: its worker is notified at once, and the outcome says so."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evsched import App, Job, JobDead, JobMissing, Retry, current_job, events
from evsched.client.client import SyncClient
from evsched.config import Config
from evsched.store import server
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.system import System, system


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=10, shutdown_grace=0.2, kill_grace=0.2, process_pool=1)


async def cancelled(running: System, job: Any) -> None:
    """Cancel a job that runs, and check everything that must follow."""
    waiting = asyncio.ensure_future(job.result(PATIENCE))
    await running.recorder.wait(events.Started)
    assert await job.cancel() == "processing"
    ended = await running.recorder.wait(events.JobAborted)
    assert ended.id == job.id
    with pytest.raises(JobDead, match="was cancelled"):
        await waiting
    status = await job.status()
    assert (status.place, status.outcome) == ("finished", "cancelled")
    with pytest.raises(JobMissing):
        await job.cancel()


@pytest.mark.parametrize("asked", [True, False])
async def test_the_result_of_a_job_that_was_cancelled_while_it_waited(config: Config, app: App, asked: bool) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app, workers=0):
        job = await noop.using(delay=60, reply=asked).enqueue()
        assert await job.cancel() == "schedule"
        with pytest.raises(JobDead if asked else JobMissing, match="was cancelled"):
            await job.result(PATIENCE)
        with pytest.raises(JobMissing, match="was cancelled while it waited"):
            await job.status()


async def test_an_async_task_is_cancelled_where_it_waits(config: Config, app: App) -> None:
    stopped = asyncio.Event()

    @app.task
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with system(config, app) as running:
        await cancelled(running, await hang.enqueue())
        assert stopped.is_set()


async def test_a_plain_function_sees_that_it_is_cancelled_and_ends_by_itself(config: Config, app: App) -> None:
    begun = threading.Event()

    @app.task
    def spin() -> str:
        job, wait = current_job(), threading.Event()
        begun.set()
        while not job.cancelled:
            wait.wait(0.005)
        return "what it returns does not count"

    async with system(config, app) as running:
        job = await spin.enqueue()
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        await cancelled(running, job)


@pytest.mark.extra
async def test_a_cancelled_task_on_a_process_ends_the_process(config: Config, queue: str, tmp_path: Path) -> None:
    async with system(config, heavy.app) as running:
        pid, job = await spinning(queue, tmp_path)
        await cancelled(running, job)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        # The pool can start another process.
        assert await (await heavy.double.using(queue=queue).enqueue(21)).result(PATIENCE) == 42


async def spinning(queue: str, folder: Path, **options: Any) -> tuple[int, Any]:
    """Start a job in a process; return the pid of the process once the job has begun."""
    await (await heavy.pid.using(queue=queue).enqueue()).result(PATIENCE)  # so that the pool has a process
    fifo = folder / "pid"
    os.mkfifo(fifo)
    # Not in a thread, which would wait for ever for a process that ended before it could write.
    end = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(end, ended.set)
    try:
        job = await heavy.spin.using(queue=queue, **options).enqueue(str(fifo))
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        return int(os.read(end, 100)), job
    finally:
        loop.remove_reader(end)
        os.close(end)


@pytest.mark.extra
async def test_a_timeout_ends_a_process(config: Config, queue: str, tmp_path: Path) -> None:
    async with system(config, heavy.app):
        pid, job = await spinning(queue, tmp_path, timeout=3)
        with pytest.raises(JobDead, match="timeout"):
            await job.result(PATIENCE)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.extra
async def test_tasks_on_processes_run_there_and_may_retry_later_or_give_up(config: Config, queue: str) -> None:
    async with system(config, heavy.app):

        async def outcome(task: Any, *args: Any) -> Any:
            return await (await task.using(queue=queue).enqueue(*args)).result(PATIENCE)

        assert await outcome(heavy.pid) != os.getpid()
        assert await outcome(heavy.steer, "later") == 2
        for how, reason in (
            ("never", "^.* is dead: the account is closed"),
            ("fail", "attempt 2 of 2: ValueError: no luck .*heavy.py"),
            ("die", "attempt 2 of 2: its process died"),
        ):
            with pytest.raises(JobDead, match=reason):
                await outcome(heavy.steer, how)


async def test_a_worker_learns_of_a_cancellation_by_a_message(config: Config, app: App) -> None:
    """No heartbeat is sent during the test. The benchmark measures how fast the message is."""

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(msgspec.structs.replace(config, heartbeat=4 * PATIENCE, lease=10 * PATIENCE), app) as running:
        for n in range(9):
            job = await hang.enqueue()
            await running.recorder.wait(events.Started, count=n + 1)
            await job.cancel()
            await running.recorder.wait(events.JobAborted, count=n + 1)


@pytest.mark.one_server
async def test_a_heartbeat_brings_a_cancellation_whose_message_was_lost(
    server: EmbeddedRedis, app: App, queue: str, raw: Any
) -> None:
    config = Config(url=server.url, queues=(queue,), lease=15.0, heartbeat=0.1)

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running:
        job = await hang.enqueue()
        await running.recorder.wait(events.Started)
        raw.hset(f"evsched:{{{queue}}}:job:{job.id}", "stop", "1")  # as cancel does, but without its message
        assert (await running.recorder.wait(events.JobAborted)).id == job.id
        # The worker subscribes again to the channel that brought no message, and now receives messages.
        worker = running.workers[0].id
        other = await hang.enqueue()
        await running.recorder.wait(events.Started, count=2)
        await running.recorder.wait(events.ControlOpened, count=2)
        assert raw.pubsub_numsub(f"evsched:{{{queue}}}:control:{worker}")[0][1] == 1
        await other.cancel()
        await running.recorder.wait(events.JobAborted, count=2)


async def test_a_cancelled_job_ends_as_cancelled_even_if_its_worker_dies(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app, workers=0) as running:
        job = await noop.enqueue()
        await running.recorder.wait(events.Dispatched)
        store = Store(queue)
        await running.sender.send(store.heartbeat("gone", 15, fresh=True))
        await running.sender.send(store.start("gone", (), hold=1, lease=15))
        assert await job.cancel() == "processing"
        await running.sender.send(store.requeue("gone", "it died"))
        status = await job.status()
        assert (status.place, status.outcome) == ("finished", "cancelled")
        assert not raw.exists(f"evsched:{{{queue}}}:ready")


async def test_a_job_can_be_cancelled_between_fetch_and_start(config: Config, app: App, queue: str, raw: Any) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app, workers=0) as running:
        job = await noop.enqueue()
        await running.recorder.wait(events.Dispatched)
        store = Store(queue)
        await running.sender.send(store.heartbeat("w", 15, fresh=True))
        raw.lmove(f"evsched:{{{queue}}}:ready", f"evsched:{{{queue}}}:processing:w", "LEFT", "RIGHT")
        assert await job.cancel() == "processing"
        reply = await running.sender.send(store.start("w", [job.id], hold=1, lease=15))
        assert reply.jobs == []
        assert (await job.status()).outcome == "cancelled"
        assert not raw.exists(f"evsched:{{{queue}}}:processing:w")


async def test_a_run_that_is_cancelled_while_it_starts_is_stopped(config: Config, app: App) -> None:
    """The message may arrive before the reply that starts the run, and no heartbeat is sent that could bring it."""

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    config = msgspec.structs.replace(config, concurrency=50, lease=125.0, heartbeat=60.0, idle_heartbeat=60.0)
    async with system(config, app) as running:
        number = itertools.count(1)

        async def dispatched() -> Job[None]:
            job = await hang.enqueue()
            await running.recorder.wait(events.Dispatched, count=next(number))
            return job

        for _ in range(100):
            job = await dispatched()
            while await job.cancel() != "processing":
                job = await dispatched()  # the cancellation was quicker than the worker
            with pytest.raises(JobDead, match="was cancelled"):
                await job.result(PATIENCE)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_that_is_cancelled_as_it_returns_ends_as_cancelled(config: Config, app: App, fails: bool) -> None:
    """Its handler blocks the event loop, so the worker receives no message, and then returns or raises."""
    begun = threading.Event()
    go_on = threading.Event()
    late = list[float]()
    blocked = list[float]()

    @app.task(retry=Retry(attempts=2))
    async def block() -> None:
        late.append(current_job().lateness)
        since = time.monotonic()
        begun.set()
        go_on.wait(PATIENCE)
        blocked.append(time.monotonic() - since)
        if fails:
            raise ValueError("no luck")

    async with system(config, app) as running:
        job = await block.enqueue()

        def cancel() -> str:
            begun.wait(PATIENCE)
            client = SyncClient(config.url)
            place = client.send(Store(job.queue).cancel(job.id)).place
            until = client.send(server.clock()) + 0.3  # longer than a busy machine takes for a few lines of Python
            while client.send(server.clock()) < until:
                pass
            client.close()
            go_on.set()
            return place

        assert await asyncio.to_thread(cancel) == "processing"
        with pytest.raises(JobDead, match="was cancelled"):
            await job.result(PATIENCE)
        status = await job.status()
        assert (status.place, status.outcome) == ("finished", "cancelled")
        # The lateness is that of the start, although the handler blocked the event loop and the event came later.
        (started,) = running.recorder.of(events.Started)
        assert started.lateness[0] - late[0] < blocked[0]
