"""Calls about Redis itself, not about one queue.

In a cluster, those without a key are answered by each node for itself: send them `at` each of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from evsched import keys
from evsched.errors import FULL, NO_ENTRY, StoreDown, StoreError, StoreRefused
from evsched.lease import parse_lease
from evsched.shards import MOST
from evsched.store.queue import as_texts
from evsched.transport.address import Host
from evsched.transport.call import Call, Word, raw, text, texts


class QueueKeys(Struct, frozen=True):
    """The queues that a slice of the keys shows."""

    next: int
    """The cursor of the next slice; 0 = this was the last."""
    queues: set[str]
    held: set[tuple[str, str]]
    """(queue, worker) of each processing list."""


def scan(cursor: int, *, past: bool = False) -> Call[QueueKeys]:
    """Read a slice of the keys that show that a queue exists: 1,000 keys are about 0.3 ms of Redis's time.

    `past`: also of the keys that show only that it has existed.
    """

    def read(reply: list[Any]) -> QueueKeys:
        found = [parsed for parsed in map(keys.parse, reply[1]) if parsed]
        held = {(queue, worker) for queue, worker in found if worker is not None}
        queues = {queue for queue, _ in found}
        if past:
            queues.update(queue for queue in map(keys.parse_past, reply[1]) if queue is not None)
        return QueueKeys(next=int(reply[0]), queues=queues, held=held)

    pattern = keys.EVERY_TRACE if past else keys.EVERY_PLACE
    return Call(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), read)


def scan_all(cursor: int) -> Call[tuple[int, list[bytes]]]:
    """Read a slice of all keys of all queues: about 0.5 ms of Redis's time."""

    def read(reply: list[Any]) -> tuple[int, list[bytes]]:
        return int(reply[0]), reply[1]

    return Call(("SCAN", cursor, "MATCH", keys.EVERY_KEY, "COUNT", 1000), read)


def scan_records(cursor: int, queue: str | None, count: int) -> Call[tuple[int, list[tuple[str, bytes]]]]:
    """Read the queue and the id of each job that has a record among a slice of the keys. `queue`: of this one alone."""
    pattern = keys.EVERY_RECORD if queue is None else keys.job(queue, "*")

    def read(reply: list[Any]) -> tuple[int, list[tuple[str, bytes]]]:
        return int(reply[0]), [found for found in map(keys.parse_record, reply[1]) if found]

    return Call(("SCAN", cursor, "MATCH", pattern, "COUNT", count), read)


def add_queues(names: Sequence[str]) -> Call[Any]:
    """Add queues to the set of all queues. If that fails in a way that `set_may_wait`, do without it and try later."""
    return Call(("SADD", keys.QUEUES, *names), raw, near=keys.QUEUES)


def remove_queues(names: Sequence[str]) -> Call[Any]:
    """Remove queues from the set of all queues, as `add_queues`."""
    return Call(("SREM", keys.QUEUES, *names), raw, near=keys.QUEUES)


def may_wait(error: StoreError) -> bool:
    """Tell whether only this write fails: memory is full, a right is missing, the key has another type."""
    return error.kind == FULL or (isinstance(error, StoreRefused) and error.kind not in NO_ENTRY)


def set_may_wait(error: StoreError) -> bool:
    """Tell whether only the set of all queues fails, or its node in a cluster: other calls notice if Redis is down."""
    return isinstance(error, StoreDown) or may_wait(error)


def queue_names() -> Call[list[str]]:
    """Read the set of all queues; members that are not valid names are left out."""

    def read(reply: list[bytes]) -> list[str]:
        return [name for name in map(text, reply) if keys.NAME.fullmatch(name)]

    return Call(("SMEMBERS", keys.QUEUES), read, near=keys.QUEUES)


def name_connection(name: str) -> Call[str | None]:
    """Give the connection a name, by which `connection_name` recognizes it; the reply has no meaning."""
    return Call(("CLIENT", "SETNAME", name), lambda reply: name)


def connection_name() -> Call[str | None]:
    """Read the name of the connection; None = it has none, so it is a new one."""
    return Call(("CLIENT", "GETNAME"), lambda reply: text(reply) if reply else None)


def any_scheduled(queues: Iterable[str]) -> Call[bool]:
    """Tell whether one of these queues has a schedule: 0.2 us of Redis's time for each. Not for a cluster."""
    return Call(("EXISTS", *map(keys.schedule, queues)), bool)


def count_queues() -> Call[int]:
    """Count the queues in the set of all queues."""
    return Call(("SCARD", keys.QUEUES), int, near=keys.QUEUES)


def some_queue_names(cursor: int) -> Call[tuple[int, list[str]]]:
    """Read a slice of the set of all queues, and the cursor of the next slice; 0 = this was the last."""

    def read(reply: list[Any]) -> tuple[int, list[str]]:
        return int(reply[0]), [name for name in map(text, reply[1]) if keys.NAME.fullmatch(name)]

    return Call(("SSCAN", keys.QUEUES, cursor, "COUNT", 1000), read, near=keys.QUEUES)


def shards() -> Call[dict[str, int]]:
    """Read how many shards queues have; a queue that is not there never had any. Invalid entries are left out."""

    def read(reply: list[bytes]) -> dict[str, int]:
        pairs = zip(map(text, reply[::2]), map(float, reply[1::2]), strict=True)
        return {name: int(count) for name, count in pairs if 0 <= count <= MOST and keys.NAME.fullmatch(name)}

    return Call(("ZRANGE", keys.SHARDS, 0, -1, "WITHSCORES"), read, near=keys.SHARDS)


def declare_shards(queue: str, count: int) -> Call[bool]:
    """Note that a queue has at least this number of shards; the reply is whether it had fewer before."""
    return Call(("ZADD", keys.SHARDS, "GT", "CH", count, queue), bool, near=keys.SHARDS)


def restore_shards(queue: str, count: int) -> Call[Any]:
    """Note how many shards a queue has, if Redis has lost that."""
    return Call(("ZADD", keys.SHARDS, "NX", count, queue), raw, near=keys.SHARDS)


def set_shards(queue: str, count: int) -> Call[Any]:
    """Set how many shards a queue has; 0 = it no longer has any."""
    return Call(("ZADD", keys.SHARDS, count, queue), raw, near=keys.SHARDS)


def layout() -> Call[int]:
    """Return the layout of the keys in Redis. If Redis has none yet, write this release's."""

    def read(reply: bytes | None) -> int:
        return int(reply) if reply and reply.isdigit() else keys.LAYOUT

    return Call(("SET", keys.LAYOUT_KEY, keys.LAYOUT, "NX", "GET"), read, near=keys.LAYOUT_KEY)


def lease() -> Call[float | None]:
    """Read the lease, in seconds; None = Redis has none, or it is not valid."""
    return Call(("GET", keys.LEASE), parse_lease, near=keys.LEASE)


def set_lease(seconds: float) -> Call[Any]:
    return Call(("SET", keys.LEASE, f"{seconds:g}"), raw, near=keys.LEASE)


def size() -> Call[int]:
    """Count the keys of the database."""
    return Call(("DBSIZE",), int)


def kind(key: str | bytes) -> Call[str]:
    """Read the type of a key, `none` if there is no such key."""
    return Call(("TYPE", key), text, near=key)


def flush() -> Call[Any]:
    """Delete all keys of the database: only for a Redis of tests."""
    return Call(("FLUSHDB",), raw)


def clock(near: Word | None = None) -> Call[float]:
    """Read Redis's clock, in Unix seconds: that of the server that has the key `near`."""

    def read(reply: list[bytes]) -> float:
        return int(reply[0]) + int(reply[1]) / 1e6

    return Call(("TIME",), read, near=near)


def info(*sections: str) -> Call[dict[str, str]]:
    """Read sections of INFO, by default the section `server`."""

    def read(reply: bytes) -> dict[str, str]:
        lines = (line.partition(":") for line in text(reply).splitlines())
        return {name: value for name, colon, value in lines if colon}

    return Call(("INFO", *(sections or ("server",))), read)


def takes_no_writes(queue: str) -> Call[bool]:
    """Tell whether the server of a queue is a replica, which refuses every write: after a failover, for example."""

    def read(reply: bytes) -> bool:
        found = info().read(reply)
        return found.get("role") == "slave" and found.get("slave_read_only") != "0"

    return Call(("INFO", "replication"), read, near=keys.root(queue))


def facts() -> Call[dict[str, str]]:
    """Read INFO, its default sections."""
    return Call(("INFO",), info().read)


class SlotRange(Struct, frozen=True):
    """A range of slots of a cluster, and its nodes."""

    first: int
    last: int
    primary: Host
    replicas: list[Host]
    """The replicas that run."""


def slot_ranges() -> Call[list[SlotRange]]:
    """Read who has which slots of a cluster, by the node that is asked."""

    def read(reply: list[Any]) -> list[SlotRange]:
        ranges = list[SlotRange]()
        for first, last, *nodes in reply:
            primary, *replicas = [(text(host or b""), int(port)) for host, port, *_ in nodes]
            ranges.append(SlotRange(first, last, primary, replicas))
        return ranges

    return Call(("CLUSTER", "SLOTS"), read)


def settings(names: Sequence[str]) -> Call[dict[str, str]]:
    """Read some settings."""
    return Call(("CONFIG", "GET", *names), as_texts)


def canary(key: str) -> list[Call[Any]]:
    """Cause keyspace events of a key, and leave nothing there."""
    return [Call(("ZADD", key, 0, ""), raw, near=key), Call(("DEL", key), raw, near=key)]


def dispatchers(queue: str | None = None) -> Call[int]:
    """Count the subscribed dispatchers: each subscribes to a canary channel of its own.

    In a cluster, those of the node that has the queue: each node has its own.
    """
    near = None if queue is None else keys.root(queue)
    return Call(("PUBSUB", "CHANNELS", keys.canary_message("*")), len, near=near)


def dispatcher_names() -> Call[list[str]]:
    """Read the ids of the subscribed dispatchers, of one node in a cluster."""
    start = len(keys.canary_message(""))
    return Call(
        ("PUBSUB", "CHANNELS", keys.canary_message("*")), lambda reply: sorted(one[start:] for one in texts(reply))
    )


def gate_listeners(queue: str) -> Call[int]:
    """Count the dispatchers that serve a queue by its name; those of all queues are not counted."""

    def read(reply: list[Any]) -> int:
        return int(reply[1])

    return Call(("PUBSUB", "NUMSUB", keys.gate(queue)), read, near=keys.root(queue))


def whoami() -> Call[str]:
    """Read the name of this connection's ACL user."""
    return Call(("ACL", "WHOAMI"), text)


def may(user: str, words: Sequence[Word]) -> Call[str]:
    """Ask whether an ACL user may send a command; the reply is "OK", or the reason why not."""
    return Call(("ACL", "DRYRUN", user, *words), text)


def notification_flags() -> Call[str]:
    """Read notify-keyspace-events."""
    name = "notify-keyspace-events"
    return Call(("CONFIG", "GET", name), lambda reply: as_texts(reply).get(name, ""))


def set_notification_flags(flags: str) -> Call[Any]:
    """Set notify-keyspace-events; it holds until Redis restarts or fails over."""
    return Call(("CONFIG", "SET", "notify-keyspace-events", flags), raw)
