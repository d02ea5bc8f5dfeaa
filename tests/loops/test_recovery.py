"""The parent of worker processes requeues the jobs of a dead one as a janitor does, but at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import events, process_events
from evsched.config import Config
from evsched.dispatcher.janitor import Janitor
from evsched.lease import DEFAULT, Times
from evsched.runtime.loops import Runtime
from evsched.services.children import Recovery
from evsched.services.worker_process import WorkerReady
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.snapshot import snapshot

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(server: EmbeddedRedis) -> Config:
    # It puts back for a lease, and then leaves the rest to the janitor: long enough for any machine.
    return Config(url=server.url, lease=PATIENCE, heartbeat=0.1, idle_lease=60, idle_heartbeat=20, batch=100)


async def hold(sender: BatchingSender, store: Store, count: int, lease: float = 60.0) -> list[str]:
    """Let worker "w" fetch jobs, of which the first has begun."""
    ids = [f"j{n:03}" for n in range(count)]
    await sender.send(store.enqueue([New(one, b'{"task":"t"}') for one in ids]))
    for _ in range(1 + count // 500):
        await sender.send(store.dispatch(limit=500, cap=1000))
    fetched = await sender.send(store.start("w", (), hold=count, lease=lease))
    await sender.send(store.begin("w", [(fetched.jobs[0], "1")]))
    return ids


async def recover(config: Config, recorder: Recorder, *queues: str) -> Counter[str]:
    count = Counter[str]()
    await Recovery(config, Times(config), recorder).begin(WorkerReady("w", list(queues), config.url), -9, count)
    return count


async def test_jobs_of_a_dead_process_return_in_order_and_its_lease_stays(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    ids = await hold(sender, store, 250)
    assert await recover(config, recorder, store.queue) == {store.queue: 250}
    assert await sender.send(store.line(1000)) == ids
    assert [lease.worker for lease in (await sender.send(store.survey())).leases] == ["w"]
    assert {one.reason for one in recorder.of(events.JobsRequeued)} == {
        "worker w died: its process was ended by SIGKILL"
    }


async def test_recovery_and_requeue_treat_jobs_of_a_dead_worker_alike(
    config: Config, sender: BatchingSender, queue: str, recorder: Recorder, raw: Any
) -> None:
    left: list[dict[str, Any]] = []
    for name in ("a", "b"):
        store = Store(f"{queue}-{name}")
        await hold(sender, store, 3)
        if name == "a":
            await recover(config, recorder, store.queue)
        (lease,) = (await sender.send(store.survey())).leases
        await sender.send(store.requeue("w", "worker w died: its process was ended by SIGKILL", lease=lease.end))
        state = snapshot(raw, store.queue)
        for job in ("job:j000", "job:j001", "job:j002"):
            del state[job]["due"], state[job]["created"], state[job]["runs"]
        left.append(state)
    assert left[0] == left[1]


async def test_parent_and_janitor_together_requeue_each_job_once(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    ids = await hold(sender, store, 900, lease=0.05)
    janitor = Janitor(Runtime(config, sender, recorder), lambda: [store.queue])
    await janitor.step(store.queue)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * Times(config).heartbeat):
            await asyncio.Event().wait()  # the janitor judges by time
    slices = replace(config, batch=130)  # so that those of the two overlap
    await asyncio.gather(recover(slices, recorder, store.queue), janitor.step(store.queue))
    assert sorted(one for event in recorder.of(events.JobsRequeued) for one in event.ids) == ids
    assert sorted(await sender.send(store.line(1000))) == ids


async def test_recovery_tries_for_as_long_as_the_lease_in_redis(own: EmbeddedRedis, recorder: Recorder) -> None:
    sender, config = BatchingSender(own.url), Config(url=own.url)
    await sender.send(redis_server.set_lease(10 * DEFAULT))
    times = Times(config)
    await Recovery(config, times, recorder).begin(WorkerReady("w", ["q"], own.url), -9, Counter())
    assert times.lease == 10 * DEFAULT
    await sender.close()


async def test_recovered_job_with_a_stop_request_ends_as_cancelled(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    await hold(sender, store, 1)
    await sender.send(store.cancel("j000"))
    assert await recover(config, recorder, store.queue) == {store.queue: 0}
    assert [one.id for one in recorder.of(events.JobAborted)] == ["j000"]


async def test_a_queue_that_redis_refuses_does_not_keep_the_others(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any
) -> None:
    await hold(sender, store, 2)
    broken = f"{store.queue}-broken"
    raw.set(f"evsched:{{{broken}}}:processing:w", "no list")
    recovering = asyncio.ensure_future(recover(config, recorder, broken, store.queue))
    assert (await recorder.wait(events.JobsRequeued)).queue == store.queue
    raw.delete(f"evsched:{{{broken}}}:processing:w")
    assert await recovering == {store.queue: 2}


async def test_recovery_retries_while_redis_is_down(
    own: EmbeddedRedis, config: Config, queue: str, recorder: Recorder
) -> None:
    config, store, sender = replace(config, url=own.url), Store(queue), BatchingSender(own.url)
    await hold(sender, store, 2)
    await sender.close()
    own.stop()
    recovering = asyncio.ensure_future(recover(config, recorder, queue))
    await recorder.wait(process_events.RedisDown)
    own.start()
    assert await recovering == {queue: 2}
