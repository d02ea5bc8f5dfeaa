"""A worker begins jobs that were handed over to it, each once, and finds those whose messages were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any

import pytest
from msgspec import structs

from evsched import App, Retry, current_job, events, keys
from evsched.config import Config
from evsched.errors import StoreDown
from evsched.store.store import Store
from evsched.store.worker_calls import read_handed
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from evsched.worker import consumer as consumer_module
from evsched.worker import fetcher
from evsched.worker.exchange import Exchange, ExchangeSender, ServedQueue
from evsched.worker.fetcher import Fetcher
from tests.loops.test_idle_wait import started, until
from tests.support.patience import PATIENCE
from tests.support.system import System, system


class Scene:
    """A queue, and what its jobs and its worker do."""

    def __init__(self, url: str, raw: Any, queue: str) -> None:
        self.url = url
        self.raw = raw
        self.queue = queue
        self.gate = asyncio.Event()
        self.begun = list[tuple[str, int]]()
        self.app = app = App(queue=queue, shards=1)
        self.config = Config(url=url, queues=(queue,), concurrency=2, shutdown_grace=3.0)

        @app.task
        async def hold() -> None:
            self.note()
            await self.gate.wait()

        @app.task
        async def quick() -> None:
            self.note()

        @app.task(retry=Retry(attempts=1))
        async def once() -> None:
            self.note()

    def note(self) -> None:
        self.begun.append((current_job().id, current_job().attempt))

    def schedule(self, job: str, task: str = "quick") -> None:
        self.raw.hset(keys.job(self.queue, job), "payload", f'{{"task":"{task}"}}')
        self.raw.zadd(keys.schedule(self.queue), {job: 0})

    async def waits(self, running: System) -> None:
        """Wait until each worker has a seat."""
        await until(lambda: self.seated() == len(running.workers))

    def seated(self) -> int:
        """Return how many workers have a seat."""
        return sum(seat.count(b" ") == 2 for seat in self.raw.hvals(f"{keys.root(self.queue)}seats"))

    async def drops_nothing(self, running: System, job: str) -> None:
        """Wait until a job has ended, and nothing is left of it in a worker's list."""
        await running.recorder.wait(events.Completed, lambda event: job in event.ids)
        await until(lambda: not self.raw.keys(f"{keys.root(self.queue)}processing:*"))


@pytest.fixture
async def scene(own: EmbeddedRedis, client: Any, queue: str) -> AsyncGenerator[Scene]:
    scene = Scene(own.url, client, queue)
    yield scene
    scene.gate.set()


def before_messages(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call `act(fetcher, message)` before a job that was handed over; if it returns False, the message is lost."""
    receive = Fetcher.on_notice

    async def on_notice(self: Fetcher, message: bytes) -> None:
        if not message or await act(self, message) is not False:
            await receive(self, message)

    monkeypatch.setattr(Fetcher, "on_notice", on_notice)


@pytest.mark.parametrize("task", ["quick", "once"])
async def test_job_begins_before_the_worker_sends_anything(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    send, may_send = ExchangeSender.send, asyncio.Event()
    asked = list[Exchange]()

    async def send_later(self: ExchangeSender, exchange: Exchange) -> None:
        asked.append(exchange)
        await may_send.wait()
        await send(self, exchange)

    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        monkeypatch.setattr(ExchangeSender, "send", send_later)
        scene.schedule("job", task)
        await started(running, "job")
        assert scene.begun == [("job", 1)]
        assert not any(exchange.fetched for exchange in asked)
        may_send.set()
        await scene.drops_nothing(running, "job")
        await scene.waits(running)


async def test_each_of_many_jobs_one_by_one_is_handed_over(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    handed = list[str]()

    async def note(_: Fetcher, message: bytes) -> None:
        handed.append(read_handed(message).job.id)

    before_messages(monkeypatch, note)
    async with system(scene.config, scene.app) as running:
        for n in range(20):
            await scene.waits(running)
            scene.schedule(f"job-{n}")
            await started(running, f"job-{n}")
    assert handed == [f"job-{n}" for n in range(20)]


@pytest.mark.parametrize("taken", [True, False], ids=["by another worker", "by nobody"])
async def test_job_is_returned_if_a_handler_blocks_the_event_loop(scene: Scene, *, taken: bool) -> None:
    root, held = keys.root(scene.queue), list[list[bytes]]()

    @scene.app.task
    async def block() -> None:
        scene.note()
        await until(lambda: scene.seated() == 1)  # this worker's: it waits while this job runs
        with closing(SyncSender(scene.url)) as sender:
            scene.schedule("next")
            sender.send(Store(scene.queue).dispatch(limit=10, cap=1000))
            held.append(scene.raw.lrange(f"{root}processing:{current_job().worker}", 0, -1))
            assert scene.raw.blmove(f"{root}ready", f"{root}elsewhere", PATIENCE) == b"next"
        if not taken:
            scene.raw.lmove(f"{root}elsewhere", f"{root}ready")

    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("blocks", "block")
        if not taken:
            await running.recorder.wait(events.Completed, lambda event: "next" in event.ids)
        await scene.drops_nothing(running, "blocks")
    assert held == [[b"blocks", b"next"]]
    assert scene.begun == [("blocks", 1), *([] if taken else [("next", 1)])]


@pytest.mark.parametrize("garbage", [b"hello", b"1\n2\n3", b"\n" * 7, b"\xff" * 999])
async def test_message_of_an_unknown_form_ends_no_worker(scene: Scene, garbage: bytes) -> None:
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        channel = keys.idle(scene.queue, running.workers[0].id)
        assert scene.raw.spublish(channel, garbage) == 1
        scene.schedule("job")
        await scene.drops_nothing(running, "job")


async def test_message_of_a_run_that_was_taken_away_begins_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was stopped while its message waited in the socket, for longer than its lease."""
    since_boot, slept = fetcher.since_boot, list[float]()

    async def sleep(one: Fetcher, message: bytes) -> None:
        if not slept:
            slept.append(600.0)
            worker = running.workers[0].id
            send, store = running.runtime.sender.send, Store(scene.queue)
            (lease,) = (await send(store.survey())).leases
            put = await send(store.requeue(worker, "it died", lease=lease.end))
            assert put.ids == [read_handed(message).job.id]

    before_messages(monkeypatch, sleep)
    monkeypatch.setattr(fetcher, "since_boot", lambda: since_boot() + sum(slept))
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await scene.drops_nothing(running, "job")
        assert slept
    assert scene.begun == [("job", 1)]


async def test_old_message_of_a_job_that_is_still_ours_begins_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    since_boot, slept = fetcher.since_boot, list[float]()

    async def sleep(_: Fetcher, __: bytes) -> None:
        slept.append(5.0)

    before_messages(monkeypatch, sleep)
    monkeypatch.setattr(fetcher, "since_boot", lambda: since_boot() + sum(slept))
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await scene.drops_nothing(running, "job")
    assert scene.begun == [("job", 1)]


async def test_message_that_comes_again_begins_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = list[bytes]()

    async def keep(_: Fetcher, message: bytes) -> None:
        messages.append(message)

    before_messages(monkeypatch, keep)
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await scene.drops_nothing(running, "job")
        await scene.waits(running)
        scene.raw.spublish(keys.idle(scene.queue, running.workers[0].id), messages[0])
        scene.schedule("other")
        await started(running, "other")
    assert scene.begun == [("job", 1), ("other", 1)]


@pytest.mark.parametrize("found", ["by the heartbeat", "by the next question"])
async def test_job_whose_message_is_lost_is_found(scene: Scene, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    lost = list[bytes]()

    async def lose(_: Fetcher, message: bytes) -> bool | None:
        if lost:
            return None
        lost.append(message)
        return False

    before_messages(monkeypatch, lose)
    heartbeat = 0.1 if found == "by the heartbeat" else 600.0
    config = structs.replace(
        scene.config, heartbeat=heartbeat, lease=3600.0, idle_heartbeat=heartbeat, idle_lease=7300.0
    )
    async with system(config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await until(lambda: bool(lost))
        if found == "by the next question":
            scene.raw.spublish(keys.idle(scene.queue, running.workers[0].id), "")
        await scene.drops_nothing(running, "job")
    assert scene.begun == [("job", 1)]


async def test_job_for_which_no_slot_is_free_goes_to_another_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last slot was taken after the worker had taken its seat, as by another queue."""
    config = structs.replace(scene.config, concurrency=1)
    refused = list[str]()

    async def fill(one: Fetcher, message: bytes) -> None:
        if not refused:
            refused.append(one.queue)
            worker = next(worker for worker in running.workers if worker.consumers[scene.queue].fetcher is one)
            refused.append(worker.id)
            assert worker.consumers[scene.queue].demand.share.reserve_one()

    before_messages(monkeypatch, fill)
    async with system(config, scene.app, workers=2) as running:
        await scene.waits(running)
        scene.schedule("job")
        assert await started(running, "job") != refused[1]
        await scene.drops_nothing(running, "job")
        (event,) = running.recorder.of(events.JobsRequeued)
        assert (event.worker, event.ids, event.cause) == (refused[1], ["job"], "busy")
    assert scene.begun == [("job", 1)]


async def test_worker_of_more_queues_than_slots_has_a_seat_for_each_slot(scene: Scene) -> None:
    queues = tuple(f"{scene.queue}-{n}" for n in range(12))
    config = structs.replace(scene.config, queues=queues, concurrency=3)
    async with system(config, scene.app):
        await until(lambda: all(scene.raw.exists(f"{keys.root(queue)}idle") for queue in queues))
        assert sum(scene.raw.hlen(f"{keys.root(queue)}seats") for queue in queues) == 3


async def test_job_handed_over_to_a_stopping_worker_does_not_wait_for_its_other_jobs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()

    async def stop(one: Fetcher, _: bytes) -> None:
        one.fetch_no_more()
        stopping.stop()
        told.set()

    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("long", "hold")
        await started(running, "long")
        (stopping,) = running.workers
        await scene.waits(running)
        before_messages(monkeypatch, stop)
        scene.schedule("job")
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        monkeypatch.undo()
        other = running.work()
        assert await started(running, "job") == other.id
        scene.gate.set()


async def test_cancelled_job_does_not_begin_by_a_message_that_comes_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(one: Fetcher, message: bytes) -> None:
        await running.runtime.sender.send(Store(scene.queue).cancel(read_handed(message).job.id))
        held = running.workers[0].consumers[scene.queue].held
        held.cancel(read_handed(message).job.id)

    before_messages(monkeypatch, cancel)
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await running.recorder.wait(events.JobAborted)
    assert scene.begun == []


async def test_job_that_may_still_be_put_back_does_not_begin(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to the call that puts it back is lost. The worker finds the job in its list, and has a slot again."""
    lost, runs = list[str](), list[str]()

    async def fill(one: Fetcher, message: bytes) -> None:
        runs.append(read_handed(message).job.run)
        consumer = running.workers[0].consumers[scene.queue]
        if not lost:
            consumer.demand.closed = consumer.demand.quiet = True
            monkeypatch.setattr(consumer_module, "hand_back_one", lose)

    async def lose(_: ServedQueue, job_id: str, __: str = "") -> None:
        lost.append(job_id)
        running.workers[0].consumers[scene.queue].demand.closed = False
        monkeypatch.undo()
        raise StoreDown("the reply is lost")

    before_messages(monkeypatch, fill)
    async with system(scene.config, scene.app) as running:
        await scene.waits(running)
        scene.schedule("job")
        await scene.drops_nothing(running, "job")
        assert lost == ["job"]
        last = await running.runtime.sender.send(Store(scene.queue).last_run("job"))
        assert runs
        assert last.run not in runs, "it was put back, and started again"
    assert scene.begun == [("job", 1)]
