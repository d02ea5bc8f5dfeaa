"""Status requests: every worker answers a valid request with its running jobs, and sends nothing unasked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from evsched import App, Retry, StoreDown, StoreRefused, events, keys
from evsched.config import Config
from evsched.store.store import Store
from evsched.top.collector import Top
from evsched.top.snapshot import Look
from evsched.transport.senders import BatchingSender
from evsched.transport.subscription import Subscription
from evsched.worker.status_reporter import Running, WorkerStatus
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries
from tests.support.system import system


@asynccontextmanager
async def looking(url: str, *queues: str) -> AsyncGenerator[Top]:
    top = Top(url, queues)
    try:
        yield top
    finally:
        await top.close()


async def full(top: Top, workers: int) -> Look:
    """Look until `workers` workers answer: a worker subscribes to requests shortly after its start."""
    async with asyncio.timeout(PATIENCE):
        while True:
            look = await top.look()
            if len(look.statuses) >= workers:
                return look


async def test_all_workers_report_their_running_jobs(config: Config, app: App, queue: str) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app, workers=2) as running, looking(config.url, queue) as top:
        await running.recorder.wait(events.WorkerStarted, count=2)
        jobs = await hang.enqueue_many([()] * 3)
        await running.recorder.until(lambda: sum(len(e.ids) for e in running.recorder.of(events.Started)) == 3)
        look = await full(top, 2)
        assert {p.worker for p in look.statuses} == {worker.id for worker in running.workers}
        assert {lease.worker for lease in look.leases[queue]} == {worker.id for worker in running.workers}
        assert [(p.queue, p.slots, p.busy == p.running == len(p.runs)) for p in look.statuses] == [
            (queue, 10, True)
        ] * 2
        runs = [run for p in look.statuses for run in p.runs]
        assert {(run.id, run.task, run.attempt) for run in runs} == {(job.id, "hang", 1) for job in jobs}
        assert all(0 <= run.seconds < PATIENCE for run in runs)
        assert look.stats[queue].places["processing"] == 3


async def test_a_worker_reports_counts_and_lateness(config: Config, app: App, queue: str) -> None:
    @app.task(retry=Retry(attempts=2, interval=0, jitter=0))
    async def work(well: bool) -> None:
        if not well:
            raise ValueError("no luck")

    async with system(config, app) as running, looking(config.url, queue) as top:
        await work.enqueue_many([(True,)] * 3)
        await work.enqueue(False)
        await running.recorder.wait(events.JobBuried)
        await running.recorder.until(lambda: sum(len(e.ids) for e in running.recorder.of(events.Completed)) == 3)
        (status,) = (await full(top, 1)).statuses
        assert (status.started, status.done, status.failed) == (5, 3, 2)
        emitted = [late for event in running.recorder.of(events.Started) for late in event.lateness]
        assert status.lateness == [round(late, 6) for late in emitted]
        assert (status.busy, status.running, status.runs) == (0, 0, [])


async def test_a_worker_of_two_queues_reports_for_each(config: Config, app: App, queue: str) -> None:
    other = f"{queue}.other"
    config = msgspec.structs.replace(config, queues=(queue, other))

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running, looking(config.url, queue, other) as top:
        job = await hang.using(queue=other).enqueue()
        await running.recorder.wait(events.Started)
        look = await full(top, 2)
        found = {p.queue: (p.busy, [run.id for run in p.runs]) for p in look.statuses}
        assert found == {queue: (1, []), other: (1, [job.id])}


async def test_the_longest_runs_are_named_when_there_are_many(config: Config, app: App, queue: str) -> None:
    config = msgspec.structs.replace(config, concurrency=60)

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with system(config, app) as running, looking(config.url, queue) as top:
        first = await hang.enqueue()
        await running.recorder.wait(events.Started)
        await hang.enqueue_many([()] * 54)
        await running.recorder.until(lambda: sum(len(e.ids) for e in running.recorder.of(events.Started)) == 55)
        (status,) = (await full(top, 1)).statuses
        assert (status.busy, status.running, len(status.runs)) == (55, 55, 50)
        assert status.runs[0].id == first.id


@asynccontextmanager
async def subscribed(url: str, pattern: str) -> AsyncGenerator[AsyncIterator[tuple[bytes, bytes]]]:
    """Subscribe to a pattern; yield the messages, each with its channel."""
    subscription = Subscription(url)
    await subscription.open([pattern], [])
    try:
        yield subscription.messages()
    finally:
        await subscription.close()


@pytest.mark.one_server
async def test_only_a_well_formed_request_is_answered(config: Config, app: App, queue: str, raw: Any) -> None:
    status_requests, mine = keys.status_requests(queue), keys.status_replies(queue, "me")
    async with system(config, app) as running, looking(config.url, queue) as top:
        await full(top, 1)  # the worker receives requests
        async with subscribed(config.url, "*") as messages:
            for call in (
                b"",
                b"me",
                b"\xff\xfe",
                b"evsched:canary:me",
                mine.encode() + b"\n",
                mine.encode() + b" or another",
                keys.status_replies(queue, "").encode(),
                keys.status_replies(queue, "m" * 201).encode(),
                keys.status_replies(f"{queue}.other", "me").encode(),
                keys.control(queue, running.workers[0].id).encode(),
            ):
                assert raw.publish(status_requests, call) == 2  # received by the worker and by this test
            received: list[tuple[bytes, bytes]] = []
            async with asyncio.timeout(PATIENCE):
                for _ in range(2):  # an answer to an earlier request would come before the answer to the first of these
                    raw.publish(status_requests, mine)
                    async for channel, message in messages:
                        if channel == status_requests.encode() or channel.startswith(b"__keyspace@"):
                            continue
                        received.append((channel, message))
                        break
        assert [channel for channel, _ in received] == [mine.encode()] * 2
        status = msgspec.json.decode(received[0][1], type=WorkerStatus)
        assert status == WorkerStatus(running.workers[0].id, queue, 10, 0, 0, 0, 0, [], 0, [])


async def test_workers_report_nothing_without_a_request(config: Config, app: App, queue: str, raw: Any) -> None:
    @app.task
    async def noop() -> None: ...

    async with (
        system(config, app) as running,
        looking(config.url, queue) as top,
        subscribed(config.url, keys.root(queue) + "*") as messages,
    ):
        begin, end = ((keys.status_replies(queue, "me").encode(), text) for text in (b"the beginning", b"the end"))
        raw.publish(*begin)
        async with asyncio.timeout(PATIENCE):
            # Nodes of a cluster pass messages on later: the worker's message to dispatchers at its start may come now.
            while (received := await anext(messages)) != begin:
                assert received[0] == keys.gate(queue).encode()
        jobs = await noop.enqueue_many([()] * 20)
        await running.recorder.until(lambda: sum(len(e.ids) for e in running.recorder.of(events.Completed)) == 20)
        raw.publish(*end)
        async with asyncio.timeout(PATIENCE):
            assert await anext(messages) == end
        (status,) = (await full(top, 1)).statuses
        assert status.done == len(jobs)


async def test_a_worker_that_does_not_report_still_has_a_lease(
    config: Config, queue: str, sender: BatchingSender
) -> None:
    """It hangs, or is of an older version: the page must not wait for it, and must show it."""
    await sender.send(Store(queue).heartbeat("silent", 15, fresh=True))
    async with looking(config.url, queue) as top:
        look = await top.look()
        assert (look.statuses, [lease.worker for lease in look.leases[queue]]) == ([], ["silent"])


async def test_new_queues_are_found(config: Config, queue: str, sender: BatchingSender) -> None:
    async with looking(config.url) as top:
        assert queue not in (await top.look()).stats
        await sender.send(Store(queue).heartbeat("w", 15, fresh=True))
        async with asyncio.timeout(PATIENCE):
            while queue not in (await top.look()).stats:
                pass


async def test_a_queue_that_cannot_be_read_hides_no_other(config: Config, queue: str, raw: Any) -> None:
    broken = f"{queue}.broken"
    raw.set(keys.ready(broken), "no list")
    async with looking(config.url, queue, broken) as top:
        look = await top.look()
        assert list(look.stats) == [queue]
        assert "WRONGTYPE" in look.refused[broken]
    async with looking(config.url, broken) as top:
        with pytest.raises(StoreRefused, match="WRONGTYPE"):
            await top.look()
    raw.delete(keys.ready(broken))


async def test_a_connection_that_was_cut_is_reported_and_replaced(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app), looking(config.url, queue) as top:
        await full(top, 1)
        raw.client_kill_filter(_type="pubsub", **on_primaries(raw))
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    look = await top.look()
                except StoreDown:
                    continue
                if look.statuses:
                    break


@pytest.mark.one_server
@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"worker": "w"}',
        b"x" * 200_000,
        msgspec.json.encode(WorkerStatus("w\x1b[31m", "Q", 1, 0, 0, 0, 0, [], 0, [])),
        msgspec.json.encode(WorkerStatus("w", "another", 1, 0, 0, 0, 0, [], 0, [])),
        msgspec.json.encode(WorkerStatus("w", "Q", 1, 0, -1, 0, 0, [], 0, [])),
    ],
    ids=["empty", "no text", "deep", "short", "long", "no name", "another queue", "negative"],
)
async def test_a_malformed_report_is_ignored(config: Config, queue: str, raw: Any, lie: bytes) -> None:
    """The page has the valid report that follows it."""
    true = WorkerStatus("honest", queue, 3, 1, 0, 0, 0, [], 1, [Running("a", "b", 1, 2.0)])
    async with looking(config.url, queue) as top, subscribed(config.url, keys.status_requests(queue)) as calls:
        looking_now = asyncio.ensure_future(top.look())
        async with asyncio.timeout(PATIENCE):
            async for _, channel in calls:
                answers = [lie.replace(b'"Q"', f'"{queue}"'.encode()), msgspec.json.encode(true)]
                for answer in answers:
                    raw.publish(channel, answer)
                break
            assert (await looking_now).statuses == [true]


async def test_a_collection_that_fails_leaves_no_exception_unretrieved() -> None:
    """Python prints a traceback for an exception that is never retrieved, next to the one line of `evsched top`."""
    unread = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    before = asyncio.all_tasks()
    async with looking("redis://127.0.0.1:1/0") as top:
        with contextlib.suppress(StoreDown):
            await top.look()
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
        del left
    gc.collect()
    assert unread == []
