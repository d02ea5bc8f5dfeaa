"""`on_done` and `on_dead`: another task gets one job for each end of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evsched import App, EndedJob, GiveUp, JobDead, Retry, RetryLater, Snooze, StoreDown, current_job, events
from evsched.config import Config
from evsched.jobs.job import encode
from evsched.transport.call import Call
from evsched.transport.senders import DirectSender
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.system import System, system


class Told:
    """An app with a hook task that records its calls."""

    def __init__(self, app: App) -> None:
        self.ended = list[EndedJob]()

        @app.task
        async def tell(ended: EndedJob) -> None:
            self.ended.append(ended)

        self.task = tell

    async def by(self, running: System, count: int = 1) -> list[EndedJob]:
        """Wait until jobs of the hook have ended, and return their arguments."""

        def done() -> int:
            return sum(one.tasks.count("tell") for one in running.recorder.of(events.Completed))

        await running.recorder.until(lambda: done() >= count)
        return self.ended


@pytest.fixture
def told(app: App) -> Told:
    return Told(app)


async def test_done_hook_is_called_for_each_successful_job(config: Config, app: App, told: Told) -> None:
    @app.task(on_done=told.task, on_dead=told.task)
    async def double(n: int) -> int:
        return 2 * n

    async with system(config, app) as running:
        jobs = await double.enqueue_many([(n,) for n in range(50)])
        found = await told.by(running, 50)
    assert {one.id: one.result for one in found} == {job.id: 2 * n for n, job in enumerate(jobs)}
    assert {(one.task, one.outcome, one.attempts, one.reason) for one in found} == {("double", "done", 1, None)}
    assert len(found) == 50


async def test_a_handler_without_the_annotation_gets_the_same_as_a_dict(config: Config, app: App) -> None:
    ended = list[Any]()

    @app.task
    async def tell(job) -> None:  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        ended.append(job)

    @app.task(on_done=tell)  # pyright: ignore[reportUnknownArgumentType]
    async def one() -> int:
        return 1

    async with system(config, app) as running:
        job = await one.using(id="a").enqueue()
        await job.result(PATIENCE)
        await running.recorder.until(lambda: len(ended) == 1)
    expected = {"id": "a", "task": "one", "outcome": "done", "attempts": 1, "result": 1}
    assert ended == [expected]


async def test_other_outcomes_and_cancellations_call_no_hook(config: Config, app: App, told: Told) -> None:
    began = asyncio.Event()

    @app.task(on_done=told.task)
    async def fail() -> None:
        raise GiveUp("never")

    @app.task(on_dead=told.task)
    async def succeed() -> None: ...

    @app.task(on_done=told.task, on_dead=told.task)
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    @app.task(on_done=told.task)
    async def last() -> None: ...

    async with system(config, app) as running:
        await succeed.enqueue()
        with pytest.raises(JobDead):
            await (await fail.enqueue()).result(PATIENCE)
        job = await hang.enqueue()
        await began.wait()
        await job.cancel()
        await running.recorder.wait(events.JobAborted)
        waiting = await hang.using(delay=60).enqueue()
        await waiting.cancel()
        await last.enqueue()
        found = await told.by(running)
        assert await running.app.client.status(app.queue, job.id)
    assert [one.task for one in found] == ["last"]


FAR = datetime.now(UTC) - timedelta(days=1)

DEATHS: dict[str, tuple[dict[str, Any], str]] = {
    "fails": ({"args": ["fails"]}, "attempt 2 of 2: ValueError: no luck"),
    "gives up": ({"args": ["gives up"]}, "never"),
    "is not retried": ({"args": ["is not retried"]}, "attempt 1 of 2: KeyError"),
    "times out": ({"args": ["hangs"], "timeout": 0.01, "retry": {"attempts": 1}}, "attempt 1 of 1: timeout"),
    "has a result that is no JSON": ({"args": ["returns an object"]}, "the result is not JSON: "),
    "does not fit": ({"args": [7]}, "the arguments do not fit"),
    "has a bad policy": ({"args": ["x"], "retry": {"attempts": 0}}, "the arguments do not fit"),
    "has no window": ({"args": ["x"], "window": "nights"}, "there is no window 'nights'"),
    "expires": ({"args": ["x"], "expires": FAR.timestamp()}, "expired"),
}


@pytest.mark.parametrize("how", DEATHS)
async def test_dead_hook_receives_the_reason(
    config: Config, app: App, told: Told, queue: str, raw: Any, how: str
) -> None:
    @app.task(retry=Retry(attempts=2, interval=0.01, jitter=0, give_up_on=(KeyError,)), on_dead=told.task)
    async def work(way: str) -> Any:
        match way:
            case "fails":
                raise ValueError("no luck")
            case "gives up":
                raise GiveUp("never")
            case "is not retried":
                raise KeyError("x")
            case "hangs":
                return await asyncio.Event().wait()
            case _:
                return object()

    fields, reason = DEATHS[how]
    async with system(config, app) as running:
        raw.hset(f"evsched:{{{queue}}}:job:a", "payload", encode({"task": "work", **fields}))
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})
        (ended,) = await told.by(running)
    assert (ended.id, ended.task, ended.outcome) == ("a", "work", "expired" if how == "expires" else "dead")
    assert (ended.reason or "").startswith(reason)
    # A run that did not begin is no attempt.
    assert ended.attempts == (2 if how == "fails" else int(how in list(DEATHS)[:5]))


async def test_retry_and_snooze_call_no_hook(config: Config, app: App, told: Told) -> None:
    runs = list[int]()

    @app.task(on_done=told.task, on_dead=told.task)
    async def work() -> int:
        runs.append(current_job().attempt)
        if len(runs) == 1:
            raise RetryLater(0)
        if len(runs) == 2:
            raise Snooze(0)
        return len(runs)

    async with system(config, app) as running:
        await work.enqueue()
        (ended,) = await told.by(running)
    assert (ended.outcome, ended.attempts, ended.result) == ("done", 2, 3)


async def test_hook_task_can_have_a_hook_of_its_own(config: Config, app: App, told: Told) -> None:
    @app.task(on_dead=told.task, retry=Retry(attempts=1))
    async def alert(ended: EndedJob) -> None:
        raise ValueError(f"cannot tell of {ended.id}")

    @app.task(on_dead=alert)
    async def work() -> None:
        raise GiveUp("never")

    async with system(config, app) as running:
        job = await work.enqueue()
        (ended,) = await told.by(running)
    assert (ended.task, ended.outcome) == ("alert", "dead")
    assert ended.id.startswith(f"{job.id}.dead.")
    assert f"cannot tell of {job.id}" in (ended.reason or "")


async def test_tasks_on_processes_call_hooks_and_may_be_hooks(config: Config, app: App, queue: str) -> None:
    ended = app.task(on="process")(heavy.describe.handler)
    double = app.task(on="process", on_done=ended)(heavy.double.handler)
    async with system(config, app) as running:
        await double.using(id="d").enqueue(21)
        done = await running.recorder.wait(events.Completed, lambda event: event.tasks == ["describe"])
        assert await app.job(done.ids[0]).result(PATIENCE) == "d of double is done: 42"


async def test_hooks_are_called_once_although_the_replies_to_the_ends_are_lost(
    config: Config, app: App, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(on_done=told.task, on_dead=told.task)
    async def work(n: int) -> int:
        if n % 2:
            raise GiveUp("odd")
        return n

    send, lost = DirectSender.attempt_all, list[str]()

    async def lose_replies(self: DirectSender, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send the calls; the first five times that there is one of a verb that ends runs, no reply arrives."""
        replies = await send(self, calls)
        ends = {call.name for call in calls} & {"complete", "bury"}
        if any(lost.count(end) < 5 for end in ends):
            lost.extend(ends)
            raise StoreDown("the reply was lost")
        return replies

    monkeypatch.setattr(DirectSender, "attempt_all", lose_replies)
    async with system(config, app) as running:
        await work.enqueue_many([(n,) for n in range(40)])
        await running.recorder.until(lambda: len({one.id for one in told.ended}) == 40)
    assert {"complete", "bury"} <= {*lost}
    assert not running.recorder.of(events.RunLost)
    assert len(told.ended) == 40
