"""Faults of processes, of connections and of Redis while evsched works: jobs lost, early, run again, and late.

Each row has servers and processes of its own, with the settings that evsched ships: two dispatchers and two workers,
and a program that enqueues fifty jobs a second.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from bench.figures import Failed, Figures, Table
from bench.reliability.scene import DISPATCHER, PARENT, QUEUE, WORKER, Scene, in_transactions, scene, through_client
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cluster import Cluster
from tests.support.disk import Disk
from tests.support.plain import plain_client
from tests.support.postgres import Postgres, find_postgres
from tests.support.proxy import Proxy
from tests.support.sentinels import Sentinels
from tests.support.topology import copy_data

_SERVICES: Final = (DISPATCHER, DISPATCHER, WORKER, WORKER)

Fault = Callable[[Scene], None]


def _repeat(one: Scene, fault: Fault, times: int, pause: float) -> Figures:
    """Cause a fault so often, with a pause that varies after each, and return the account."""
    time.sleep(1)
    for _ in range(times):
        fault(one)
        time.sleep(pause * one.rng.uniform(0.5, 1.5))
    return one.account(times)


def _processes(fault: Fault, times: int, pause: float, worker: tuple[str, ...] = WORKER) -> Figures:
    with EmbeddedRedis(port=0) as redis, scene(redis.url, (DISPATCHER, DISPATCHER, worker, worker)) as one:
        return _repeat(one, fault, times, pause)


def _kill_any(one: Scene) -> None:
    one.kill(one.rng.choice([DISPATCHER[0], WORKER[0]]))


def _redis_killed(times: int, **settings: str) -> Figures:
    with EmbeddedRedis(port=0, **settings) as redis, scene(redis.url, _SERVICES) as one:

        def restart(_: Scene) -> None:
            redis.kill()
            redis.start()

        return _repeat(one, restart, times, 2.0)


class Link:
    """A proxy between the services and Redis, which runs in a thread of its own."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxy = Proxy(target)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result()
        self.url = f"redis://{self._proxy.host}:{self._proxy.port}/0"

    def tell(self, *words: Callable[[Proxy], None]) -> None:
        """Change what the proxy does, in the order given, at one moment."""

        async def change() -> None:
            for word in words:
                word(self._proxy)

        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(None, None, None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def link(server: EmbeddedRedis) -> Generator[Link]:
    """Start a proxy in front of a server, and end it."""
    made = Link(("127.0.0.1", server.port or 0))
    try:
        yield made
    finally:
        made.close()


def _lose_replies(one: Scene, wire: Link) -> None:
    """Reset the connection that carries one of the next replies, somewhere within that reply."""
    wire.tell(lambda proxy: proxy.cut_after(one.rng.randrange(1, 2000), "down"))


def _half_open(_: Scene, wire: Link) -> None:
    """Forget all connections, as a router that was restarted does: nobody is told."""
    wire.tell(Proxy.forget)
    time.sleep(15)


def _partition(_: Scene, wire: Link) -> None:
    """Let nothing through for 20 s, longer than a lease."""
    wire.tell(lambda proxy: proxy.swallow())
    time.sleep(20)
    wire.tell(Proxy.reset, Proxy.heal)


def _connections(fault: Callable[[Scene, Link], None], times: int, pause: float) -> Figures:
    """Disturb the connections of the services. Those of the program that enqueues are left alone."""
    with (
        EmbeddedRedis(port=0) as redis,
        link(redis) as wire,
        through_client(redis.url) as enqueue,
        scene(wire.url, _SERVICES, enqueue) as one,
    ):
        return _repeat(one, lambda one: fault(one, wire), times, pause)


def _clients_killed(times: int) -> Figures:
    with EmbeddedRedis(port=0) as redis, scene(redis.url, _SERVICES) as one:
        client = plain_client(redis.url)

        def cut(_: Scene) -> None:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)

        try:
            return _repeat(one, cut, times, 0.5)
        finally:
            client.close()


def _memory_full(times: int) -> Figures:
    with EmbeddedRedis(port=0) as redis, scene(redis.url, _SERVICES) as one:
        client = plain_client(redis.url)

        def fill(_: Scene) -> None:
            client.config_set("maxmemory", 1)
            time.sleep(5)
            client.config_set("maxmemory", 0)

        try:
            return _repeat(one, fill, times, 3.0)
        finally:
            client.close()


def _disk_full(times: int, **settings: str) -> Figures:
    """Fill the disk for 5 s. With appendfsync always, Redis then ends, and is started when there is room again."""
    with tempfile.TemporaryDirectory(prefix="bench-disk-") as folder, ExitStack() as stack:
        redis = EmbeddedRedis(port=0, **settings)
        stack.callback(redis.close)
        disk = disk_of(redis, Path(folder))
        disk.start_server()
        one = stack.enter_context(scene(redis.url, _SERVICES))

        def fill(_: Scene) -> None:
            disk.fill()
            time.sleep(5)
            disk.empty()
            if not _answers(redis):
                redis.kill()
                disk.start_server()

        return _repeat(one, fill, times, 3.0)


def disk_of(redis: EmbeddedRedis, folder: Path) -> Disk:
    """Return the disk of a server that has not started."""
    if shutil.which("gcc") is None:
        raise Failed("gcc is not installed (Debian: gcc libc6-dev)")
    return Disk(redis, folder)


def _answers(redis: EmbeddedRedis) -> bool:
    client = plain_client(redis.url)
    try:
        client.ping()
    except RedisConnectionError:
        return False
    except ResponseError:
        pass  # it refuses writes, and PING with them
    finally:
        client.close()
    return True


def _slots_moved(times: int) -> Figures:
    """Move the slot of the queue from primary to primary, key by key."""
    with Cluster(primaries=3) as cluster, scene(cluster.url, _SERVICES) as one:

        def move(one: Scene) -> None:
            owner = cluster.primary(QUEUE)
            cluster.move(QUEUE, one.rng.choice([node for node in cluster.nodes if node is not owner]))

        return _repeat(one, move, times, 2.0)


def _failovers(kind: Callable[[], Any], times: int) -> Figures:
    """Kill the primary: a replica takes its place, and it returns as one. What was not replicated yet is lost."""
    with kind() as servers, scene(servers.url, _SERVICES) as one:

        def fail(_: Scene) -> None:
            old = servers.primary(QUEUE)
            old.kill()
            servers.wait_for_failover(old, QUEUE)
            old.start()
            servers.wait_for_replicas()

        return _repeat(one, fail, times, 3.0)


@contextmanager
def _ledger(redis: EmbeddedRedis) -> Generator[Scene]:
    """Run two relays besides. Jobs are accepted when their row is committed."""
    programs = find_postgres()
    if programs is None:
        raise Failed("PostgreSQL is not installed (Debian: postgresql)")
    relays = [("ledger", "run")] * 2
    with (
        Postgres(programs) as postgres,
        postgres.ledger() as url,
        in_transactions(url) as enqueue,
        scene(redis.url, [*_SERVICES, *relays], enqueue, EVSCHED_LEDGER_URL=url) as one,
    ):
        yield one


def _flushed(times: int) -> Figures:
    with EmbeddedRedis(port=0) as redis, _ledger(redis) as one:
        client = plain_client(redis.url)
        try:
            return _repeat(one, lambda _: client.flushall(), times, 4.0)
        finally:
            client.close()


def _restored(times: int) -> Figures:
    """Copy the data, and bring this copy back 5 s later, without a restart."""
    with EmbeddedRedis(port=0) as redis, EmbeddedRedis(port=0) as backup, _ledger(redis) as one:

        def restore(_: Scene) -> None:
            copy_data(redis, backup)
            time.sleep(5)
            copy_data(backup, redis)

        return _repeat(one, restore, times, 3.0)


def table() -> Table:
    """Return the table."""
    rows: Mapping[str, Callable[[], Figures]] = {
        "worker killed": partial(_processes, lambda one: one.kill(WORKER[0]), 20, 1.5),
        "dispatcher killed": partial(_processes, lambda one: one.kill(DISPATCHER[0]), 20, 1.5),
        "parent of worker processes killed": partial(_processes, lambda one: one.kill(WORKER[0]), 10, 3.0, PARENT),
        "any of them killed": partial(_processes, _kill_any, 30, 0.8),
        "worker stopped for 17 s, longer than its lease": partial(
            _processes, lambda one: one.stop_for(WORKER[0], 17), 3, 2.0
        ),
        "dispatcher stopped for 17 s": partial(_processes, lambda one: one.stop_for(DISPATCHER[0], 17), 2, 2.0),
        "Redis killed, appendfsync everysec": partial(_redis_killed, 10),
        "Redis killed, appendfsync always": partial(_redis_killed, 10, appendfsync="always"),
        "connections cut within a reply": partial(_connections, _lose_replies, 100, 0.2),
        "all connections cut by Redis": partial(_clients_killed, 40),
        "all connections half open": partial(_connections, _half_open, 3, 2.0),
        "no connection for 20 s": partial(_connections, _partition, 2, 5.0),
        "Redis's memory full for 5 s": partial(_memory_full, 4),
        "Redis's disk full for 5 s, appendfsync everysec": partial(_disk_full, 3),
        "Redis's disk full for 5 s, appendfsync always": partial(_disk_full, 3, appendfsync="always"),
        "slot moved to another primary, key by key": partial(_slots_moved, 10),
        "older data loaded into Redis, with the ledger": partial(_restored, 3),
        "all data of Redis deleted, with the ledger": partial(_flushed, 5),
        "primary killed, Sentinel": partial(_failovers, Sentinels, 4),
        "primary killed, cluster": partial(_failovers, partial(Cluster, replicas=3), 4),
    }
    return Table("Faults while evsched works", rows)
