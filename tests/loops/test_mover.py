"""A dispatcher finishes an abandoned move between shards, and nothing else waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from evsched import events, process_events
from evsched.config import Config
from evsched.dispatcher.janitor import ABANDONED, Janitor, Mover
from evsched.runtime.loops import Runtime
from evsched.shards import Shards
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.gate_limits import Reserved
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder


@pytest.fixture
def runtime(server: EmbeddedRedis, sender: BatchingSender, recorder: Recorder) -> Runtime:
    return Runtime(Config(url=server.url, heartbeat=0.05, lease=0.2), sender, recorder)


async def depart(sender: BatchingSender, store: Store, ago: float, job: str = "a") -> None:
    """Begin to move a job, and abandon the move."""
    now = await sender.send(redis_server.clock())
    await sender.send(store.enqueue([New(job, b'{"task":"t"}', due=now + 5000)]))
    left = await sender.send(store.at(now - ago).depart(f"{store.queue}:1", "t", [job.encode()]))
    assert left.batch is not None


async def test_a_move_is_finished_when_it_has_been_abandoned(
    runtime: Runtime, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    await depart(sender, store, ABANDONED + 1)
    janitor = asyncio.create_task(Janitor(runtime, lambda: [store.queue]).run())
    done = await recorder.wait(events.MoveFinished)
    janitor.cancel()
    assert (done.queue, done.to, done.moved, done.back) == (store.queue, f"{store.queue}:1", 1, 0)
    assert await sender.send(Store(f"{store.queue}:1").front("schedule", 9)) != []
    assert (await sender.send(store.survey())).moving is None


async def test_recent_move_is_left_to_its_owner_and_checked_in_time(
    runtime: Runtime, sender: BatchingSender, store: Store
) -> None:
    await depart(sender, store, ABANDONED / 2)
    rest = await Janitor(runtime, lambda: [store.queue]).step(store.queue)
    assert 0 < rest <= ABANDONED / 2
    assert (await sender.send(store.depart())).batch is not None


async def test_unfinishable_move_is_retried_and_blocks_no_other(
    runtime: Runtime, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any
) -> None:
    hindered, other = Store(f"{store.queue}-hindered"), Store(f"{store.queue}-other")
    key = f"evsched:{{{hindered.queue}:1}}:arrived"
    raw.set(key, "wrong")
    for part in (hindered, other):
        await depart(sender, part, ABANDONED + 1)
    janitor = asyncio.create_task(Janitor(runtime, lambda: [hindered.queue, other.queue]).run())
    refused = await recorder.wait(process_events.CallRefused)
    assert (refused.who, refused.queue) == ("mover", hindered.queue)
    await recorder.wait(events.MoveFinished, lambda event: event.queue == other.queue)
    raw.delete(key)
    await recorder.wait(events.MoveFinished, lambda event: event.queue == hindered.queue)
    await recorder.wait(process_events.CallAccepted)
    janitor.cancel()


async def test_batch_finished_by_another_mover_is_not_reported_again(
    runtime: Runtime, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    first, second = Mover(runtime), Mover(runtime)
    for job in ("a", "b"):
        await depart(sender, store, ABANDONED + 1, job)
        await asyncio.gather(first.step(store.queue), second.step(store.queue))
    assert [event.moved for event in recorder.of(events.MoveFinished)] == [1, 1]


@pytest.mark.extra
async def test_new_shard_uses_more_of_its_limit_as_older_jobs_end(
    runtime: Runtime, sender: BatchingSender, store: Store
) -> None:
    """As if the program that changed the number had ended before the older part got its share."""
    shards, new = Shards({store.queue: 1}), Store(f"{store.queue}:0")
    await sender.send(store.limit({"concurrency": 4}))
    await sender.send(store.enqueue([New(f"j{number}", b'{"task":"t"}') for number in range(4)]))
    await sender.send(store.dispatch(limit=10, cap=1000))
    await sender.send(new.limit({"concurrency": 2}))
    await sender.send(new.reserve({"concurrency": Reserved(2, 4)}))
    await sender.send(new.heartbeat("w", 600.0, fresh=True))

    async def reserved(value: float) -> None:
        async with asyncio.timeout(PATIENCE):
            while (found := await sender.send(new.limits())).reserved.get("concurrency", Reserved(0, 4)).part != value:
                pass
        assert found.queue == {"concurrency": 2}

    janitor = asyncio.create_task(Janitor(structs.replace(runtime, shards=shards), lambda: [new.queue]).run())
    async with asyncio.timeout(PATIENCE):
        while (await sender.send(store.limits())).queue != {"concurrency": 2}:
            pass
    await sender.send(store.cancel("j0"))
    await reserved(1)
    await sender.send(store.cancel("j1"))
    await reserved(0)
    janitor.cancel()


async def test_shard_whose_number_is_not_written_yet_stays_closed(
    runtime: Runtime, sender: BatchingSender, store: Store
) -> None:
    new = Store(f"{store.queue}:0")
    await sender.send(new.limit({"concurrency": 2}))
    await sender.send(new.reserve({"concurrency": Reserved(2, 4)}))
    mover = Mover(runtime)
    mover.open_further(new.queue)
    running = asyncio.create_task(mover.run())
    await depart(sender, store, ABANDONED + 1)
    mover.finish(store.queue)
    async with asyncio.timeout(PATIENCE):
        while (await sender.send(store.survey())).moving is not None:
            pass
    running.cancel()
    assert (await sender.send(new.limits())).reserved == {"concurrency": Reserved(2, 4)}


async def test_wait_is_sent_again_after_a_script_that_redis_did_not_know(
    own: EmbeddedRedis, client: Any, queue: str
) -> None:
    sender, wait = BatchingSender(own.url), Call(("WAIT", 0, 100), int)
    await sender.send(Store(queue).enqueue([New("a", b'{"task":"t"}')]))
    client.script_flush()
    with client.monitor() as seen:
        await sender.send_and_wait(Store(queue).enqueue([New("b", b'{"task":"t"}')]), wait)
        names = list[str]()
        while names.count("WAIT") < 2:
            names.append(await asyncio.to_thread(lambda: seen.next_command()["command"].split()[0]))
    await sender.close()
    assert [name for name in names if name in ("EVALSHA", "EVAL", "WAIT")] == ["EVALSHA", "WAIT", "EVAL", "WAIT"]
