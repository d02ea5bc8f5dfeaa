"""The checks of one server, of the rights of its users, and of a cluster as a whole.

A server is judged by its INFO and its settings. A setting that could not be read is absent and counts as good:
diagnostics/doctor.py reports that it was not read. The rights that each user of redis.conf needs are commands that `ACL
DRYRUN` can check. A cluster is judged by its slots, its replicas, the versions of its nodes, and where shards are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.errors import StoreDown, StoreError
from evsched.shards import Shards, shard
from evsched.store.server import SlotRange, slot_ranges
from evsched.store.server import info as read_info
from evsched.transport.address import Host
from evsched.transport.embedded import read_version
from evsched.transport.redis_errors import NO_CLUSTER
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import SLOTS, Topology, slot_of

Role = Literal["producer", "client", "worker", "dispatcher", "ledger", "console", "observer", "doctor"]

READS: Final = """
EXISTS job:x · GET arrival · HEXISTS job:x field · HGET job:x field · HGETALL job:x · HKEYS job:x · HLEN limits
HMGET job:x field · HSTRLEN job:x payload · LINDEX ready 0 · LLEN ready
LPOS ready x · LRANGE ready 0 1 · MEMORY USAGE job:x · PTTL job:x · SISMEMBER program:x y · TYPE job:x
ZCARD schedule · ZCOUNT schedule 0 1 · ZMSCORE schedule x
ZRANGE schedule 0 1 · ZRANK backlog x · ZSCAN schedule 0 · ZSCORE schedule x
"""
"""The commands in the scripts that only read. A test compares these with lua/."""

WRITES: Final = """
DEL job:x · GETRANGE batch_ends:x 0 1 · HDEL job:x field · HINCRBY in_flight field 1 · HRANDFIELD fair 1
HSET job:x field value · HSETNX job:x field value · LMOVE ready processing:x LEFT RIGHT · LPOP batch_ripple:x
LPUSH ready x · LREM ready 1 x · LSET batch_parts:x 0 y · LTRIM ready 0 1 · PERSIST job:x · PEXPIRE job:x 1
PUBSUB SHARDNUMSUB {root}idle:x · RENAME job:x job:y · RPUSH ready x · SADD declared:x y · SET arrival 1
SETRANGE batch_ends:x 0 y · SMEMBERS declared:x · SPUBLISH {root}idle:x job · SRANDMEMBER declared:x 1
SREM declared:x y · STRLEN batch_ends:x · XACK ends g 1-1 · XADD ends * field value · XDEL ends 1-1
XREVRANGE audit + - · ZADD schedule 0 x · ZPOPMIN idle 1 · ZREM schedule x · ZREMRANGEBYRANK backlog 0 1
ZREMRANGEBYSCORE parents 0 1 · ZUNIONSTORE throttled 1 throttled
"""
"""The commands that the other scripts need in addition."""

_PLACES: Final = ("job:", "reply:", "processing:", "declared:", "program:", "batch:", "batch_")
_NAMES: Final = (
    *("arrival", "limits", "ready", "schedule", "backlog", "in_flight", "fair", "throttled", "dead", "canary", "idle"),
    "light",
    *("starting", "newly_paused", "parents", "ends", "audit"),
)

_OWN: Final[dict[Role, str]] = {
    "producer": """
        ZADD schedule 0 x · ZREM schedule x · HSET job:x field value · HGETALL job:x · BLPOP reply:x 1
        DEL reply:x · UNLINK reply:x · MULTI · EXEC · DISCARD
    """,
    "client": """
        BLMOVE reply:x reply:x LEFT LEFT 1 · LINDEX reply:x 0 · SUBSCRIBE {root}progress:x
        ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
    "worker": """
        BLMOVE ready processing:x LEFT RIGHT 1 · SUBSCRIBE {root}control:x · SUBSCRIBE {root}status
        SSUBSCRIBE {root}idle:x · INFO server · CLIENT ID · CLIENT UNBLOCK 1 · SADD evsched:{}:queues x
        BLMOVE ready ready LEFT LEFT 1 · SET starting 1 NX PX 1 · ZREM parents x
    """,
    "dispatcher": """
        SCAN 0 · INFO server · CONFIG GET notify-keyspace-events · SADD evsched:{}:queues x · SMEMBERS evsched:{}:queues
        SPOP newly_paused 1 · UNLINK batch:x
    """,
    "ledger": """
        INFO server · SET evsched:{}:epoch x NX GET · SET evsched:{}:ledger x NX GET
        XGROUP CREATE ends g 0 MKSTREAM · XGROUP DELCONSUMER ends g x
        XREADGROUP GROUP g x STREAMS ends > · XAUTOCLAIM ends g x 1 0 · XINFO CONSUMERS ends g
    """,
    "console": """
        SCAN 0 · DBSIZE · INFO server · PUBSUB CHANNELS evsched:canary:* · SMEMBERS evsched:{}:queues
        ZRANGE evsched:{}:shards 0 -1 WITHSCORES · PUBLISH {root}status x · SUBSCRIBE {root}status:x
        HGETALL evsched:{}:console:tokens · HSET evsched:{}:console:tokens x y · HDEL evsched:{}:console:tokens x
        SET evsched:{}:console:secret x NX GET · SET evsched:{}:console:session:x y EX 1
        GET evsched:{}:console:session:x · DEL evsched:{}:console:session:x
        XREAD STREAMS evsched:{}:audit 0 · XADD evsched:{}:audit * x y
    """,
    "observer": """
        SCAN 0 · INFO server · SMEMBERS evsched:{}:queues · PUBSUB CHANNELS evsched:canary:*
        PUBLISH {root}status x · SUBSCRIBE {root}status:x · ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
    "doctor": """
        SCAN 0 · INFO server · DBSIZE · CONFIG GET notify-keyspace-events · ZADD canary 0 x
        DEL canary · SUBSCRIBE {canary} · PUBSUB CHANNELS evsched:canary:*
        PUBLISH {root}status x · SUBSCRIBE {root}status:x · ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
}


def _read(text: str, root: str, canary: str = "") -> list[tuple[str, ...]]:
    """Read lines of commands, and put keys in the place of the short names."""
    found = list[tuple[str, ...]]()
    for line in text.replace("·", "\n").strip().splitlines():
        words = [root + word if word in _NAMES or word.startswith(_PLACES) else word for word in line.split()]
        found.append(tuple(word.replace("{root}", root).replace("{canary}", canary) for word in words))
    return found


def needs(role: Role, queue: str, db: int, *, all_queues: bool, cluster: bool = False) -> list[tuple[str, ...]]:
    """Return the commands that a role must be allowed to run, with the keys of `queue` as an example.

    `all_queues`: the role serves all queues instead of named ones, so it subscribes to patterns. `cluster`: it has to
    find the nodes.
    """
    root = keys.root(queue)
    found = _read(_OWN[role], root, keys.events(db, keys.canary(queue)))
    if cluster:
        found.append(("CLUSTER", "SLOTS"))
    if role != "producer":
        # A script may run only commands that its caller may run.
        found += [("EVALSHA", "0", "1", root), ("EVAL", "return 1", "1", root), ("TIME",), *_read(READS, root)]
    if role in ("client", "worker", "dispatcher", "ledger", "console"):
        found += [*_read(WRITES, root), ("PUBLISH", keys.gate(queue), "0")]
    if role == "dispatcher":
        names = [
            key("*" if all_queues else queue) for key in (keys.schedule, keys.recurrences, keys.chores, keys.canary)
        ]
        channels = [keys.events(db, name) for name in names] + [keys.gate("*" if all_queues else queue)]
        found += [("PSUBSCRIBE" if all_queues else "SUBSCRIBE", channel) for channel in channels]
        found.append(("SUBSCRIBE", keys.canary_message("x")))
    return found


SETTINGS: Final = (
    *("appendonly", "appendfsync", "save", "maxmemory-policy", "notify-keyspace-events"),
    *("cluster-require-full-coverage", "min-replicas-to-write"),
)
"""The settings that INFO lacks, or lacks on some servers."""

_FULL: Final = 0.9
"""The part of the memory or of the connections in use from which to warn: a burst could take the rest, but there is
still time to act."""

_LAG: Final = 10
"""Seconds since a replica last answered: it does so each second."""

_SKEW: Final = 1.0
"""Seconds. Jobs of a program that computes due times by its own clock start this much too late or too early."""


def at(host: Host) -> str:
    return f"{host[0]}:{host[1]}"


class Server(Struct, frozen=True):
    """The reports of a server about itself."""

    info: Mapping[str, str]
    settings: Mapping[str, str]

    def number(self, name: str) -> int:
        """Return a figure of INFO, 0 if it is missing."""
        text = self.info.get(name, "")
        return int(text) if text.isdecimal() else 0


def version(server: Server) -> Iterator[Finding]:
    """Check the version."""
    kind, version_text, least = read_version(server.info)
    if least is not None:
        what = f"{kind} {version_text} is too old: it has no script flags, so no job could end while its memory is full"
        yield Finding("version", "fault", what, "Redis", f"install {kind} {least[0]}.{least[1]} or newer")


def cluster(server: Server) -> Iterator[Finding]:
    """Check that a server whose URL names no cluster is not in one: its other nodes would not be found."""
    if server.info.get("redis_mode") == "cluster" or server.number("cluster_enabled") != 0:
        mend = "--url redis+cluster://HOST:PORT,HOST:PORT, with some of its nodes; or set EVSCHED_URL to it"
        yield Finding("cluster", "fault", NO_CLUSTER, "Redis, cluster-enabled", mend)


def replica(server: Server) -> Iterator[Finding]:
    """Check that this is not a replica."""
    if server.info.get("role") == "slave":
        host = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
        what = "this is a replica: it accepts no jobs and runs none"
        yield Finding("replica", "fault", what, "Redis", f"use {host}, its primary")


def persistence(server: Server) -> Iterator[Finding]:
    """Check how much a restart would lose, and whether the last writes to disk succeeded."""
    if server.info.get("aof_enabled", "1") != "1":
        snapshots = server.settings.get("save", "") != ""
        lost = "all jobs since the last snapshot" if snapshots else "every job"
        what = f"the append-only log is off: a restart loses {lost}"
        mend = "CONFIG SET appendonly yes, and write appendonly yes to redis.conf"
        yield Finding("persistence", "warning" if snapshots else "fault", what, "Redis, appendonly", mend)
    for name, what in (
        ("aof_last_write_status", "the last write to the append-only log failed: Redis refuses every write"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only log failed: the log keeps growing"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if server.info.get(name, "ok") != "ok":
            level = "fault" if name == "aof_last_write_status" else "warning"
            mend = "read Redis's log: usually the disk is full, or Redis may not write to its folder; then BGREWRITEAOF"
            yield Finding("persistence-failed", level, what, f"Redis, {name}", mend)


def appendfsync(server: Server) -> Iterator[Finding]:
    """Check how many acknowledged writes a crash may lose."""
    value = server.settings.get("appendfsync") if server.info.get("aof_enabled") == "1" else None
    where = "Redis, appendfsync"
    if value == "no":
        what = "the operating system decides when to flush the log: a crash of the machine loses about the last 30 s"
        mend = "CONFIG SET appendfsync everysec, and write appendfsync everysec to redis.conf"
        yield Finding("appendfsync", "fault", what, where, mend)
    elif value == "everysec":
        what = "a crash of the machine loses about the last second of acknowledged writes"
        mend = "if that is too much: CONFIG SET appendfsync always; each write then waits for the disk"
        yield Finding("appendfsync", "info", what, where, mend)


def eviction(server: Server) -> Iterator[Finding]:
    """Check that Redis does not delete jobs when its memory is full."""
    policy = server.settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and server.number("maxmemory"):
        what = f"the policy is {policy}: when memory is full, Redis deletes records of jobs, or a whole schedule"
        mend = "CONFIG SET maxmemory-policy noeviction, and write maxmemory-policy noeviction to redis.conf"
        yield Finding("eviction", "fault", what, "Redis, maxmemory-policy", mend)
    if evicted := server.number("evicted_keys"):
        what = f"Redis has deleted {evicted} keys to make room: jobs may be among them"
        mend = (
            "the findings about queues below name the jobs that lost their records; CONFIG RESETSTAT resets the count"
        )
        yield Finding("evicted-keys", "warning", what, "Redis, evicted_keys", mend)


def memory(server: Server) -> Iterator[Finding]:
    """Check how much memory is left."""
    used, most = server.number("used_memory"), server.number("maxmemory")
    if most and used >= _FULL * most:
        then = "it is full, and" if used >= most else "when it is full,"
        refuses = "Redis refuses new jobs, and messages that jobs forward to it are put off"
        what = f"{used / 2**20:.0f} of {most / 2**20:.0f} MB are used: {then} {refuses}"
        mend = (
            "raise it with CONFIG SET maxmemory; or keep results for a shorter time, and drop dead jobs (evsched dead "
            "drop)"
        )
        yield Finding("memory", "warning", what, "Redis, maxmemory", mend)


def connections(server: Server) -> Iterator[Finding]:
    """Check how many connections are left."""
    used, most = server.number("connected_clients"), server.number("maxclients")
    if most and used >= _FULL * most:
        what = f"{used} of {most} connections are in use: when all are, no worker can connect"
        mend = (
            "raise it with CONFIG SET maxclients, or find in CLIENT LIST which program does not close its connections"
        )
        yield Finding("connections", "warning", what, "Redis, maxclients", mend)


def full_coverage(server: Server) -> Iterator[Finding]:
    """Check that a cluster serves the other queues while some slots are not served."""
    if server.number("cluster_enabled") == 1 and server.settings.get("cluster-require-full-coverage") == "yes":
        what = "the loss of one primary stops the queues of all others, until its replica has taken its place"
        mend = "CONFIG SET cluster-require-full-coverage no at all nodes, and write that to their redis.conf"
        yield Finding("cluster-coverage", "warning", what, "Redis, cluster-require-full-coverage", mend)


def replicas(server: Server) -> Iterator[Finding]:
    """Check that replicas follow, and how much an isolated primary would lose."""
    count = server.number("connected_slaves")
    for number in range(count):
        one = dict(field.split("=", 1) for field in server.info.get(f"slave{number}", "").split(",") if "=" in field)
        lag = int(one.get("lag", "0"))
        if one and (one.get("state") != "online" or lag >= _LAG):
            state = f"answered {lag} s ago" if one.get("state") == "online" else f"is in state {one.get('state')}"
            address = f"{one.get('ip')}:{one.get('port')}"
            what = f"the replica {address} {state}: a failover to it would lose the writes that it has not received"
            mend = "check its load, its disk and the network; if it is gone for good, remove it or start another"
            yield Finding("replica-lag", "warning", what, "Redis, replication", mend)
    least, good = server.settings.get("min-replicas-to-write", "0"), server.number("min_slaves_good_slaves")
    where = "Redis, min-replicas-to-write"
    if least.isdecimal() and good < int(least):
        what = f"Redis refuses every write: it has {good} of {least} replicas"
        yield Finding("min-replicas", "fault", what, where, "start the missing replicas, or lower the setting")
    elif count and least == "0":
        what = "a primary that is cut off from its replicas accepts jobs, which are lost when one takes its place"
        mend = "if that is too much: CONFIG SET min-replicas-to-write 1; a primary without a replica then takes no jobs"
        yield Finding("min-replicas", "info", what, where, mend)


CHECKS: Final = (version, replica, persistence, appendfsync, eviction, memory, connections, full_coverage, replicas)


def clock(offset: float, error: float = 0.0) -> Iterator[Finding]:
    """Check how many seconds Redis's clock is ahead of this host's; negative = behind. `error`: of the measurement."""
    if abs(offset) - error >= _SKEW:
        what = f"Redis's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this host's"
        mend = (
            "synchronise both with NTP (chronyc tracking); a program that schedules by its own clock is off by as much"
        )
        yield Finding("clock", "warning", what, "Redis and this host", mend)


def sentinel(host: Host, why: str) -> Finding:
    """Report a sentinel that does not name the primary."""
    mend = (
        "start it, or take it out of the URL; if it names an old primary: SENTINEL REMOVE NAME and SENTINEL MONITOR "
        "NAME HOST PORT QUORUM there"
    )
    what = f"a sentinel of the URL does not tell where the primary is, so others are asked: {why}"
    return Finding("sentinel", "warning", what, at(host), mend)


_CLUSTER: Final = "Redis Cluster"

_CROWD: Final = 2
"""How many times its part of a queue's shards a primary has when they crowd there: names decide, so some have more."""


def no_slots(error: StoreError) -> Finding:
    """Report that no node that answers has a part in a cluster."""
    mend = (
        "name nodes in the URL that belong to the cluster (redis-cli --cluster check HOST:PORT shows them), or give "
        "these nodes their slots: redis-cli --cluster create"
    )
    return Finding("cluster", "fault", str(error), _CLUSTER, mend)


async def unanswered(sender: BatchingSender, nodes: Sequence[Host | None]) -> set[Host]:
    """Return the primaries that do not answer."""
    asked = [node for node in nodes if node is not None]
    replies = await sender.attempt_all([read_info().at(node) for node in asked])
    return {node for node, reply in zip(asked, replies, strict=True) if isinstance(reply, StoreDown)}


async def cluster_checks(sender: BatchingSender, topology: Topology, shards: Shards, down: set[Host]) -> list[Finding]:
    """Check a cluster. `down`: the primaries that do not answer.

    Raises:
        StoreDown, StoreRefused
    """
    owners = await topology.owners()  # then the node that gave them is asked for the rest: others may know fewer slots
    ranges = await sender.send(slot_ranges())
    doubtful = [(host, why) for host, why in await topology.doubtful() if host not in down]
    return [
        *without_answer(ranges, down),
        *_doubtful(doubtful),
        *without_owner(ranges),
        *without_replica(ranges),
        *different_versions(await _read_versions(sender, ranges, down)),
        *crowded(shards.counts, owners),
    ]


def _doubtful(hosts: Sequence[tuple[Host, str]]) -> Iterator[Finding]:
    mend = (
        "name another node in the URL, or let it join: redis-cli --cluster add-node; if it has joined, check that its "
        "cluster bus port (16379 for 6379) can be reached by the other nodes, and theirs by it"
    )
    for host, why in hosts:
        what = f"the URL names a node that cannot tell where queues are, so others are asked: {why}"
        yield Finding("cluster-node", "warning", what, at(host), mend)


def without_answer(ranges: list[SlotRange], down: set[Host]) -> Iterator[Finding]:
    """Report the primaries that do not answer, with their slots."""
    promote = "promote one of its replicas: redis-cli -h HOST -p PORT of the replica CLUSTER FAILOVER TAKEOVER"
    for host in sorted(down):
        has_replica = any(one.replicas for one in ranges if one.primary == host)
        mend = f"start it again; if that fails, {promote}" if has_replica else "start it again: it has no replica"
        slots = ", ".join(f"{one.first}-{one.last}" for one in ranges if one.primary == host)
        what = f"primary {at(host)} of slots {slots} does not answer: its queues stand still, and were not checked"
        yield Finding("cluster-down", "fault", what, at(host), mend)


def without_owner(ranges: list[SlotRange]) -> Iterator[Finding]:
    """Check that each slot has an owner."""
    if missing := SLOTS - sum(one.last + 1 - one.first for one in ranges):
        what = f"{missing} of {SLOTS} slots have no owner: queues in these slots have no Redis"
        mend = "redis-cli --cluster fix HOST:PORT, with one of its nodes"
        yield Finding("cluster-slots", "fault", what, _CLUSTER, mend)


def without_replica(ranges: list[SlotRange]) -> Iterator[Finding]:
    """Check that no primary has lost its replicas."""
    replicas = {one.primary: len(one.replicas) for one in ranges}
    lone = sorted(host for host, count in replicas.items() if not count)
    mend = "redis-cli --cluster add-node NEW-HOST:PORT HOST:PORT --cluster-slave --cluster-master-id ID"
    if len(lone) == len(replicas):  # intended, as it is with one Redis
        what = "no primary has a replica: if one is lost, its queues stand still until it is back"
        yield Finding("cluster-replicas", "info", what, _CLUSTER, mend)
        return
    for host in lone:
        what = "this primary has no replica that runs, other primaries have: if it is lost, its queues stand still"
        yield Finding("cluster-replicas", "warning", what, at(host), mend)


async def _read_versions(sender: BatchingSender, ranges: list[SlotRange], down: set[Host]) -> dict[Host, str]:
    """Return the versions of the nodes that answer."""
    nodes = sorted({host for one in ranges for host in (one.primary, *one.replicas) if host[0]} - down)
    read = await asyncio.gather(*(sender.send(read_info().at(node)) for node in nodes), return_exceptions=True)
    found = dict[Host, str]()
    for node, info in zip(nodes, read, strict=True):
        if not isinstance(info, BaseException):
            kind, version, _ = read_version(info)
            found[node] = f"{kind.capitalize()} {version}"
        elif not isinstance(info, StoreError):
            raise info
    return found


def different_versions(versions: Mapping[Host, str]) -> Iterator[Finding]:
    """Check that all nodes have the same version."""
    by_version = defaultdict[str, list[str]](list)
    for host, version in versions.items():
        by_version[version].append(at(host))
    if len(by_version) > 1:
        listed = "; ".join(f"{version} at {', '.join(nodes)}" for version, nodes in sorted(by_version.items()))
        mend = "install the same version on all nodes: a failover to another version may change what Redis accepts"
        yield Finding("cluster-versions", "warning", f"nodes have different versions: {listed}", _CLUSTER, mend)


def crowded(counts: Mapping[str, int], owners: list[Host | None]) -> Iterator[Finding]:
    """Check that no primary has far more of the shards of a queue than its part."""
    primaries = len({*owners} - {None})
    for queue, count in sorted((queue, count) for queue, count in counts.items() if count):
        part = -(-count // primaries)
        there = Counter(owners[slot_of(keys.root(shard(queue, number)))] for number in range(count))
        host, most = there.most_common(1)[0]
        if host is not None and most >= max(_CROWD * part, part + 2):
            what = (
                f"{most} of the {count} shards of queue {queue} are on one of {primaries} primaries; its part is {part}"
            )
            mend = (
                "another number of shards (evsched queues shard), or move the slots of some (CLUSTER KEYSLOT "
                f"'{keys.root(shard(queue, 0))}' shows the first) to other primaries"
            )
            yield Finding("shards-crowded", "info", what, at(host), mend)
