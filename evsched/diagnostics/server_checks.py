"""What is wrong with a server by what it says of itself: INFO and its settings. Pure.

A setting that could not be read is absent, and judged as good: diagnostics/doctor.py says that it could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from evsched.diagnostics.finding import Finding
from evsched.transport.redis_errors import NO_CLUSTER
from evsched.transport.server_binary import read_version

SETTINGS: Final = ("appendonly", "appendfsync", "save", "maxmemory-policy", "notify-keyspace-events")
"""What INFO does not tell, or not on every server."""

_FULL: Final = 0.9
"""Of the memory or of the connections: little enough left that a burst takes it, time enough to act."""

_SKEW: Final = 1.0
"""Seconds: programs that reckon dues by their own clock are late or early by as much."""


class Server(Struct, frozen=True):
    """What a server says of itself."""

    info: Mapping[str, str]
    settings: Mapping[str, str]

    def number(self, name: str) -> int:
        """Return a figure of INFO, 0 when it is not there."""
        text = self.info.get(name, "")
        return int(text) if text.isdecimal() else 0


def version(server: Server) -> list[Finding]:
    """Judge the version."""
    kind, told, least = read_version(server.info)
    if least is None:
        return []
    return [
        Finding(
            "version",
            "fault",
            f"{kind} {told} is too old: its scripts have no flags, and no job can end when its memory is full",
            "Redis",
            f"install {kind} {least[0]}.{least[1]} or newer",
        )
    ]


def cluster(server: Server) -> list[Finding]:
    """Judge whether this is a cluster: it has its queues on several nodes, and one URL names one of them."""
    if server.info.get("redis_mode") != "cluster" and server.number("cluster_enabled") == 0:
        return []
    return [
        Finding("cluster", "fault", NO_CLUSTER, "Redis, cluster-enabled", "set cluster-enabled no, or name another")
    ]


def replica(server: Server) -> list[Finding]:
    """Judge the role."""
    if server.info.get("role") != "slave":
        return []
    host = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
    return [
        Finding("replica", "fault", "this is a replica: nothing can be scheduled or run on it", "Redis", f"use {host}")
    ]


def persistence(server: Server) -> list[Finding]:
    """Judge what a restart would lose, and whether the last writes to disk went well."""
    found = list[Finding]()
    aof = server.info.get("aof_enabled", "1") == "1"
    if not aof:
        snapshots = server.settings.get("save", "") != ""
        lost = "what came since the last snapshot" if snapshots else "every job"
        found.append(
            Finding(
                "persistence",
                "warning" if snapshots else "fault",
                f"the append-only log is off: a restart loses {lost}",
                "Redis, appendonly",
                "CONFIG SET appendonly yes, and appendonly yes into redis.conf",
            )
        )
    for name, what in (
        ("aof_last_write_status", "the last write to the append-only log failed: Redis refuses every write"),
        ("aof_last_bgrewrite_status", "the last rewriting of the append-only log failed: it grows without end"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if server.info.get(name, "ok") != "ok":
            level = "fault" if name == "aof_last_write_status" else "warning"
            mend = (
                "look at Redis's log: most often the disk is full, or the folder not its own; BGREWRITEAOF tries again"
            )
            found.append(Finding("persistence-failed", level, what, f"Redis, {name}", mend))
    return found


def appendfsync(server: Server) -> list[Finding]:
    """Judge how much of what was acknowledged a crash may lose."""
    value = server.settings.get("appendfsync") if server.info.get("aof_enabled") == "1" else None
    where = "Redis, appendfsync"
    if value == "no":
        what = "the log is flushed when the system likes: a crash of the machine loses about the last 30 s"
        mend = "CONFIG SET appendfsync everysec, and appendfsync everysec into redis.conf"
        return [Finding("appendfsync", "fault", what, where, mend)]
    if value == "everysec":
        what = "a crash of the machine loses about the last second of what was acknowledged"
        mend = "if that is too much: CONFIG SET appendfsync always; each write then waits for the disk"
        return [Finding("appendfsync", "info", what, where, mend)]
    return []


def eviction(server: Server) -> list[Finding]:
    """Judge whether Redis deletes jobs when its memory is full."""
    found = list[Finding]()
    policy = server.settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    mend = "CONFIG SET maxmemory-policy noeviction, and maxmemory-policy noeviction into redis.conf"
    if policy != "noeviction" and server.number("maxmemory"):
        what = f"the policy is {policy}: when memory is full, Redis deletes records of jobs, or a whole schedule"
        found.append(Finding("eviction", "fault", what, "Redis, maxmemory-policy", mend))
    if evicted := server.number("evicted_keys"):
        what = f"Redis has deleted {evicted} keys to make room: jobs may be among them"
        mend = "look at what the audit says below; CONFIG RESETSTAT sets the figure back"
        found.append(Finding("evicted-keys", "warning", what, "Redis, evicted_keys", mend))
    return found


def memory(server: Server) -> list[Finding]:
    """Judge the headroom."""
    used, most = server.number("used_memory"), server.number("maxmemory")
    if not most or used < _FULL * most:
        return []
    then = "it is full, and Redis refuses new jobs" if used >= most else "when it is full, Redis refuses new jobs"
    what = f"{used / 2**20:.0f} of {most / 2**20:.0f} MB are used: {then}"
    mend = "CONFIG SET maxmemory to more, or let fewer jobs, results and dead jobs be kept"
    return [Finding("memory", "warning", what, "Redis, maxmemory", mend)]


def connections(server: Server) -> list[Finding]:
    """Judge how many more can connect."""
    used, most = server.number("connected_clients"), server.number("maxclients")
    if not most or used < _FULL * most:
        return []
    what = f"{used} of {most} connections are used: then no worker can connect again"
    mend = "CONFIG SET maxclients to more, or see in CLIENT LIST who does not close its own"
    return [Finding("connections", "warning", what, "Redis, maxclients", mend)]


def clock(offset: float) -> list[Finding]:
    """Judge how far Redis's clock is ahead of this host's, in seconds; negative = behind."""
    if abs(offset) < _SKEW:
        return []
    what = f"Redis's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this host's"
    mend = "set both by NTP (chronyc tracking); what a program schedules by its own clock starts that much off"
    return [Finding("clock", "warning", what, "Redis and this host", mend)]


CHECKS: Final[tuple[Callable[[Server], list[Finding]], ...]] = (
    version,
    cluster,
    replica,
    persistence,
    appendfsync,
    eviction,
    memory,
    connections,
)
