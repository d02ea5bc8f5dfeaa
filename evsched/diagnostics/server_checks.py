"""What is wrong with a server, judged by its INFO and its settings. Pure.

A setting that could not be read is absent and counts as good: diagnostics/doctor.py reports that it was not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, structs

from evsched.diagnostics.finding import Finding
from evsched.transport.address import Host
from evsched.transport.embedded import read_version
from evsched.transport.redis_errors import NO_CLUSTER

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


class Server(Struct, frozen=True):
    """What a server reports about itself."""

    info: Mapping[str, str]
    settings: Mapping[str, str]

    def number(self, name: str) -> int:
        """Return a figure of INFO, 0 if it is missing."""
        text = self.info.get(name, "")
        return int(text) if text.isdecimal() else 0


def version(server: Server) -> list[Finding]:
    """Check the version."""
    kind, version_text, least = read_version(server.info)
    if least is None:
        return []
    return [
        Finding(
            "version",
            "fault",
            f"{kind} {version_text} is too old: it has no script flags, so no job could end while its memory is full",
            "Redis",
            f"install {kind} {least[0]}.{least[1]} or newer",
        )
    ]


def cluster(server: Server) -> list[Finding]:
    """Check that a server whose URL names no cluster is not in one: its other nodes would not be found."""
    if server.info.get("redis_mode") != "cluster" and server.number("cluster_enabled") == 0:
        return []
    return [
        Finding(
            "cluster",
            "fault",
            NO_CLUSTER,
            "Redis, cluster-enabled",
            "--url redis+cluster://HOST:PORT,HOST:PORT, with some of its nodes; or set EVSCHED_URL to it",
        )
    ]


def replica(server: Server) -> list[Finding]:
    """Check that this is not a replica."""
    if server.info.get("role") != "slave":
        return []
    host = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
    return [
        Finding(
            "replica",
            "fault",
            "this is a replica: it accepts no jobs and runs none",
            "Redis",
            f"use {host}, its primary",
        )
    ]


def persistence(server: Server) -> list[Finding]:
    """Check what a restart would lose, and whether the last writes to disk succeeded."""
    found = list[Finding]()
    aof = server.info.get("aof_enabled", "1") == "1"
    if not aof:
        snapshots = server.settings.get("save", "") != ""
        lost = "all jobs since the last snapshot" if snapshots else "every job"
        found.append(
            Finding(
                "persistence",
                "warning" if snapshots else "fault",
                f"the append-only log is off: a restart loses {lost}",
                "Redis, appendonly",
                "CONFIG SET appendonly yes, and write appendonly yes to redis.conf",
            )
        )
    for name, what in (
        ("aof_last_write_status", "the last write to the append-only log failed: Redis refuses every write"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only log failed: the log keeps growing"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if server.info.get(name, "ok") != "ok":
            level = "fault" if name == "aof_last_write_status" else "warning"
            mend = "read Redis's log: usually the disk is full, or Redis may not write to its folder; then BGREWRITEAOF"
            found.append(Finding("persistence-failed", level, what, f"Redis, {name}", mend))
    return found


def appendfsync(server: Server) -> list[Finding]:
    """Check how many acknowledged writes a crash may lose."""
    value = server.settings.get("appendfsync") if server.info.get("aof_enabled") == "1" else None
    where = "Redis, appendfsync"
    if value == "no":
        what = "the operating system decides when to flush the log: a crash of the machine loses about the last 30 s"
        mend = "CONFIG SET appendfsync everysec, and write appendfsync everysec to redis.conf"
        return [Finding("appendfsync", "fault", what, where, mend)]
    if value == "everysec":
        what = "a crash of the machine loses about the last second of acknowledged writes"
        mend = "if that is too much: CONFIG SET appendfsync always; each write then waits for the disk"
        return [Finding("appendfsync", "info", what, where, mend)]
    return []


def eviction(server: Server) -> list[Finding]:
    """Check that Redis does not delete jobs when its memory is full."""
    found = list[Finding]()
    policy = server.settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    mend = "CONFIG SET maxmemory-policy noeviction, and write maxmemory-policy noeviction to redis.conf"
    if policy != "noeviction" and server.number("maxmemory"):
        what = f"the policy is {policy}: when memory is full, Redis deletes records of jobs, or a whole schedule"
        found.append(Finding("eviction", "fault", what, "Redis, maxmemory-policy", mend))
    if evicted := server.number("evicted_keys"):
        what = f"Redis has deleted {evicted} keys to make room: jobs may be among them"
        mend = (
            "the findings about queues below name the jobs that lost their records; CONFIG RESETSTAT resets the count"
        )
        found.append(Finding("evicted-keys", "warning", what, "Redis, evicted_keys", mend))
    return found


def memory(server: Server) -> list[Finding]:
    """Check how much memory is left."""
    used, most = server.number("used_memory"), server.number("maxmemory")
    if not most or used < _FULL * most:
        return []
    then = "it is full, and" if used >= most else "when it is full,"
    refuses = "Redis refuses new jobs, and messages that jobs forward to it are put off"
    what = f"{used / 2**20:.0f} of {most / 2**20:.0f} MB are used: {then} {refuses}"
    mend = (
        "raise it with CONFIG SET maxmemory; or keep results for a shorter time, and drop dead jobs (evsched dead drop)"
    )
    return [Finding("memory", "warning", what, "Redis, maxmemory", mend)]


def connections(server: Server) -> list[Finding]:
    """Check how many connections are left."""
    used, most = server.number("connected_clients"), server.number("maxclients")
    if not most or used < _FULL * most:
        return []
    what = f"{used} of {most} connections are in use: when all are, no worker can connect"
    mend = "raise it with CONFIG SET maxclients, or find in CLIENT LIST which program does not close its connections"
    return [Finding("connections", "warning", what, "Redis, maxclients", mend)]


def full_coverage(server: Server) -> list[Finding]:
    """Check that a cluster serves the other queues while some slots are not served."""
    in_cluster = server.number("cluster_enabled") == 1
    if not in_cluster or server.settings.get("cluster-require-full-coverage") != "yes":
        return []
    what = "the loss of one primary stops the queues of all others, until its replica has taken its place"
    mend = "CONFIG SET cluster-require-full-coverage no at all nodes, and write that to their redis.conf"
    return [Finding("cluster-coverage", "warning", what, "Redis, cluster-require-full-coverage", mend)]


def replicas(server: Server) -> list[Finding]:
    """Check that replicas follow, and what an isolated primary would lose."""
    found = list[Finding]()
    count = server.number("connected_slaves")
    for number in range(count):
        one = dict(field.split("=", 1) for field in server.info.get(f"slave{number}", "").split(",") if "=" in field)
        lag = int(one.get("lag", "0"))
        if one and (one.get("state") != "online" or lag >= _LAG):
            state = f"answered {lag} s ago" if one.get("state") == "online" else f"is in state {one.get('state')}"
            at = f"{one.get('ip')}:{one.get('port')}"
            what = f"the replica {at} {state}: a failover to it would lose what it has not received"
            mend = "check its load, its disk and the network; if it is gone for good, remove it or start another"
            found.append(Finding("replica-lag", "warning", what, "Redis, replication", mend))
    least = server.settings.get("min-replicas-to-write", "0")
    where = "Redis, min-replicas-to-write"
    if least.isdecimal() and server.number("min_slaves_good_slaves") < int(least):
        what = f"Redis refuses every write: it has {server.number('min_slaves_good_slaves')} of {least} replicas"
        found.append(Finding("min-replicas", "fault", what, where, "start the missing replicas, or lower the setting"))
    elif count and least == "0":
        what = "a primary that is cut off from its replicas accepts jobs, which are lost when one takes its place"
        mend = "if that is too much: CONFIG SET min-replicas-to-write 1; a primary without a replica then takes no jobs"
        found.append(Finding("min-replicas", "info", what, where, mend))
    return found


def clock(offset: float, error: float = 0.0) -> list[Finding]:
    """Check how many seconds Redis's clock is ahead of this host's; negative = behind. `error`: of the measurement."""
    if abs(offset) - error < _SKEW:
        return []
    what = f"Redis's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this host's"
    mend = "synchronise both with NTP (chronyc tracking); a program that schedules by its own clock is off by as much"
    return [Finding("clock", "warning", what, "Redis and this host", mend)]


def sentinel(host: Host, why: str) -> Finding:
    """Report a sentinel that does not name the primary."""
    mend = (
        "start it, or take it out of the URL; if it names an old primary: SENTINEL REMOVE NAME and SENTINEL MONITOR "
        "NAME HOST PORT QUORUM there"
    )
    what = f"a sentinel of the URL does not tell where the primary is, so others are asked: {why}"
    return Finding("sentinel", "warning", what, f"{host[0]}:{host[1]}", mend)


def at_node(finding: Finding, node: Host | None) -> Finding:
    """Return the finding with the node of a cluster where it is."""
    return finding if node is None else structs.replace(finding, where=f"{finding.where}, at {node[0]}:{node[1]}")


CHECKS: Final[tuple[Callable[[Server], list[Finding]], ...]] = (
    version,
    replica,
    persistence,
    appendfsync,
    eviction,
    memory,
    connections,
    full_coverage,
    replicas,
)
