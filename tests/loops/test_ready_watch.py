"""A parent without worker processes is woken by a job that no worker fetches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import process_events
from evsched.config import Config
from evsched.lease import DEFAULT, Times
from evsched.services.scale_to_zero import ReadyWatch
from evsched.services.worker_process import WorkerReady
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.store.worker_calls import Need
from evsched.transport.call import Call, text
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder

pytestmark = pytest.mark.anyio


async def put(sender: BatchingSender, store: Store, job: str) -> None:
    await sender.send(store.enqueue([New(job, b'{"task":"t"}')]))
    await sender.send(store.dispatch(limit=10, cap=1000))


def ready_watch(config: Config, recorder: Recorder, *queues: str, announced: Announced | None = None) -> ReadyWatch:
    last = WorkerReady("w", [*queues], config.url)
    return ReadyWatch(config, Times(config), last, recorder, lambda _: announced or Announced())


def watch(
    config: Config, recorder: Recorder, *queues: str, announced: Announced | None = None
) -> asyncio.Task[tuple[str, Need]]:
    async def wait() -> tuple[str, Need]:
        async with ready_watch(config, recorder, *queues, announced=announced) as one:
            found = await one.wait(asyncio.Event())
            assert found is not None
            return found

    return asyncio.ensure_future(wait())


async def blocked(sender: BatchingSender, count: int) -> None:
    """Wait until `count` clients block in Redis, which sends no event about it."""
    info = Call(("INFO", "clients"), text)
    async with asyncio.timeout(PATIENCE):
        while f"blocked_clients:{count}\r" not in await sender.send(info):
            pass


async def never(task: asyncio.Task[tuple[str, str]], seconds: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(task)


@pytest.mark.one_server
async def test_a_job_of_any_of_its_queues_wakes_a_parent_and_stays_where_it_is(
    config: Config, sender: BatchingSender, queue: str, recorder: Recorder, raw: Any
) -> None:
    second = Store(f"{queue}-2")
    watching = watch(config, recorder, queue, second.queue)
    await blocked(sender, 2)
    await put(sender, second, "a")
    assert await asyncio.wait_for(watching, PATIENCE) == (second.queue, "ready")
    assert await sender.send(second.line(10)) == ["a"]


@pytest.mark.one_server
async def test_a_job_that_a_worker_fetches_wakes_no_parent(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any
) -> None:
    watching, worker = watch(config, recorder, store.queue), BatchingSender(config.url)
    await blocked(sender, 1)
    fetching = asyncio.ensure_future(worker.send(store.fetch("w", 10)))
    await blocked(sender, 2)
    await put(sender, store, "a")
    assert await fetching == "a"
    await never(watching)
    await put(sender, store, "b")
    await asyncio.wait_for(watching, PATIENCE)
    await worker.close()
    await sender.send(store.requeue("w", "test"))


@pytest.mark.one_server
async def test_one_job_starts_a_process_of_one_parent(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsched.services.scale_to_zero._CLAIM", PATIENCE)  # until the process that it starts fetches
    watching = {watch(config, recorder, store.queue) for _ in range(5)}
    await blocked(sender, 5)
    await put(sender, store, "a")
    done, others = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    await sender.send(store.start("w", (), hold=1, lease=60))  # the process that it starts fetches the job
    done, others = await asyncio.wait(others, timeout=0.3)
    assert len(done) == 0
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await sender.send(store.requeue("w", "test"))


@pytest.mark.one_server
async def test_abandoned_claim_delays_a_parent_only_until_it_expires(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsched.services.scale_to_zero._REFUSED", 0.01)
    raw.set(f"evsched:{{{store.queue}}}:starting", "1")  # Redis's clock was set back, so it does not expire
    await put(sender, store, "a")
    assert await asyncio.wait_for(watch(config, recorder, store.queue), PATIENCE) == (store.queue, "ready")


@pytest.mark.one_server
async def test_a_parent_whose_connections_are_cut_is_woken_all_the_same(
    own: EmbeddedRedis, client: Any, config: Config, queue: str, recorder: Recorder
) -> None:
    sender, store = BatchingSender(own.url), Store(queue)
    watching = watch(replace(config, url=own.url), recorder, queue)
    await blocked(sender, 1)
    client.client_kill_filter(_type="normal", skipme=True)
    await recorder.wait(process_events.RedisFailed)
    await sender.close()  # it was cut too
    await put(sender, store, "a")
    await asyncio.wait_for(watching, PATIENCE)
    await sender.close()


@pytest.mark.one_server
async def test_a_parent_is_woken_although_the_memory_of_redis_is_full(
    own: EmbeddedRedis, client: Any, config: Config, queue: str, recorder: Recorder
) -> None:
    sender = BatchingSender(own.url)
    await put(sender, Store(queue), "a")
    client.config_set("maxmemory", 1)
    await asyncio.wait_for(watch(replace(config, url=own.url), recorder, queue), PATIENCE)
    client.config_set("maxmemory", 0)
    await sender.close()


APP = Announced("app", "content", "digest")


async def announce(sender: BatchingSender, store: Store) -> None:
    await sender.send_all([store.register("app", "content"), store.set_program("digest", ["pay"])])


@pytest.mark.one_server
async def test_one_of_several_parents_is_woken_after_redis_loses_its_data(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evsched.services.scale_to_zero._CLAIM", 60.0)
    config = replace(config, safety_cap=0.1)
    await announce(sender, store)
    watching = {watch(config, recorder, store.queue, announced=APP) for _ in range(3)}
    await blocked(sender, 3)
    raw.flushall()
    done, others = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [(store.queue, "undeclared")]
    await announce(sender, store)  # by the process that it starts
    done, others = await asyncio.wait(others, timeout=0.3)
    assert len(done) == 0
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.one_server
async def test_sought_task_wakes_a_parent_that_has_it_when_its_job_is_offered(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder, raw: Any
) -> None:
    await announce(sender, store)
    having = watch(config, recorder, store.queue, announced=APP)
    other = watch(config, recorder, store.queue, announced=Announced())
    await blocked(sender, 2)
    assert await sender.send(store.seek("pay"))
    await never(having)  # nothing has come through ready
    worker = BatchingSender(config.url)
    fetching = asyncio.ensure_future(worker.send(store.fetch("w", 10)))  # by a worker that does not have it
    await blocked(sender, 3)
    await put(sender, store, "a")
    assert await fetching == "a"
    assert await asyncio.wait_for(having, PATIENCE) == (store.queue, "sought")
    await never(other)
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await worker.close()
    await sender.send(store.requeue("w", "test"))


@pytest.mark.one_server
async def test_a_parent_is_registered_while_it_waits(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    watching = watch(config, recorder, store.queue)
    await blocked(sender, 1)
    assert len(await sender.send(store.parents())) == 1
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert await sender.send(store.parents()) == []


@pytest.mark.one_server
async def test_a_parent_is_registered_for_as_long_as_the_lease_in_redis_says(
    own: EmbeddedRedis, queue: str, recorder: Recorder
) -> None:
    sender, store, config = BatchingSender(own.url), Store(queue), Config(url=own.url)
    await sender.send(redis_server.set_lease(10 * DEFAULT))
    watching = watch(config, recorder, queue)
    await blocked(sender, 1)
    ((_, end),) = await sender.send(store.parents())
    assert end - await sender.send(redis_server.clock(store.queue)) > 5 * Times(config).idle_lease
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await sender.close()


@pytest.mark.one_server
async def test_the_claim_of_a_start_lasts_until_the_process_has_started(
    config: Config, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    await put(sender, store, "a")
    started = asyncio.Event()
    async with ready_watch(config, recorder, store.queue) as one:
        await one.wait(asyncio.Event())
        keeping = asyncio.ensure_future(one.hand_over(store.queue, started.wait, started.wait))
        second = watch(config, recorder, store.queue)
        await never(second, 3.0)  # the claim alone lasts 2 s
        started.set()  # it was ready, or died
        await keeping
    assert await asyncio.wait_for(second, PATIENCE) == (store.queue, "ready")
