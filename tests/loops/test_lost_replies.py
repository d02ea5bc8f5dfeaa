"""Replies are lost after Redis has done its work: no job is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, GiveUp, JobMissing, RetryLater, Snooze, StoreDown, Unique, current_job, events
from evsched.config import Config
from evsched.events import Event
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import DirectSender
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder
from tests.support.system import system


async def test_an_end_that_is_repeated_does_not_end_the_next_run_of_its_id(
    config: Config, app: App, raw: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    @app.task
    async def work() -> None:
        ran.append(current_job().id)
        if len(ran) == 1:
            # Where one was ready there may be more: the worker asks for it when it writes the end of this run.
            await app.job("other").cancel()
            await work.using(id="again", on_conflict="replace").enqueue()

    members = {f'{{"task":"{app.tasks["work"].name}","id":"{name}"}}': n for n, name in enumerate(("again", "other"))}
    raw.zadd(f"evsched:{{{queue}}}:schedule", members)
    send, lost = DirectSender.attempt_all, list[str]()

    async def lose_reply(self: DirectSender, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send the calls. The first time that they end and start jobs, the job that has ended is dispatched again in
        between, and no reply arrives."""
        names = [call.name for call in calls]
        if lost or not {"complete", "start"} <= {*names}:
            return await send(self, calls)
        at = names.index("start")
        await send(self, calls[:at])
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(raw.llen, f"evsched:{{{queue}}}:ready"):
                pass
        await send(self, calls[at:])
        lost.extend(names)
        raise StoreDown("the reply was lost")

    monkeypatch.setattr(DirectSender, "attempt_all", lose_reply)
    async with system(replace(config, concurrency=1), app) as running:
        await running.recorder.until(lambda: ran == ["again", "again"])
        await running.recorder.wait(events.Completed, count=2)
    assert lost


async def run_once_with_lost_ends(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch, start: Callable[[], Awaitable[Any]], end: type[Event]
) -> Recorder:
    """Run a job; the first two calls that write the end of its run are carried out, and their replies are lost.

    Return what was recorded until there was an event that reports the end.
    """
    send, lost = DirectSender.attempt_all, list[str]()

    async def lose_reply(self: DirectSender, calls: Sequence[Call[Any]]) -> list[Any]:
        replies = await send(self, calls)
        ends = [call.name for call in calls if call.name in _ENDS]
        if ends and len(lost) < 2:
            lost.extend(ends)
            raise StoreDown("the reply was lost")
        return replies

    monkeypatch.setattr(DirectSender, "attempt_all", lose_reply)
    async with system(config, app) as running:
        await start()
        await running.recorder.until(lambda: bool(running.recorder.of(end) or running.recorder.of(events.RunLost)))
    assert len(lost) == 2
    return running.recorder


_ENDS = {"complete", "retry", "bury", "abort", "snooze"}


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, events.Completed),
        (RetryLater(3600), events.Retrying),
        (GiveUp("no use"), events.JobBuried),
        (Snooze(3600), events.JobSnoozed),
    ],
    ids=["complete", "retry", "bury", "snooze"],
)
async def test_written_end_with_a_lost_reply_is_reported_as_that_end(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch, error: Exception | None, end: type[Event]
) -> None:
    @app.task
    async def work() -> None:
        if error:
            raise error

    recorder = await run_once_with_lost_ends(config, app, monkeypatch, work.enqueue, end)
    assert len(recorder.of(end)) == 1
    assert not recorder.of(events.RunLost)


async def test_a_cancelled_run_whose_end_was_written_is_reported_as_cancelled(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    async def start() -> None:
        job = await work.enqueue()
        await began.wait()
        await job.cancel()

    recorder = await run_once_with_lost_ends(config, app, monkeypatch, start, events.JobAborted)
    assert len(recorder.of(events.JobAborted)) == 1
    assert not recorder.of(events.RunLost)


async def test_end_without_a_record_is_reported_as_unknown_after_a_lost_reply(
    config: Config, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(retention=0)
    async def work() -> None: ...

    recorder = await run_once_with_lost_ends(config, app, monkeypatch, work.enqueue, events.Completed)
    assert [event.end for event in recorder.of(events.RunLost)] == ["unknown"]
    assert not recorder.of(events.Completed)


_OPTIONS: dict[str, dict[str, Any]] = {
    "random id": {},
    "id": {"id": "a"},
    "keep": {"id": "a", "on_conflict": "keep"},
    "replace": {"id": "a", "on_conflict": "replace"},
    "unique": {"unique": Unique()},
}


@pytest.mark.parametrize("kind", _OPTIONS)
@pytest.mark.parametrize("becomes", ["waiting", "running", "ended"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_enqueue_with_a_lost_reply_makes_one_job(
    own: EmbeddedRedis, app: App, queue: str, kind: str, becomes: str, sync: bool
) -> None:
    ran, go_on = list[str](), asyncio.Event()

    async def work() -> None:
        ran.append(current_job().id)
        if becomes == "running":
            await go_on.wait()

    direct = app.task(work)
    config = Config(url=own.url, queues=(queue,))
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy, system(config, app, workers=0) as whole:
        client = App(f"redis://127.0.0.1:{proxy.port}/0", queue=queue)
        task = client.task(work).using(**_OPTIONS[kind])
        with client.sync() as blocking:
            # Both are connected after this, and Redis knows the scripts.
            await client.client.cancel(queue, (await task.enqueue()).id)
            with pytest.raises(JobMissing):
                await asyncio.to_thread(blocking.job("nobody").cancel)
            if becomes != "waiting":
                whole.work()
            received = proxy.received["down"]
            proxy.swallow("down")
            call = asyncio.to_thread(blocking.enqueue, task) if sync else task.enqueue()
            enqueuing = asyncio.ensure_future(call)
            await proxy.until(lambda: proxy.received["down"] > received)
            if becomes != "waiting":
                await whole.recorder.wait(events.Started if becomes == "running" else events.Completed)
            proxy.heal()
            proxy.reset()
            job = await enqueuing
        if becomes == "waiting":
            whole.work()
        go_on.set()
        await app.job(job.id).result(PATIENCE)
        await (await direct.using(id="last").enqueue()).result(PATIENCE)
        await client.close()
    assert ran == [job.id, "last"]


async def test_cancel_with_a_lost_reply_says_that_it_may_have_been_done(own: EmbeddedRedis, queue: str) -> None:
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        client = App(f"redis://127.0.0.1:{proxy.port}/0", queue=queue)

        @client.task
        async def work() -> None: ...

        for name in ("first", "second"):
            await work.using(id=name, delay=3600).enqueue()
        await client.job("first").cancel()
        received = proxy.received["down"]
        proxy.swallow("down")
        cancelling = asyncio.ensure_future(client.job("second").cancel())
        await proxy.until(lambda: proxy.received["down"] > received)
        proxy.heal()
        proxy.reset()
        with pytest.raises(StoreDown, match="sent again and refused") as raised:
            await cancelling
        assert raised.value.unsure
        await client.close()
