"""Replies are lost after Redis has done its work: no job is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, GiveUp, JobMissing, RetryLater, Snooze, StoreDown, Unique, current_job, events
from evsched.client.operations import MANY
from evsched.config import Config
from evsched.events import Event
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import DirectSender
from tests.support.api import calling
from tests.support.cli import Cli
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


@pytest.mark.parametrize("passes", [1, 30_000, 48_010], ids=["first", "second", "third"])
@pytest.mark.parametrize("kind", ["random id", "replace"])
async def test_enqueue_many_with_a_lost_reply_of_one_round_trip_makes_each_job_once(
    own: EmbeddedRedis, client: Any, queue: str, kind: str, passes: int
) -> None:
    """The replies of 1,000 jobs have 24,006 bytes each; the third is of one job."""
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        app = App(f"redis://127.0.0.1:{proxy.port}/0", queue=queue)

        @app.task(name="t")
        async def work(n: int) -> None: ...

        direct, replacing = work.using(delay=3600), work.using(delay=3600, on_conflict="replace")
        task = replacing if kind == "replace" else direct
        await task.enqueue(0)  # it is connected after this, and Redis knows the script
        proxy.cut_after(passes, "down")
        jobs = await task.enqueue_many([(n,) for n in range(2001)])
        assert proxy.accepted == 2, "the link was cut"
        await app.close()
    assert len({job.id for job in jobs}) == 2001
    assert client.zcard(f"evsched:{{{queue}}}:schedule") == 2002


async def test_enqueue_many_whose_jobs_run_before_it_is_sent_again_makes_each_job_once(
    own: EmbeddedRedis, app: App, queue: str
) -> None:
    ran = Counter[int]()

    async def work(n: int) -> None:
        ran[n] += 1

    app.task(work)
    config = Config(url=own.url, queues=(queue,))
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy, system(config, app) as whole:
        client = App(f"redis://127.0.0.1:{proxy.port}/0", queue=queue)
        task = client.task(work)
        await (await task.enqueue(-1)).result(PATIENCE)
        received = proxy.received["down"]
        proxy.swallow("down")
        enqueuing = asyncio.ensure_future(task.enqueue_many([(n,) for n in range(1100)]))
        await proxy.until(lambda: proxy.received["down"] > received)
        await whole.recorder.until(lambda: len(ran) == MANY + 1)
        proxy.heal()
        proxy.reset()
        await enqueuing
        await whole.recorder.until(lambda: len(ran) == 1101)
        await client.close()
    assert ran == Counter(range(-1, 1100))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--id", "a"),
        ("--id", "a", "--on-conflict", "keep"),
        ("--id", "a", "--on-conflict", "replace"),
        ("--unique",),
    ],
)
async def test_enqueue_command_with_a_lost_reply_makes_one_job(
    own: EmbeddedRedis, app: App, queue: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    ran = list[str]()

    @app.task(name="t")
    async def work() -> None:
        ran.append(current_job().id)

    async with (
        Proxy(("127.0.0.1", own.port or 0)) as proxy,
        system(Config(url=own.url, queues=(queue,)), app, workers=0) as whole,
    ):
        cli = Cli(f"redis://127.0.0.1:{proxy.port}/0", tmp_path)
        warmed = await asyncio.to_thread(cli.run, "enqueue", "t", "--queue", queue, "--id", "first")
        assert warmed.returncode == 0
        accepted = proxy.accepted
        # With an id, or one made of the arguments, it asks first whether the queue has shards: *0.
        proxy.cut_after(len(b"*0\r\n") + 1 if options else 1, "down")
        done = await asyncio.to_thread(cli.run, "enqueue", "t", "--queue", queue, *options)
        assert (done.returncode, proxy.accepted > 2 * accepted) == (0, True)
        whole.work()
        await whole.recorder.wait(events.Completed, count=2)
        await (await work.using(id="last").enqueue()).result(PATIENCE)
    assert ran == ["first", done.stdout.strip(), "last"]


@pytest.mark.parametrize(
    ("options", "status"),
    [({}, 201), ({"id": "a"}, 201), ({"id": "a", "on_conflict": "replace"}, 200), ({"unique": {}}, 201)],
    ids=["random id", "id", "replace", "unique"],
)
@pytest.mark.parametrize("many", [False, True], ids=["job", "batch"])
async def test_post_without_a_key_and_with_a_lost_reply_makes_one_job(
    own: EmbeddedRedis, app: App, queue: str, options: dict[str, Any], status: int, many: bool
) -> None:
    ran = list[str]()

    @app.task(name="t")
    async def work() -> None:
        ran.append(current_job().id)

    def request(options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        if not many:
            return "POST", f"/v1/queues/{queue}/jobs", {"task": "t", **options}
        one = {"task": "t"} | ({"id": options["id"]} if "id" in options else {})
        common = {name: value for name, value in options.items() if name != "id"}
        return "POST", f"/v1/queues/{queue}/batches", {"jobs": [one], **common}

    async with (
        Proxy(("127.0.0.1", own.port or 0)) as proxy,
        calling(f"redis://127.0.0.1:{proxy.port}/0") as api,
        system(Config(url=own.url, queues=(queue,)), app) as whole,
    ):
        # It is connected after this, and Redis knows the script.
        assert (await api.ask(*request({**options, "id": "first"} if "id" in options else {}))).status_code == status
        await whole.recorder.wait(events.Completed)
        received = proxy.received["down"]
        proxy.swallow("down")
        asking = asyncio.ensure_future(api.ask(*request(options)))
        await proxy.until(lambda: proxy.received["down"] > received)
        await whole.recorder.wait(events.Completed, count=2)
        proxy.heal()
        proxy.reset()
        answer = await asking
        assert answer.status_code == status, answer.text
        await (await work.using(id="last").enqueue()).result(PATIENCE)
    (made,) = answer.json()["jobs"] if many else [answer.json()]
    assert ran[1:] == [made["id"], "last"]


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
