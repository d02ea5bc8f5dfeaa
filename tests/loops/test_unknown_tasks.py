"""Two versions of an app side by side: a job waits for a worker that knows its task."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, Retry, RetryLater, current_job, events
from evsched.client.explain import explain
from evsched.config import Config
from evsched.diagnostics.queue_checks import incomplete_deploys
from evsched.execution import deferral
from evsched.jobs.job import encode
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.system import System, system


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "_FIRST", 0.02)


@pytest.fixture
def app(queue: str) -> App:
    """The old version."""
    app = App(queue=queue)

    @app.task
    async def old() -> float:
        return current_job().lateness

    return app


@pytest.fixture
def newer(queue: str, app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """The new version, which has a task more. It is offered a job soon, however long the job has waited by then."""
    monkeypatch.setattr(deferral, "_LONGEST", 0.2)
    newer = App(queue=queue)
    newer.tasks.update(app.tasks)

    @newer.task(retry=Retry(attempts=1), retention=60)
    async def new() -> str:
        return f"{current_job().attempt} {current_job().idempotency_key}"

    @newer.task(retry=Retry(attempts=2), retention=60)
    async def twice() -> int:
        if current_job().attempt == 1:
            raise RetryLater(3600.0)
        return current_job().attempt

    return newer


def schedule(raw: Any, queue: str, job_id: str, task: str = "new", due: float = 0, **fields: Any) -> None:
    raw.hset(f"evsched:{{{queue}}}:job:{job_id}", "payload", encode({"task": task, **fields}))
    raw.zadd(f"evsched:{{{queue}}}:schedule", {job_id: due})


async def deferred(running: System, job_id: str, count: int = 1) -> events.JobDeferred:
    return await running.recorder.wait(events.JobDeferred, lambda event: event.id == job_id, count=count)


async def test_a_job_waits_for_a_worker_that_knows_its_task_and_loses_no_attempt(
    config: Config, app: App, newer: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        due = float(raw.time()[0]) - 3600
        schedule(raw, queue, "a", due=due)
        first, second, third = [await deferred(running, "a", count) for count in (1, 2, 3)]
        assert (first.cause, first.task) == ("task", "new")
        assert third.due - second.due > 0.02
        running.work(newer)
        await running.recorder.wait(events.Completed)
        record = raw.hgetall(f"evsched:{{{queue}}}:job:a")
        assert record[b"result"] == json.dumps(f"1 a:{due:.6f}").encode()
        assert not running.recorder.of(events.JobBuried)
        assert len(running.recorder.of(events.TaskUnknown)) == 1


async def test_unknown_task_buries_its_job_after_the_grace_and_names_known_ones(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    config = replace(config, unknown_task_grace=0.1)
    async with system(config, app):
        schedule(raw, queue, "a", "olde", reply=True)
        _, reply = await asyncio.to_thread(raw.blpop, f"evsched:{{{queue}}}:reply:a", timeout=PATIENCE)
    ended = json.loads(reply)
    assert ended["outcome"] == "dead"
    assert "did you mean 'old'? This worker has 'old'" in ended["reason"]
    assert raw.hget(f"evsched:{{{queue}}}:job:a", "attempt") == b"0"


@pytest.mark.parametrize("grace", [0.1, 0.0])
async def test_a_job_is_not_given_up_while_another_worker_has_its_task(
    config: Config, app: App, newer: App, queue: str, raw: Any, grace: float
) -> None:
    config, store = replace(config, unknown_task_grace=grace), Store(queue)
    async with system(config, app) as running:
        program = Announced(program=newer.program.digest)
        await running.sender.send(store.set_program(program.program, sorted(newer.tasks)))
        await running.sender.send(store.heartbeat("other", 60, fresh=True, announced=program))  # and it fetches nothing
        schedule(raw, queue, "a")
        offered = await deferred(running, "a", count=6)
        assert not running.recorder.of(events.JobBuried)
        assert offered.due > running.recorder.of(events.JobDeferred)[0].due + 0.1
        assert not raw.exists(f"evsched:{{{queue}}}:sought"), "no parent is to start a process"
        raw.delete(f"evsched:{{{queue}}}:programs")  # it has died
        buried = await running.recorder.wait(events.JobBuried)
        assert raw.zrange(f"evsched:{{{queue}}}:sought", 0, -1) == [b"new"]
        assert "unknown task 'new'" in buried.reason


async def test_a_worker_that_starts_is_known_to_have_its_tasks(config: Config, app: App, queue: str) -> None:
    async with system(config, app) as running:
        assert await running.sender.send(Store(queue).seek("old"))
        assert not await running.sender.send(Store(queue).seek("new"))


async def test_jobs_of_known_tasks_start_at_once_beside_a_crowd_of_unknown_ones(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    crowd = 200
    async with system(config, app) as running:
        began = time.monotonic()
        with raw.pipeline(transaction=False) as pipe:
            for n in range(crowd):
                schedule(pipe, queue, f"{n}")
            pipe.execute()
        await running.recorder.wait(events.JobDeferred, count=crowd)
        for n in range(5):
            schedule(raw, queue, f"known-{n}", "old", due=float(raw.time()[0]))
            await running.recorder.wait(events.Completed, count=n + 1)
        offered = Counter(event.id for event in running.recorder.of(events.JobDeferred))
        # Each wait is at least 0.8 times as long as all before it together, so the time grows by 1.8 with each offer.
        assert 0.02 * (1.8 ** (max(offered.values()) - 1) - 1) <= time.monotonic() - began
    raw.flushall()


async def test_retried_job_that_meets_an_old_worker_gets_the_full_grace(
    config: Config, app: App, newer: App, queue: str, raw: Any
) -> None:
    async with system(config, app, workers=0) as running:
        first = running.work(newer)
        due = float(raw.time()[0]) - 3600
        schedule(raw, queue, "a", "twice", due=due)
        raw.hset(f"evsched:{{{queue}}}:job:a", "unknown", "1 2")  # long ago
        await running.recorder.wait(events.Retrying)
        first.stop()
        await running.recorder.wait(events.WorkerStopped)
        running.work()
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": due})
        await deferred(running, "a")
        running.work(newer)
        await running.recorder.wait(events.Completed)
        assert raw.hget(f"evsched:{{{queue}}}:job:a", "result") == b"2"


@pytest.mark.parametrize(
    "found", [b"x" * 1_048_576, b"1 nan", b"\xff \xff", b"1e400 0"], ids=["long", "nan", "bytes", "inf"]
)
async def test_unknown_field_written_by_a_producer_is_ignored(
    config: Config, app: App, queue: str, raw: Any, found: bytes
) -> None:
    async with system(config, app) as running:
        raw.hset(f"evsched:{{{queue}}}:job:a", "unknown", found)
        before = raw.info("stats")["total_net_output_bytes"]
        schedule(raw, queue, "a")
        await deferred(running, "a", 2)
        assert raw.info("stats")["total_net_output_bytes"] - before < 500_000
        assert len(raw.hget(f"evsched:{{{queue}}}:job:a", "unknown")) < 64


async def test_closed_window_defers_a_job_of_an_unknown_task(config: Config, app: App, queue: str, raw: Any) -> None:
    later = datetime.now(UTC) + timedelta(hours=5)
    async with system(config, app) as running:
        schedule(raw, queue, "a", window=f"{later:%H:%M}-{later + timedelta(hours=1):%H:%M} UTC")
        assert (await deferred(running, "a")).cause == "window"


async def test_job_of_an_unknown_task_can_be_cancelled_while_it_waits(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        schedule(raw, queue, "a")
        await deferred(running, "a")
        await running.app.client.cancel(queue, "a")
        schedule(raw, queue, "b", "old")
        await running.recorder.wait(events.Completed)
    assert not raw.zscore(f"evsched:{{{queue}}}:schedule", "a")


async def test_explain_says_for_how_long_no_worker_has_known_the_task(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "_FIRST", 20.0)
    async with system(config, app) as running:
        schedule(raw, queue, "a")
        await deferred(running, "a")
        facts = await running.sender.send(Store(queue).explain("a"))
    assert facts.status is not None
    assert (facts.status.attempt, facts.status.outcome) == (0, None)
    sentence = explain(queue, facts).sentence
    assert "unknown task 'new': this worker has 'old'" in sentence
    assert "it is offered again in" in sentence


async def test_the_doctor_reports_such_jobs_and_no_others(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "_FIRST", 20.0)
    async with system(config, app) as running:
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"new","id":"later"}': 4e9})
        schedule(raw, queue, "closed", "old", due=4e9)
        assert await incomplete_deploys(running.sender, [queue]) == []
        for job_id in "ab":
            schedule(raw, queue, job_id)
            await deferred(running, job_id)
        schedule(raw, queue, "c", "odd")
        await deferred(running, "c")
        first, second = await incomplete_deploys(running.sender, [queue])
        raw.delete(f"evsched:{{{queue}}}:schedule")
        raw.set(f"evsched:{{{queue}}}:schedule", "x")
        assert await incomplete_deploys(running.sender, [queue]) == []
    assert (first.check, first.level) == ("unknown-task", "warning")
    assert first.what.startswith("2 jobs wait for a worker that knows task 'new', the first for ")
    assert "did you mean 'old'" in second.what
    raw.flushall()


async def test_the_doctor_says_which_worker_has_a_task_of_evsched(
    config: Config, app: App, queue: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "_FIRST", 20.0)
    async with system(config, app) as running:
        schedule(raw, queue, "a", "evsched.http")
        await deferred(running, "a")
        (found,) = await incomplete_deploys(running.sender, [queue])
    assert "evsched worker evsched.targets:app --http-host HOST" in found.what
    assert found.mend.startswith("do as the reason says; or, if the name is wrong: evsched cancel a ")


async def test_the_doctor_compares_the_releases_of_our_own_workers_only(
    sender: BatchingSender, queue: str, raw: Any
) -> None:
    leases = f"evsched:{{{queue}}}:leases"
    raw.zadd(leases, dict.fromkeys(("host-1-00000000-0.1.0", "http:host-2", "of-another-program"), 4e9))
    assert await incomplete_deploys(sender, [queue]) == []
    raw.zadd(leases, {"host-3-00000000-0.0.9": 4e9})
    (found,) = await incomplete_deploys(sender, [queue])
    assert found.what == "workers of several releases run: 1 of 0.0.9, 1 of 0.1.0"
