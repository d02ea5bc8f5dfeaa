"""Many jobs on one worker: which may begin, the cost of a stop or a death, and how queues share the slots."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, TextIO

import pytest
from anyio import to_thread

from evsched import App, Job, Retry, current_job, events
from evsched.config import Config
from evsched.errors import JobDead
from evsched.jobs.job import FetchedJob, Mark, encode
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.top.collector import Top
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from evsched.worker import run_notes
from evsched.worker.slots import QueueShare
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.system import System, system


def held(raw: Any, queue: str, worker: str) -> int:
    return raw.llen(f"evsched:{{{queue}}}:processing:{worker}")


async def started(running: System, count: int) -> None:
    """Wait until `count` runs have started."""
    await running.recorder.until(lambda: sum(len(event.ids) for event in running.recorder.of(events.Started)) >= count)


@pytest.fixture
def small(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=10, process_pool=1, shutdown_grace=0.2, kill_grace=0.2)


@pytest.fixture
def lock(tmp_path: Path) -> Generator[TextIO]:
    """A file whose lock holds back `heavy.wait_for`, until it is released."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.mark.extra
async def test_jobs_without_a_free_process_go_to_other_workers_without_an_attempt(
    small: Config, queue: str, raw: Any, lock: TextIO
) -> None:
    async with system(small, heavy.app, workers=0) as running:
        wait_for = heavy.wait_for.using(queue=queue, retry=Retry(attempts=2))
        jobs = [await wait_for.enqueue(lock.name) for _ in range(12)]
        for n in range(1, 7):
            worker = running.work()
            await running.recorder.wait(events.JobsRequeued, lambda event, name=worker.id: event.worker == name)
            # It holds only the job that it runs. Other workers may fetch the rest.
            assert held(raw, queue, worker.id) <= 1
            assert raw.llen(f"evsched:{{{queue}}}:ready") + raw.zcard(f"evsched:{{{queue}}}:backlog") >= 11
            worker.stop()
            await running.recorder.wait(events.WorkerStopped, count=n)
        fcntl.flock(lock, fcntl.LOCK_UN)
        running.work()
        assert [await job.result(PATIENCE) for job in jobs] == [1] * 12
    assert not running.recorder.of(events.JobBuried)
    # Jobs that did not begin were not reported as started.
    assert sum(len(event.ids) for event in running.recorder.of(events.Started)) <= 12 + 6


async def test_a_worker_whose_pool_is_full_reports_that_it_fetches_nothing(
    small: Config, queue: str, lock: TextIO
) -> None:
    async with system(small, heavy.app) as running:
        jobs = [await heavy.wait_for.using(queue=queue).enqueue(lock.name) for _ in range(3)]
        top = Top(small.url, [queue])
        try:
            async with asyncio.timeout(PATIENCE):
                while [status.not_fetching for status in (await top.look()).statuses] != ["no process"]:
                    assert running.recorder.of(events.JobBuried) == []
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert [await job.result(PATIENCE) for job in jobs] == [1] * 3
            (status,) = (await top.look()).statuses
            assert status.not_fetching is None
        finally:
            await top.close()


async def test_other_tasks_run_once_a_process_is_free(small: Config, queue: str, lock: TextIO) -> None:
    async with system(small, heavy.app) as running:
        slow = [await heavy.wait_for.using(queue=queue).enqueue(lock.name) for _ in range(4)]
        await started(running, 1)
        quick = [await heavy.where.using(queue=queue).enqueue() for _ in range(20)]
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert [await job.result(PATIENCE) for job in slow] == [1] * 4
        assert {(await job.result(PATIENCE))[1] for job in quick} == {1}


async def test_a_stop_buries_a_job_whose_only_attempt_has_begun(config: Config, app: App) -> None:
    began = list[str]()

    @app.task(retry=Retry(attempts=1))
    async def once() -> None:
        began.append(current_job().id)
        await asyncio.Event().wait()

    async with system(config, app) as running:
        job = await once.enqueue()
        await started(running, 1)
        running.workers[0].stop()
        await running.recorder.wait(events.WorkerStopped)
        with pytest.raises(JobDead, match=r"attempt 1 of 1: worker .* was stopped while it ran"):
            await job.result(PATIENCE)
        running.work()
        await running.recorder.wait(events.WorkerStarted, count=2)
    assert began == [job.id]


async def test_an_only_attempt_is_marked_before_it_begins(config: Config, app: App, queue: str, raw: Any) -> None:
    marks = list[Any]()

    @app.task(retry=Retry(attempts=1))
    async def once() -> None:
        marks.append(raw.hget(f"evsched:{{{queue}}}:job:{current_job().id}", "begun"))

    async with system(config, app):
        for job in [await once.enqueue() for _ in range(20)]:
            await job.result(PATIENCE)
    assert marks == [b"1"] * 20


async def test_only_long_runs_are_marked_as_begun(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, send, sent = asyncio.Event(), BatchingSender.send, list[str]()

    async def note(self: BatchingSender, call: Call[Any]) -> Any:
        sent.append(call.name)
        return await send(self, call)

    monkeypatch.setattr(BatchingSender, "send", note)

    @app.task
    async def hold() -> None:
        await gate.wait()

    @app.task
    async def noop() -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(run_notes, "_MARK_AFTER", PATIENCE)  # so that they are short on any machine
        async with system(config, app):
            for job in [await noop.enqueue() for _ in range(20)]:
                await job.result(PATIENCE)
    assert "begin" not in sent
    async with system(config, app) as running:
        job = await hold.enqueue()
        async with asyncio.timeout(PATIENCE):
            while raw.hget(f"evsched:{{{queue}}}:job:{job.id}", "begun") != b"1":
                await running.sender.send(Store(queue).survey())
        gate.set()
        await job.result(PATIENCE)
    assert "begin" in sent


@pytest.mark.extra
async def test_no_timer_wakes_a_worker_whose_runs_have_ended(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, timers, after = asyncio.get_running_loop(), list[asyncio.TimerHandle](), 2 * PATIENCE
    call_later = loop.call_later

    def note(delay: float, *words: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, *words, **options)
        if delay == after:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", note)
    monkeypatch.setattr(run_notes, "_MARK_AFTER", after)

    @app.task
    async def noop() -> None: ...

    async with system(config, app):
        for job in [await noop.enqueue() for _ in range(3)]:
            await job.result(PATIENCE)
        assert timers
        assert all(timer.cancelled() for timer in timers)


async def test_run_is_not_marked_as_begun_before_its_thread_has_started(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may take longer to start a thread than a run lasts before it is marked."""
    run_sync, waits, may_start, gate = to_thread.run_sync, asyncio.Event(), asyncio.Event(), threading.Event()

    async def start_late(*words: Any, **options: Any) -> Any:
        waits.set()
        await may_start.wait()
        return await run_sync(*words, **options)

    monkeypatch.setattr(to_thread, "run_sync", start_late)

    @app.task
    def in_thread() -> None:
        gate.wait(PATIENCE)

    @app.task
    async def in_loop() -> None:
        await may_start.wait()

    async def is_marked(job: Job[None]) -> bool:
        await running.sender.send(Store(queue).survey())  # so that the worker's loop runs
        return raw.hget(f"evsched:{{{queue}}}:job:{job.id}", "begun") == b"1"

    async with system(config, app) as running, asyncio.timeout(PATIENCE):
        thread = await in_thread.enqueue()
        await waits.wait()
        loop = await in_loop.enqueue()  # begins later, so it is marked later
        while not await is_marked(loop):
            pass
        assert not await is_marked(thread)
        may_start.set()
        while not await is_marked(thread):
            pass
        gate.set()
        await thread.result(PATIENCE)


def suspects(raw: Any, queue: str, task: str, deaths: int, doubts: int, count: int = 1, **options: Any) -> list[str]:
    """Schedule jobs that so many workers held when they died; return their ids.

    `doubts`: how many of these runs may not have begun. `options`: more of the payload.
    """
    ids = [f"{task}-{n}" for n in range(count)]
    payload = encode({"task": task, **options})
    for job in ids:
        raw.hset(f"evsched:{{{queue}}}:job:{job}", mapping={"payload": payload, "attempt": "0"})
        raw.hset(f"evsched:{{{queue}}}:suspects", job, f"{deaths} {doubts}")
        raw.zadd(f"evsched:{{{queue}}}:schedule", {job: 0})
    return ids


@pytest.fixture
def findable(monkeypatch: pytest.MonkeyPatch) -> App:
    """An app that another process can import."""
    monkeypatch.setattr(heavy.app, "origin", "tests.support.heavy:app")
    monkeypatch.setenv("PYTEST_PROCESS", str(os.getpid()))
    return heavy.app


async def test_a_repeated_suspect_is_isolated_and_the_worker_survives_it(
    config: Config, findable: App, queue: str, raw: Any
) -> None:
    async with system(config, findable) as running:
        guilty = suspects(raw, queue, "die_here", 2, 2)
        harmless = suspects(raw, queue, "where", 2, 2, count=5)
        buried = await running.recorder.wait(events.JobBuried, limit=60)
        assert [buried.id] == guilty
        assert "attempt 5 of 5 (2 earlier runs are counted that may not have begun): its process died" in buried.reason
        # Two runs that may not have begun, and three runs that ended their process.
        assert [event.attempt for event in running.recorder.of(events.Retrying)] == [1, 4]
        assert raw.hget(f"evsched:{{{queue}}}:job:{buried.id}", "attempt") == b"5"
        await running.recorder.until(
            lambda: sum(len(event.ids) for event in running.recorder.of(events.Completed)) == 5, limit=60
        )
        for job in harmless:
            pid, attempt = await running.app.client.result(queue, job, 5)
            assert (pid != os.getpid(), attempt) == (True, 1)
            status = await running.app.client.status(queue, job)
            assert status is not None
            assert status.progress == {"done": 1, "total": 2}


@pytest.mark.extra
@pytest.mark.parametrize("deaths", [2, 4], ids=["isolated", "alone"])
async def test_a_suspect_with_one_attempt_has_no_doubtful_runs(
    config: Config, findable: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """Its run is marked before it begins, so the run in which it became a suspect has not begun."""
    begin, marks = Store.begin, list[Mark]()

    def note(store: Store, worker: str, runs: Iterable[tuple[FetchedJob, Mark]]) -> Call[list[str]]:
        runs = list(runs)
        marks.extend(mark for _, mark in runs)
        return begin(store, worker, runs)

    monkeypatch.setattr(Store, "begin", note)
    async with system(config, findable) as running:
        (guilty,) = suspects(raw, queue, "die_here", deaths, 1, retry={"attempts": 1})
        buried = await running.recorder.wait(events.JobBuried, limit=60)
    assert (buried.id, buried.attempt) == (guilty, 1)
    assert buried.reason.startswith("attempt 1 of 1: its process died")
    assert raw.hget(f"evsched:{{{queue}}}:job:{guilty}", "attempt") == b"1"
    # If the worker dies in a run that is marked as alone, its doubtful runs count.
    assert marks == ["1"]


async def test_a_suspect_of_one_death_runs_beside_other_jobs(
    config: Config, findable: App, queue: str, raw: Any
) -> None:
    async with system(config, findable) as running:
        (job,) = suspects(raw, queue, "where", 1, 1)
        await running.recorder.wait(events.Completed)
        assert await running.app.client.result(queue, job, 5) == [os.getpid(), 1]


async def test_a_worker_whose_app_cannot_be_found_by_name_runs_suspects_alone(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    beside = list[int]()
    running_now = Counter[str]()

    @app.task
    async def suspect() -> None:
        beside.append(running_now.total())
        assert raw.hget(f"evsched:{{{queue}}}:job:{current_job().id}", "begun") == b"soon alone"

    @app.task
    async def noop() -> None:
        running_now["noop"] += 1
        await asyncio.to_thread(lambda: None)
        running_now["noop"] -= 1

    async with system(config, app) as running:
        suspects(raw, queue, "suspect", 2, 2, count=3)
        others = [await noop.enqueue() for _ in range(30)]
        for job in others:
            await job.result(PATIENCE)
        await running.recorder.until(
            lambda: sum(len(event.ids) for event in running.recorder.of(events.Completed)) == 33
        )
    assert beside == [0, 0, 0]


@pytest.mark.parametrize("slots", [1, 4])
async def test_queue_with_few_jobs_gets_its_turns_beside_a_saturated_one(
    server: EmbeddedRedis, queue: str, slots: int
) -> None:
    app, other, seen = App(queue=queue), f"{queue}-b", asyncio.Event()
    counts = Counter[str]()

    @app.task
    async def step() -> None:
        counts[current_job().queue] += 1
        seen.set()
        await asyncio.to_thread(lambda: None)
        if current_job().queue == queue:  # this queue never ends
            await step.enqueue()

    async def reaches(name: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while counts[name] < count:
                seen.clear()
                await seen.wait()

    config = Config(url=server.url, queues=(queue, other), concurrency=slots, shutdown_grace=2.0)
    async with system(config, app) as running:
        for _ in range(5 * slots):
            await step.enqueue()
        for burst in range(1, 6):
            await reaches(queue, counts[queue] + 10 * slots)
            for _ in range(3):
                await step.using(queue=other).enqueue()
            await reaches(other, 3 * burst)
        await running.sender.send(Store(queue).pause())


@pytest.mark.parametrize("slots", [1, 4])
async def test_a_saturated_queue_leaves_turns_to_the_other(server: EmbeddedRedis, queue: str, slots: int) -> None:
    app, ended, enough = App(queue=queue), list[tuple[QueueShare, float]](), asyncio.Event()
    other = f"{queue}-b"

    @app.task
    async def step() -> None:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)

    config = Config(url=server.url, queues=(queue, other), weights={queue: 3.0}, concurrency=slots, shutdown_grace=2.0)
    async with system(config, app, workers=0) as running:
        for name in (queue, other):
            jobs = [New(f"{name}-{n}", encode({"task": "step"})) for n in range(90 * slots)]
            await running.sender.send(Store(name).enqueue(jobs))
        consumers = running.work().consumers
        shares = [consumers[name].demand.share for name in (queue, other)]

        def watch(share: QueueShare) -> Callable[[float], None]:
            end = share.end

            def watched(seconds: float) -> None:
                end(seconds)
                ended.append((share, seconds))
                if len(ended) >= 90 * slots:  # both still have jobs
                    enough.set()

            return watched

        for share in shares:
            share.end = watch(share)  # pyright: ignore[reportAttributeAccessIssue]
        async with asyncio.timeout(PATIENCE):
            await enough.wait()
        window = ended[10 * slots : 90 * slots]  # at first one of them may run alone
        mine, others = (sum(seconds for share, seconds in window if share is one) for one in shares)
        # On any machine, neither is ahead by more than what the jobs in the slots take, or are assumed to take.
        assert abs(mine / 3 - others) <= 2 * slots * (max(seconds for _, seconds in ended) + 0.03)
        await running.sender.send(Store(other).pause())
    assert not running.recorder.of(events.JobBuried)
