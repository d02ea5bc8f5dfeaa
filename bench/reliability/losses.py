"""What Redis loses of what it has acknowledged, by its settings. evsched's part is the client that enqueues.

A program enqueues jobs one after the other, at most a thousand a second, and notes when each was acknowledged. Then a
fault; afterwards the jobs are looked up in the server that remained. Jobs are due in 2096, so nothing else moves them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from bench.figures import Failed, Figures, Table
from bench.reliability.faults import disk_of, link
from evsched import keys
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import StoreError
from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from tests.support.cluster import Cluster
from tests.support.plain import plain_client
from tests.support.proxy import Proxy
from tests.support.sentinels import Sentinels

QUEUE: Final = "chaos"
_NEVER: Final = 4e9
_SLOW: Final = 3.0
"""Seconds that each sync of a slow disk takes."""

_BEFORE: Final = 4.0
"""Seconds for which the program enqueues before a server is killed; with a slow disk one sync more."""

_PAUSE: Final = 0.001
"""Seconds from one enqueue to the next."""

_ROUNDS: Final = 5
"""How often a server is killed, each time in another phase of its syncs."""

_APART: Final = 20.0
"""Seconds for which a replica is cut off."""

EnqueueNumber = Callable[[int], bool]
"""Enqueues a job of this number, and returns whether it was acknowledged. Raises StoreError, or redis-py's errors."""


class Writer:
    """A program that enqueues until it is stopped, in a thread of its own."""

    def __init__(self, enqueue: EnqueueNumber) -> None:
        self.acknowledged: dict[str, float] = {}
        """When, by the monotonic clock."""
        self.refused = 0
        self._enqueue = enqueue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(_PAUSE):
            number += 1
            try:
                if self._enqueue(number):
                    self.acknowledged[f"job-{number}"] = time.monotonic()
                else:
                    self.refused += 1
            except (StoreError, RedisError):
                self.refused += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Loss:
    """What was acknowledged and lost, over the rounds of a row."""

    def __init__(self) -> None:
        self.acknowledged = self.lost = self.refused = 0
        self.earliest: list[float] = []
        self.latest: list[float] = []

    def add(self, writer: Writer, found: set[str], fault: float) -> None:
        """Add a round, with the jobs that remained; `fault`: when it happened, by the monotonic clock."""
        lost = [at - fault for job, at in writer.acknowledged.items() if job not in found]
        self.acknowledged += len(writer.acknowledged)
        self.refused += writer.refused
        self.lost += len(lost)
        self.earliest += [min(lost)] if lost else []
        self.latest += [max(lost)] if lost else []

    def figures(self) -> Figures:
        """Return the figures. Times are relative to the fault: less than zero is before it."""
        first, last = min(self.earliest, default=None), max(self.latest, default=None)
        return {
            "acknowledged": self.acknowledged,
            "refused": self.refused,
            "lost": self.lost,
            "first lost after, s": first and round(first, 2) + 0.0,  # not -0.0
            "last lost after, s": last and round(last, 2) + 0.0,
        }


@contextmanager
def _writing(enqueue: EnqueueNumber) -> Generator[Writer]:
    writer = Writer(enqueue)
    try:
        yield writer
    finally:
        writer.stop()


@contextmanager
def _ours(url: str) -> Generator[EnqueueNumber]:
    """Enqueue with evsched's client."""
    client = SyncClient(url)

    def enqueue(number: int) -> bool:
        client.enqueue(QUEUE, [new_job("work", (0.0,), {}, JobOptions(id=f"job-{number}", due=_NEVER))])
        return True

    try:
        yield enqueue
    finally:
        client.close()


@contextmanager
def _confirmed(url: str, *wait: str | int) -> Generator[EnqueueNumber]:
    """Enqueue with a plain client: ZADD and HSET, then this command; acknowledged is what it confirms."""
    client = plain_client(url)

    def enqueue(number: int) -> bool:
        pipe = client.pipeline()
        pipe.hset(keys.job(QUEUE, f"job-{number}"), "payload", '{"task":"work","args":[0]}')
        pipe.zadd(keys.schedule(QUEUE), {f"job-{number}": _NEVER})
        pipe.execute()
        reply = client.execute_command(*wait)
        return bool(reply[0] if wait[0] == "WAITAOF" else reply)

    try:
        yield enqueue
    finally:
        client.close()


def _jobs(client: Any) -> set[str]:
    found: set[str] = {
        job.decode() if isinstance(job, bytes) else job for job in client.zrange(keys.schedule(QUEUE), 0, -1)
    }
    client.close()
    return found


def _died(
    how: str, slow: float = 0.0, kind: Kind | None = None, wait: tuple[str | int, ...] = (), **settings: str
) -> Figures:
    """Kill a server, or cut its power, and start it with what is on its disk."""
    loss = Loss()
    for number in range(_ROUNDS):
        with tempfile.TemporaryDirectory(prefix="bench-disk-") as folder, ExitStack() as stack:
            redis = EmbeddedRedis(find_server(kind), port=0, **settings)
            stack.callback(redis.close)
            disk = disk_of(redis, Path(folder))
            disk.start_server()
            disk.delay(slow)
            enqueue = stack.enter_context(_confirmed(redis.url, *wait) if wait else _ours(redis.url))
            with _writing(enqueue) as writer:
                time.sleep(_BEFORE + slow + number / _ROUNDS * max(1.0, slow))
                fault = time.monotonic()
                redis.kill() if how == "killed" else disk.cut_power()
                disk.delay(0)
                redis.start()
            loss.add(writer, _jobs(plain_client(redis.url)), fault)
    return loss.figures()


def _cut_off(wait: tuple[str | int, ...] = (), **settings: str) -> Figures:
    """Cut the only replica off for a while, then promote it, as those do who see that the primary is gone."""
    loss = Loss()
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis(port=0, **settings))
        wire = stack.enter_context(link(redis))
        host, port = wire.url.removeprefix("redis://").removesuffix("/0").split(":")
        other = stack.enter_context(EmbeddedRedis(port=0, replicaof=f"{host} {port}"))
        replica = plain_client(other.url)
        until = time.monotonic() + 30
        while replica.info("replication")["master_link_status"] != "up":
            if time.monotonic() > until:
                raise Failed("the replica does not follow")
            time.sleep(0.1)
        enqueue = stack.enter_context(_confirmed(redis.url, *wait) if wait else _ours(redis.url))
        with _writing(enqueue) as writer:
            time.sleep(3)
            fault = time.monotonic()
            wire.tell(lambda proxy: proxy.swallow())
            time.sleep(_APART)
            replica.replicaof("NO", "ONE")
            wire.tell(Proxy.reset)
        loss.add(writer, _jobs(replica), fault)
    return loss.figures()


def _failed_over(
    fault: Callable[[Any, Any], Any], kind: Callable[[], Any], rounds: int, *, follows: bool = True, **settings: str
) -> Figures:
    """Fail over while the program writes; it goes on for a while, at the new primary if it follows."""
    loss = Loss()
    for _ in range(rounds):
        with kind() as servers, _ours(servers.url if follows else servers.primary(QUEUE).url) as enqueue:
            for server in servers.nodes if isinstance(servers, Cluster) else servers.servers:
                for name, value in settings.items():
                    servers.client(server).config_set(name.replace("_", "-"), value)
            with _writing(enqueue) as writer:
                time.sleep(2)
                old, at = servers.primary(QUEUE), time.monotonic()
                fault(servers, old)
                servers.wait_for_failover(old, QUEUE)
                time.sleep(15)  # an old primary that was not told accepts writes for 11 s
            loss.add(writer, _jobs(servers.client(servers.primary(QUEUE))), at)
    return loss.figures()


def _order(sentinels: Sentinels, _: EmbeddedRedis) -> None:
    sentinels.order_failover()


def _order_in_cluster(cluster: Cluster, old: EmbeddedRedis) -> None:
    number = cluster.nodes.index(old)
    cluster.client(cluster.nodes[number + 3]).execute_command("CLUSTER", "FAILOVER")


def _kill(_: Any, old: EmbeddedRedis) -> None:
    old.kill()


def table() -> Table:
    """Return the table."""
    cluster = partial(Cluster, replicas=3)
    rows: Mapping[str, Callable[[], Figures]] = {
        "Redis killed: appendonly no": partial(_died, "killed", appendonly="no"),
        "Redis killed: everysec": partial(_died, "killed"),
        f"Redis killed: everysec, a sync takes {_SLOW:g} s": partial(_died, "killed", _SLOW),
        "Redis killed: always": partial(_died, "killed", appendfsync="always"),
        "power cut: everysec": partial(_died, "cut"),
        f"power cut: everysec, a sync takes {_SLOW:g} s": partial(_died, "cut", _SLOW),
        "power cut: always": partial(_died, "cut", appendfsync="always"),
        "power cut: always, a sync takes 0.1 s": partial(_died, "cut", 0.1, appendfsync="always"),
        "power cut: everysec, confirmed by WAITAOF 1 0 (Valkey)": partial(
            _died, "cut", kind="valkey", wait=("WAITAOF", 1, 0, 5000)
        ),
        f"replica cut off for {_APART:g} s, then promoted": _cut_off,
        "the same with min-replicas-to-write 1, min-replicas-max-lag 10": partial(
            _cut_off, min_replicas_to_write="1", min_replicas_max_lag="10"
        ),
        "the same with min-replicas-to-write 1, min-replicas-max-lag 2": partial(
            _cut_off, min_replicas_to_write="1", min_replicas_max_lag="2"
        ),
        "the same, each job confirmed by WAIT 1": partial(_cut_off, ("WAIT", 1, 1000)),
        "primary killed, Sentinel": partial(_failed_over, _kill, Sentinels, 3),
        "primary killed, cluster": partial(_failed_over, _kill, cluster, 3),
        "SENTINEL FAILOVER": partial(_failed_over, _order, Sentinels, 2),
        "SENTINEL FAILOVER, min-replicas-to-write 1": partial(
            _failed_over, _order, Sentinels, 2, min_replicas_to_write="1", min_replicas_max_lag="10"
        ),
        "SENTINEL FAILOVER, of a program that does not follow it": partial(
            _failed_over, _order, Sentinels, 2, follows=False
        ),
        "SENTINEL FAILOVER, writes paused first": partial(
            _failed_over, Sentinels.fail_over_behind_a_pause, Sentinels, 2
        ),
        "CLUSTER FAILOVER": partial(_failed_over, _order_in_cluster, cluster, 2),
    }
    return Table("What Redis lost of what it had acknowledged", rows)
