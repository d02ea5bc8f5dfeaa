"""Redis Cluster: queues on several primaries, primaries that die, and slots that move while jobs are due."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.crc import key_slot

from evsched import App, Retry, current_job, events, keys, process_events
from evsched.client.client import SyncClient
from evsched.client.task_handle import AsyncTask
from evsched.config import Config
from evsched.dispatcher import queue_finder
from evsched.errors import CannotStart, StoreDown
from evsched.execution.deferral import RedisRunStore
from evsched.services.service import check_server
from evsched.store import server as about
from evsched.transport.address import parse
from evsched.transport.embedded import EmbeddedRedis, find_server
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import Topology
from tests.service.test_rights import USERS, words_of
from tests.support.certificates import make_certificates
from tests.support.cluster import Cluster, slot_of, tls_cluster
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system

pytestmark = pytest.mark.anyio

JOBS = 200
LAST = 4.0
"""Seconds after which the last of them is due."""


@pytest.fixture(scope="module")
def cluster(server: EmbeddedRedis) -> Generator[Cluster]:
    with Cluster(server.server) as found:
        yield found


class Scene(NamedTuple):
    recorder: Recorder
    app: App
    handle: AsyncTask[[str, int], None]
    runs: Counter[tuple[str, int]]
    """How often each job of a queue was run."""
    changed: asyncio.Event

    async def all_ran(self, queue: str, jobs: int = JOBS) -> None:
        await self.ran(queue, range(jobs))

    async def ran(self, queue: str, numbers: Iterable[int]) -> None:
        async with asyncio.timeout(2 * PATIENCE):
            while not all(self.runs[queue, number] for number in numbers):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving(
    url: str, queues: tuple[str, ...], *, named: bool = True, dispatch: bool = True
) -> AsyncGenerator[Scene]:
    app, runs, changed = App(url, queue=queues[0]), Counter[tuple[str, int]](), asyncio.Event()

    @app.task
    async def handle(queue: str, number: int) -> None:
        runs[queue, number] += 1
        changed.set()

    async with system(Config(url=url, queues=queues if named else ()), app, dispatch=dispatch) as running:
        yield Scene(running.recorder, app, handle, runs, changed)


def queues_of_all(cluster: Cluster) -> tuple[str, ...]:
    """Return a new queue for each primary."""
    found = dict[int, str]()
    for number in count():
        name = f"q{next(_numbers)}-{number}"
        found.setdefault(cluster.primary(name).pid, name)
        if len(found) == len([node for node in cluster.nodes if cluster.is_primary(node)]):
            return tuple(found.values())
    raise AssertionError


_numbers = count()


def beside_the_set() -> str:
    """Return a new queue whose slot has the set of all queues."""
    names = (f"beside{next(_numbers)}" for _ in count())
    return next(name for name in names if slot_of(name) == key_slot(keys.QUEUES.encode()))


async def enqueue(scene: Scene, queue: str) -> None:
    for number in range(JOBS):
        await scene.handle.using(queue=queue, delay=LAST * number / JOBS).enqueue(queue, number)


async def test_the_queues_of_all_primaries_are_dispatched_and_worked(cluster: Cluster) -> None:
    queues = queues_of_all(cluster)
    assert len({cluster.primary(queue).pid for queue in queues}) == 3
    async with serving(cluster.url, queues) as scene:
        for queue in queues:
            await scene.handle.using(queue=queue).enqueue(queue, 0)
        with closing(SyncClient(cluster.url)) as client:
            for queue in queues:
                await scene.all_ran(queue, 1)
                job = await scene.handle.using(queue=queue, delay=1000).enqueue(queue, 1)
                assert client.cancel(queue, job.id) == "schedule"
    assert not scene.recorder.of(process_events.RedisFailed)


async def test_hung_node_does_not_take_slots_from_other_queues(cluster: Cluster) -> None:
    healthy, lost, *_ = queues_of_all(cluster)
    app, held, go_on = App(cluster.url, queue=lost), Counter[str](), {name: asyncio.Event() for name in (healthy, lost)}
    changed = asyncio.Event()

    @app.task
    async def hold(queue: str) -> int:
        held[queue] += 1
        changed.set()
        await go_on[queue].wait()
        return current_job().attempt

    async def until(queue: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while held[queue] < count:
                changed.clear()
                await changed.wait()

    config = Config(url=cluster.url, queues=(healthy, lost), concurrency=2, reply_timeout=PATIENCE)
    async with system(config, app) as running:
        jobs = [await hold.using(reply=True).enqueue(lost) for _ in range(4)]
        await until(lost, 2)
        node = cluster.primary(lost)
        os.kill(node.pid, signal.SIGSTOP)
        try:
            go_on[lost].set()  # the worker asks the node for two more, with both slots
            jobs += [await hold.using(queue=healthy, reply=True).enqueue(healthy) for _ in range(2)]
            await until(healthy, 2)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        # The reply comes now, and there are no slots for its jobs.
        await asyncio.to_thread(cluster.until, lambda: at_rest(cluster, lost), "jobs without a slot are kept")
        assert held[lost] == 2
        go_on[healthy].set()
        assert [await job.result(PATIENCE) for job in jobs] == [1] * 6
    assert not running.recorder.of(process_events.RedisFailed)
    await asyncio.to_thread(cluster.until_ready)


@pytest.mark.parametrize(("call", "slots"), [("read_window", 1), ("mark", 2)])
async def test_run_waiting_for_a_hung_node_does_not_delay_other_queues(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str, slots: int
) -> None:
    healthy, lost, *_ = queues_of_all(cluster)
    node, perform = cluster.primary(lost), getattr(RedisRunStore, call)
    hung = asyncio.Event()

    async def hang_first(store: RedisRunStore, queue: str, about: Any) -> Any:
        if queue == lost and not hung.is_set():
            os.kill(node.pid, signal.SIGSTOP)
            hung.set()
        return await perform(store, queue, about)

    monkeypatch.setattr(RedisRunStore, call, hang_first)
    app = App(cluster.url, queue=healthy)

    @app.task(retry=Retry(attempts=1))
    async def attempt() -> int:
        return current_job().attempt

    config = Config(url=cluster.url, queues=(healthy, lost), concurrency=slots, reply_timeout=PATIENCE)
    async with system(config, app):
        for queue in (healthy, lost):
            await app.client.set_window(queue, "always", "00:00-24:00 UTC")
        try:
            waits = await attempt.using(queue=lost, window="always").enqueue()
            async with asyncio.timeout(PATIENCE):
                await hung.wait()
            assert await (await attempt.enqueue()).result(PATIENCE) == 1
        finally:
            os.kill(node.pid, signal.SIGCONT)
        assert await waits.result(PATIENCE) == 1
    await asyncio.to_thread(cluster.until_ready)


def at_rest(cluster: Cluster, queue: str) -> bool:
    """Return whether two jobs of a queue are ready, and workers hold none."""
    node = cluster.client(cluster.primary(queue))
    held = sum(map(node.llen, node.keys(f"{keys.root(queue)}processing:*")))
    return (node.llen(keys.ready(queue)), held) == (2, 0)


async def test_system_runs_over_tls_to_all_nodes(tmp_path: Path) -> None:
    with tls_cluster(tmp_path) as cluster:
        await all_are_served(cluster, cluster.tls_url)


class SlowContexts:
    """Makes each TLS context take 50 ms of CPU, as on a busy machine, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._make = ssl.create_default_context
        monkeypatch.setattr(ssl, "create_default_context", self)

    def __call__(self) -> ssl.SSLContext:
        self.count += 1
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        return self._make()


@pytest.mark.extra
async def test_death_of_a_primary_over_tls_does_not_stop_other_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_cluster(tmp_path, replicas=3) as cluster:
        contexts, (queue, other, *_) = SlowContexts(monkeypatch), queues_of_all(cluster)
        many = (queue, other, *(f"many-{number}" for number in range(200)))
        async with serving(cluster.tls_url, many) as scene:
            victim = cluster.primary(queue)
            victim.kill()
            for number in range(20):
                await scene.handle.using(queue=other).enqueue(other, number)
            await scene.all_ran(other, 20)
            await asyncio.to_thread(cluster.wait_for_failover, victim, queue)
            with scene.app.sync() as client:
                client.enqueue(scene.handle.using(queue=queue), queue, 0)
            await scene.all_ran(queue, 1)
        assert contexts.count == 1


@pytest.mark.extra
async def test_a_certificate_that_has_changed_is_read_again(tmp_path: Path) -> None:
    with tls_cluster(tmp_path) as cluster:
        sender = BatchingSender(cluster.tls_url)
        assert await sender.nodes()
        make_certificates(tmp_path, "IP:127.0.0.1")
        with pytest.raises(StoreDown, match="certificate verify failed"):
            await Topology(parse(cluster.tls_url)).owners()
        await sender.close()


async def test_system_runs_in_a_numbered_database_of_a_valkey_cluster() -> None:
    """Valkey 9 has them: the same queue in another database is another queue."""
    with Cluster(find_server("valkey"), cluster_databases="16") as cluster:
        await all_are_served(cluster, f"{cluster.url}/3")
        for node in cluster.nodes:
            assert [name for name in cluster.client(node).info("keyspace") if name != "db3"] == []


async def all_are_served(cluster: Cluster, url: str) -> None:
    """Run a job in a queue of each primary, and cancel one."""
    queues = queues_of_all(cluster)
    async with serving(url, queues) as scene:
        for queue in queues:
            await scene.handle.using(queue=queue, delay=0.2).enqueue(queue, 0)
        with closing(SyncClient(url)) as client:
            for queue in queues:
                await scene.all_ran(queue, 1)
                job = await scene.handle.using(queue=queue, delay=1000).enqueue(queue, 1)
                assert client.cancel(queue, job.id) == "schedule"
        assert not scene.recorder.of(process_events.RedisFailed)


async def test_new_queue_is_found_on_its_node_by_a_running_dispatcher(cluster: Cluster) -> None:
    queues = queues_of_all(cluster)
    async with serving(cluster.url, queues, named=False) as scene:
        await scene.recorder.wait(process_events.NotificationsProven, count=3)
        for queue in queues:
            raw = cluster.client(cluster.primary(queue))  # a foreign client, with one ZADD
            raw.zadd(keys.schedule(queue), {f'{{"task":"handle","args":["{queue}",0]}}': 0})
            await scene.recorder.wait(events.QueueFound, lambda event, queue=queue: event.queue == queue)
            await scene.recorder.wait(events.Dispatched, lambda event, queue=queue: event.queue == queue)
    found = Counter(event.queue for event in scene.recorder.of(events.QueueFound))
    assert all(found[queue] == 1 for queue in queues), "the dispatcher of another node serves it too"


async def test_queues_of_all_primaries_are_forgotten(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_finder, "_FORGET_AFTER", 0.0)
    queues, sender = queues_of_all(cluster), BatchingSender(cluster.url)
    with cluster.foreign_client() as raw:
        raw.sadd("evsched:{}:queues", *queues)
        for queue in queues:
            raw.hset(f"evsched:{{{queue}}}:tasks", "t", "{}")
        async with system(Config(url=cluster.url, safety_cap=0.2), App(), workers=0), asyncio.timeout(PATIENCE):
            while {*await sender.send(about.queue_names())} & {*queues}:
                pass
        assert not any(raw.exists(f"evsched:{{{queue}}}:tasks") for queue in queues)
    await sender.close()


def atomically(cluster: Cluster, queue: str, to: EmbeddedRedis) -> None:
    client, slot = cluster.client(cluster.primary(queue)), slot_of(queue)
    client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id_of(to))
    cluster.until(lambda: cluster.primary(queue) is to, "the slot does not move")


@pytest.mark.extra
async def test_slot_move_key_by_key_runs_each_job_once(cluster: Cluster) -> None:
    await _move_to_and_fro(cluster, Cluster.move)


async def test_a_foreign_client_may_follow_ask_with_its_hset_and_zadd(cluster: Cluster) -> None:
    queue, other, *_ = queues_of_all(cluster)
    source, to = cluster.primary(queue), cluster.primary(other)
    async with serving(cluster.url, (queue,)) as scene:
        await scene.handle.using(queue=queue, id="old", delay=0.5).enqueue(queue, 0)
        cluster.begin_to_move(queue, to)
        with cluster.foreign_client() as foreign:
            for number in (1, 2):  # before, and after the schedule has moved
                payload = f'{{"task":"handle","args":["{queue}",{number}]}}'
                foreign.hset(keys.job(queue, f"new{number}"), "payload", payload)
                foreign.zadd(keys.schedule(queue), {f"new{number}": 0})
                cluster.move_keys(source, to, [keys.schedule(queue)])
        assert not scene.runs
        await asyncio.to_thread(cluster.move, queue, to)
        await scene.all_ran(queue, 3)
    assert max(scene.runs.values()) == 1


@pytest.mark.extra
async def test_atomic_slot_move_runs_each_job_once() -> None:
    with Cluster(find_server("valkey")) as cluster:
        await _move_to_and_fro(cluster, atomically)


async def _move_to_and_fro(cluster: Cluster, move: Callable[[Cluster, str, EmbeddedRedis], None]) -> None:
    queue, other, *_ = queues_of_all(cluster)
    async with serving(cluster.url, (queue, other)) as scene:
        await asyncio.gather(enqueue(scene, queue), enqueue(scene, other))
        source, to = cluster.primary(queue), cluster.primary(other)
        await asyncio.to_thread(move, cluster, queue, to)
        assert scene.runs.total() < 2 * JOBS, "nothing was due any more while the slot moved"
        await asyncio.to_thread(move, cluster, queue, source)
        await scene.all_ran(queue)
        await scene.all_ran(other)
        await scene.handle.using(queue=queue).enqueue(queue, JOBS)
        await scene.all_ran(queue, JOBS + 1)
    assert max(scene.runs.values()) == 1


def who_is_down(scene: Scene) -> set[str]:
    """Return the loops that have reported Redis down, and not back."""
    down = set[str]()
    for event in scene.recorder.events:
        if isinstance(event, process_events.RedisDown):
            down.add(event.who)
        elif isinstance(event, process_events.RedisUp | process_events.NodeReleased):
            down.discard(event.who)
    return down


async def test_replica_of_a_dead_primary_takes_over_without_delaying_others(
    server: EmbeddedRedis,
) -> None:
    with Cluster(server.server, replicas=3) as cluster:
        queue, other, *_ = queues_of_all(cluster)
        async with serving(cluster.url, (queue, other)) as scene:
            await asyncio.gather(enqueue(scene, queue), enqueue(scene, other))
            victim = cluster.primary(queue)
            assert cluster.client(victim).wait(1, 5000) == 1
            victim.kill()
            await scene.all_ran(queue)
            await scene.all_ran(other)
            with scene.app.sync() as client:
                client.enqueue(scene.handle.using(queue=queue), queue, JOBS)
            await scene.all_ran(queue, JOBS + 1)
            # Also of the loops that ended with the old primary: the metric redis_up is 0 while one of them is down.
            await scene.recorder.until(lambda: not who_is_down(scene))
        back = {event.who for event in scene.recorder.of(process_events.RedisUp)}
        assert not [who for who in back if who.endswith(f" at 127.0.0.1:{victim.port}")], "it never came back"
        assert cluster.primary(queue) is not victim


@asynccontextmanager
async def started(url: str, queues: tuple[str, ...], dispatched: tuple[str, ...]) -> AsyncGenerator[Scene]:
    """Start a worker of `queues` and a dispatcher; () = a dispatcher of all queues, which may have to find them."""
    dispatching = system(Config(url=url, queues=dispatched), App(queue="x"), workers=0)
    async with dispatching, serving(url, queues, dispatch=False) as scene:
        yield scene


async def runs_of_all(scene: Scene, queues: tuple[str, ...], number: int) -> None:
    for queue in queues:
        await scene.handle.using(queue=queue, delay=0.01).enqueue(queue, number)
    for queue in queues:
        await scene.ran(queue, [number])


@pytest.mark.extra
@pytest.mark.parametrize("all_queues", [False, True])
async def test_processes_started_during_a_slot_move_serve_the_moving_queue_last(
    cluster: Cluster, *, all_queues: bool
) -> None:
    first, *others = queues_of_all(cluster)
    beside = beside_the_set()  # its slot has the set of all queues, too
    source = cluster.primary(beside)
    to = next(cluster.primary(one) for one in (first, *others) if cluster.primary(one) is not source)
    with closing(cluster.client(source)) as raw:
        raw.sadd(keys.QUEUES, "another")
        # What a worker that died has left is found by the scan.
        raw.hset(keys.job(beside, "old"), "payload", f'{{"task":"handle","args":["{beside}",7]}}')
        raw.lpush(keys.processing(beside, "dead"), "old")
    cluster.begin_to_move(beside, to)
    cluster.move_keys(source, to, [keys.QUEUES])
    queues = beside, first, *others
    async with started(cluster.url, queues, () if all_queues else queues) as scene:
        await runs_of_all(scene, (first, *others), 0)
        await asyncio.to_thread(cluster.move, beside, to)
        await runs_of_all(scene, queues, 1)
        await runs_of_all(scene, (first, *others), 2)
    assert max(scene.runs.values()) == 1
    await asyncio.to_thread(cluster.move, beside, source)


@pytest.mark.extra
@pytest.mark.parametrize("all_queues", [False, True])
async def test_processes_started_without_a_primary_serve_its_queues_later(
    server: EmbeddedRedis, *, all_queues: bool
) -> None:
    with Cluster(server.server) as cluster:
        beside = beside_the_set()
        victim = cluster.primary(beside)
        others = tuple(queue for queue in queues_of_all(cluster) if cluster.primary(queue) is not victim)
        assert len(others) == 2
        queues = beside, *others
        victim.kill()
        async with started(cluster.url, queues, () if all_queues else queues) as scene:
            await runs_of_all(scene, others, 0)
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(cluster.until_ready)
            await runs_of_all(scene, queues, 1)
        assert max(scene.runs.values()) == 1


@pytest.mark.extra
async def test_worker_keeps_its_other_leases_while_a_primary_is_dead(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        dead, other, _ = queues_of_all(cluster)
        app, gate = App(cluster.url, queue=other), asyncio.Event()

        @app.task
        async def hold() -> None:
            await gate.wait()

        config = Config(url=cluster.url, queues=(dead, other), lease=6, heartbeat=0.5)
        async with system(config, app) as running:
            recorder, worker = running.recorder, running.workers[0].id
            await hold.enqueue()
            await recorder.wait(events.Started)
            raw, leases = cluster.client(cluster.primary(other)), f"{keys.root(other)}leases"
            cluster.primary(dead).kill()
            ends = raw.zscore(leases, worker)
            await recorder.until(lambda: raw.zscore(leases, worker) > ends + config.lease)
            gate.set()
            await recorder.wait(events.Completed)
        assert not [event for event in recorder.of(events.LeaseLost) if event.queue == other]


@pytest.mark.extra
@pytest.mark.parametrize("number", range(3))
async def test_process_that_requires_redis_starts_without_any_one_primary(server: EmbeddedRedis, number: int) -> None:
    with Cluster(server.server) as cluster:
        cluster.nodes[number].kill()
        sender = BatchingSender(cluster.url)
        assert await check_server(sender, cluster.url)
        await sender.close()


@pytest.mark.extra
async def test_each_role_works_as_its_own_user_on_all_nodes(cluster: Cluster) -> None:
    for node in cluster.nodes:
        for name, rules in USERS:
            if name != "default":
                cluster.client(node).execute_command("ACL", "SETUSER", name, *words_of(rules))
    queues = queues_of_all(cluster)
    app, runs = App(cluster.url_of("client"), queue=queues[0]), Counter[str]()

    @app.task
    async def handle(queue: str) -> None:
        runs[queue] += 1

    dispatching = Config(url=cluster.url_of("dispatcher"), queues=())
    working = Config(url=cluster.url_of("worker"), queues=queues)
    async with system(dispatching, App(queue="x"), workers=0), system(working, app, dispatch=False):
        app.move_to(cluster.url_of("client"))
        for queue in queues:
            await (await handle.using(queue=queue).enqueue(queue)).result(PATIENCE)
    assert runs == dict.fromkeys(queues, 1)
    for node in cluster.nodes:
        refused = cluster.client(node).execute_command("ACL", "LOG")
        assert not refused, refused


async def test_url_of_one_cluster_node_is_refused_with_the_cluster_url_form(cluster: Cluster) -> None:
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    sender = BatchingSender(url)
    with pytest.raises(CannotStart, match=r"redis\+cluster://"):
        await check_server(sender, url)
    await sender.close()
